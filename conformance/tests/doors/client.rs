//! `HttpRequest`: a request of a client with its own address.

use std::net::{Ipv4Addr, SocketAddr};

use conformance::http_client::{HttpClient, HttpResponse};

/// An HTTP request.
#[derive(Clone)]
pub(crate) struct HttpRequest {
    line: String,
    from: Ipv4Addr,
    /// Complete header lines.
    fields: Vec<String>,
    body: String,
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
        let (line, fields, length, body) = (&self.line, self.fields.concat(), self.body.len(), &self.body);
        let has_host = self.fields.iter().any(|field| field.starts_with("host: "));
        let host = if has_host { "" } else { "host: api.example.com\r\n" };
        let text =
            format!("{line} HTTP/1.1\r\n{host}connection: close\r\n{fields}content-length: {length}\r\n\r\n{body}");
        HttpClient::from_address(self.from).send(to, text.as_bytes()).await.ok()
    }
}
