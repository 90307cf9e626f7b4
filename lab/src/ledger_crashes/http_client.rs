//! `HttpClient`: sends JSON over one connection to an instance that may die at any moment.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// After this time, a call counts as unanswered. Instances answer long before, unless they hang.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(30);

/// A client with at most one connection.
#[derive(Debug, Default)]
pub(super) struct HttpClient {
    connection: Option<(SocketAddr, TcpStream)>,
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoResponse {
    /// There was no connection, so the request was not sent.
    Unsent,
    /// The request was sent, at least in part.
    Missing,
}

/// A response.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) text: String,
}

impl HttpClient {
    /// Posts a body.
    pub(super) async fn post(&mut self, to: SocketAddr, path: &str, body: &Value) -> Result<HttpResponse, NoResponse> {
        self.send(to, "POST", path, &body.to_string()).await
    }

    /// Sends a request, and never twice.
    pub(super) async fn send(
        &mut self,
        to: SocketAddr,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<HttpResponse, NoResponse> {
        let mut stream = match self.connection.take() {
            Some((address, stream)) if address == to => stream,
            _ => TcpStream::connect(to).await.map_err(|_| NoResponse::Unsent)?,
        };
        let answered = timeout(MAX_ANSWER_TIME, exchange(&mut stream, method, path, body)).await;
        let response = answered.ok().flatten().ok_or(NoResponse::Missing)?;
        self.connection = Some((to, stream));
        Ok(response)
    }
}

impl HttpResponse {
    /// The body as JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

async fn exchange(stream: &mut TcpStream, method: &str, path: &str, body: &str) -> Option<HttpResponse> {
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await.ok()?;
    let mut received = Vec::new();
    loop {
        if let Some(response) = complete_response(&received) {
            return Some(response);
        }
        if stream.read_buf(&mut received).await.ok()? == 0 {
            return None;
        }
    }
}

/// The response, once it is complete.
fn complete_response(bytes: &[u8]) -> Option<HttpResponse> {
    let head_bytes = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..head_bytes]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &bytes[head_bytes..];
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let body = match length {
        Some(length) => body.get(..length)?.to_vec(),
        None if head.contains("transfer-encoding: chunked") => decode_chunks(body)?,
        None => Vec::new(),
    };
    Some(HttpResponse { status, text: String::from_utf8_lossy(&body).into_owned() })
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
