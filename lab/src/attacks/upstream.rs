//! `Upstream`: the service behind the gateways. It counts its requests by API key.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::http_client::KEY_HEADER;

type Counts = Arc<Mutex<HashMap<String, u64>>>;

/// A service that runs until it is dropped.
#[derive(Debug)]
pub(super) struct Upstream {
    /// Where it listens.
    pub(super) address: SocketAddr,
    counts: Counts,
    running: AbortHandle,
}

impl Upstream {
    /// Starts a service on a free port.
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, counts) = (listener.local_addr().unwrap(), Counts::default());
        let running = tokio::spawn(accept(listener, Arc::clone(&counts))).abort_handle();
        Self { address, counts, running }
    }

    /// The number of requests with an API key that `is_chosen` chooses, by key.
    pub(super) fn counts(&self, is_chosen: impl Fn(&str) -> bool) -> HashMap<String, u64> {
        let counts = self.counts.lock().unwrap();
        counts.iter().filter(|(key, _)| is_chosen(key)).map(|(key, count)| (key.clone(), *count)).collect()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn accept(listener: TcpListener, counts: Counts) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(answer(stream, Arc::clone(&counts)));
        while connections.try_join_next().is_some() {}
    }
}

/// Answers every request of a connection. Requests have no body.
async fn answer(mut stream: TcpStream, counts: Counts) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        while let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            let head: Vec<u8> = received.drain(..end + 4).collect();
            let head = String::from_utf8_lossy(&head);
            let key = head.lines().find_map(|line| line.strip_prefix(KEY_HEADER)?.strip_prefix(": "));
            *counts.lock().unwrap().entry(key.unwrap_or_default().to_owned()).or_default() += 1;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await?;
        }
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        received.extend_from_slice(&buffer[..length]);
    }
}
