//! `HttpClient`: sends requests over one connection, as raw HTTP/1.1.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The header with the API key, as the rules and the gateway know it.
pub(super) const KEY_HEADER: &str = "x-api-key";

/// A client with one connection, which is opened again if it breaks.
#[derive(Debug)]
pub(super) struct HttpClient {
    address: SocketAddr,
    stream: Option<TcpStream>,
    received: Vec<u8>,
}

/// A request with this API key. If the key is an address, the request comes from that, through a proxy.
pub(super) fn request_text(key: &str) -> String {
    let forwarded = if key.parse::<IpAddr>().is_ok() { format!("x-forwarded-for: {key}\r\n") } else { String::new() };
    format!("GET / HTTP/1.1\r\nhost: a\r\n{KEY_HEADER}: {key}\r\n{forwarded}\r\n")
}

impl HttpClient {
    /// Does not connect yet.
    pub(super) const fn new(address: SocketAddr) -> Self {
        Self { address, stream: None, received: Vec::new() }
    }

    /// Opens the connection.
    pub(super) async fn connect(&mut self) -> io::Result<()> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        self.received.clear();
        self.stream = Some(stream);
        Ok(())
    }

    /// The status of the response to a request with this API key.
    pub(super) async fn status(&mut self, key: &str) -> io::Result<u16> {
        if self.stream.is_none() {
            self.connect().await?;
        }
        let status = self.exchange(key).await;
        if status.is_err() {
            self.stream = None;
        }
        status
    }

    /// Sends a request as often as `times` and reads nothing.
    pub(super) async fn send_only(&mut self, key: &str, times: usize) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        stream.write_all(request_text(key).repeat(times).as_bytes()).await
    }

    async fn exchange(&mut self, key: &str) -> io::Result<u16> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        stream.write_all(request_text(key).as_bytes()).await?;
        loop {
            if let Some((status, length)) = complete_response(&self.received)? {
                self.received.drain(..length);
                return Ok(status);
            }
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).await?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.received.extend_from_slice(&buffer[..length]);
        }
    }
}

/// The status and length of the first response, once it is complete.
fn complete_response(bytes: &[u8]) -> io::Result<Option<(u16, usize)>> {
    let Some(head_bytes) = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4) else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&bytes[..head_bytes]).to_ascii_lowercase();
    let body_bytes = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (Some(body_bytes), Some(status)) = (body_bytes, status) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, head));
    };
    let length = head_bytes + body_bytes;
    Ok((bytes.len() >= length).then_some((status, length)))
}
