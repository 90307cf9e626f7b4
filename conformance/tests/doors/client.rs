//! A test client with its own address.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

/// An HTTP request.
#[derive(Clone)]
pub(crate) struct HttpRequest {
    line: String,
    from: Ipv4Addr,
    /// Complete header lines.
    fields: Vec<String>,
    body: String,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    fields: Vec<(String, String)>,
    pub(crate) body: String,
}

/// A request such as `GET /api/rides`, from 127.0.0.2 unless [`from`](HttpRequest::from) says otherwise.
pub(crate) fn request(line: &str) -> HttpRequest {
    HttpRequest { line: line.to_owned(), from: Ipv4Addr::new(127, 0, 0, 2), fields: Vec::new(), body: String::new() }
}

/// The same to an address of Tidegate itself, which listens on loopback.
pub(crate) fn local_request(line: &str) -> HttpRequest {
    request(line).with("host", "localhost")
}

impl HttpRequest {
    /// Sends from 127.0.0.`last`. The proxies use 127.0.0.1.
    pub(crate) fn from(mut self, last: u8) -> Self {
        self.from = Ipv4Addr::new(127, 0, 0, last);
        self
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push(format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn body(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }

    /// Sends the request; None if there is no response.
    pub(crate) async fn try_send(&self, to: SocketAddr) -> Option<HttpResponse> {
        let socket = TcpSocket::new_v4().ok()?;
        socket.bind((self.from, 0).into()).ok()?;
        let mut stream = socket.connect(to).await.ok()?;
        let (line, fields, length, body) = (&self.line, self.fields.concat(), self.body.len(), &self.body);
        let has_host = self.fields.iter().any(|field| field.starts_with("host: "));
        let host = if has_host { "" } else { "host: api.example.com\r\n" };
        let text =
            format!("{line} HTTP/1.1\r\n{host}connection: close\r\n{fields}content-length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).await.ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await.ok()?;
        HttpResponse::read(&response)
    }
}

impl HttpResponse {
    fn read(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let (line, fields) = head.split_once("\r\n").unwrap_or((head, ""));
        let fields = fields.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        let mut response = Self { status: line.split(' ').nth(1)?.parse().ok()?, fields, body: body.to_owned() };
        if response.field("transfer-encoding") == Some("chunked") {
            response.body = decode_chunks(body)?;
        }
        Some(response)
    }

    /// The value of a header that occurs at most once.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let first = found.next();
        assert_eq!(found.next(), None, "{name} occurs twice: {self:?}");
        first
    }

    /// Whether it has `Retry-After` and `retry-after-ms`, and both say the same.
    pub(crate) fn has_both_retry_times(&self) -> bool {
        let millis = self.field("retry-after-ms").map(|millis| millis.parse::<u64>().unwrap());
        millis.is_some_and(|millis| self.retry_after() == Some(millis.div_ceil(1_000)))
    }

    /// The seconds of `Retry-After`.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.field("retry-after").map(|seconds| seconds.parse().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The request line that the backend received, if any.
    pub(crate) fn backend_request_line(&self) -> Option<String> {
        Some(serde_json::from_str::<Value>(&self.body).ok()?["request_line"].as_str()?.to_owned())
    }

    /// All values of a header that the backend received.
    pub(crate) fn backend_values(&self, name: &str) -> Vec<String> {
        let seen = self.json();
        let fields = seen["fields"].as_array().unwrap_or_else(|| panic!("not a response of the backend: {self:?}"));
        let of_name = fields.iter().filter(|field| field[0] == name);
        of_name.map(|field| field[1].as_str().unwrap().to_owned()).collect()
    }
}

/// Decodes a chunked body.
fn decode_chunks(mut chunks: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, rest) = chunks.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.push_str(rest.get(..size)?);
        chunks = rest.get(size + 2..)?;
    }
}
