//! `HttpClient`: sends the bytes of HTTP/1.1 requests, each once, over a connection that it opens again if it breaks.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A client with at most one connection.
#[derive(Debug)]
pub struct HttpClient {
    from: Ipv4Addr,
    connection: Option<(SocketAddr, TcpStream)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResponse {
    /// There was no connection, so the request was not sent.
    Unsent,
    /// The request was sent, at least in part.
    Missing,
}

#[derive(Debug)]
pub struct HttpResponse {
    pub status: u16,
    /// The header fields, with names in lower case.
    fields: Vec<(String, String)>,
    /// The decoded body.
    pub body: Vec<u8>,
}

/// The text of a request with a JSON body.
pub fn json_request(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::from_address(Ipv4Addr::LOCALHOST)
    }
}

impl HttpClient {
    pub const fn from_address(from: Ipv4Addr) -> Self {
        Self { from, connection: None }
    }

    /// Opens a connection for the next request.
    pub async fn connect(&mut self, to: SocketAddr) -> io::Result<()> {
        let socket = TcpSocket::new_v4()?;
        if self.from != Ipv4Addr::LOCALHOST {
            socket.bind((self.from, 0).into())?;
        }
        let stream = socket.connect(to).await?;
        stream.set_nodelay(true)?;
        self.connection = Some((to, stream));
        Ok(())
    }

    /// Sends the bytes of a request, and reads the response. If it is dropped before, the next request has another connection.
    pub async fn send(&mut self, to: SocketAddr, request: &[u8]) -> Result<HttpResponse, NoResponse> {
        if self.connection.as_ref().is_none_or(|(address, _)| *address != to) {
            self.connect(to).await.map_err(|_| NoResponse::Unsent)?;
        }
        let (_, mut stream) = self.connection.take().ok_or(NoResponse::Unsent)?;
        // A server may refuse a request and close before it has read all of it.
        let _ = stream.write_all(request).await;
        let mut received = Vec::new();
        loop {
            if let Some(response) = HttpResponse::parse(&received, false) {
                self.connection = Some((to, stream));
                return Ok(response);
            }
            if stream.read_buf(&mut received).await.unwrap_or_default() == 0 {
                return HttpResponse::parse(&received, true).ok_or(NoResponse::Missing);
            }
        }
    }
}

impl HttpResponse {
    /// The response, once it is complete. The response to HEAD has the length of a body that does not follow, and never is.
    fn parse(received: &[u8], is_closed: bool) -> Option<Self> {
        let head_bytes = received.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let (head, rest) = (String::from_utf8_lossy(&received[..head_bytes]), &received[head_bytes..]);
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        let mut response = Self { status, fields, body: Vec::new() };
        let has = |name: &str, value: &str| response.field(name).is_some_and(|own| own.eq_ignore_ascii_case(value));
        response.body = match response.field("content-length") {
            _ if has("transfer-encoding", "chunked") => decode_chunks(rest)?,
            Some(length) => rest.get(..length.parse().ok()?)?.to_vec(),
            None if has("connection", "close") && !is_closed => return None,
            None if is_closed => rest.to_vec(),
            None => Vec::new(),
        };
        Some(response)
    }

    /// The value of a header that occurs at most once.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let first = found.next();
        assert_eq!(found.next(), None, "{name} occurs twice: {self:?}");
        first
    }

    pub fn retry_after(&self) -> Option<u64> {
        self.field("retry-after").map(|seconds| seconds.parse().unwrap())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {} {self:?}", self.text()))
    }
}

/// Decodes a chunked body, once it is complete.
fn decode_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        let chunk = rest.get(end + 2..end + 2 + size)?;
        rest = rest.get(end + 2 + size + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_when_its_body_is() {
        let parse =
            |text: &str, is_closed| HttpResponse::parse(text.as_bytes(), is_closed).map(|response| response.text());
        assert_eq!(parse("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no", false), None);
        assert_eq!(parse("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no", true), None);
        assert_eq!(parse("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false), Some("ok".to_owned()));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        assert_eq!((parse(&chunked[..55], false), parse(chunked, false)), (None, Some("ok".to_owned())));
        assert_eq!(parse("HTTP/1.1 204 No Content\r\n\r\n", false), Some(String::new()));
        let closed = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok";
        assert_eq!((parse(closed, false), parse(closed, true)), (None, Some("ok".to_owned())));
    }
}
