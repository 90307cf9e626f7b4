//! A client that sends any bytes and reads one response.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Sends the bytes of a request on a connection of its own; `None` if there is no complete response.
pub(crate) async fn send(address: SocketAddr, request: &[u8]) -> Option<HttpResponse> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The gateway may refuse a request and close before it has read all of it.
    let _ = stream.write_all(request).await;
    let mut received = Vec::new();
    loop {
        if let Some(response) = parse(&received) {
            return Some(response);
        }
        if stream.read_buf(&mut received).await.unwrap_or_default() == 0 {
            return parse(&received);
        }
    }
}

/// The response, if it is complete.
fn parse(received: &[u8]) -> Option<HttpResponse> {
    let head_end = received.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&received[..head_end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let rest = &received[head_end + 4..];
    let body = if field("transfer-encoding") == Some("chunked") {
        decode_chunks(rest)?
    } else {
        let length = field("content-length").map_or(Some(0), |length| length.parse().ok())?;
        // The response to HEAD has the length of a body that does not follow.
        rest.get(..length)?.to_vec()
    };
    Some(HttpResponse { status, body })
}

fn decode_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + size)?);
        rest = rest.get(end + 4 + size..)?;
    }
}
