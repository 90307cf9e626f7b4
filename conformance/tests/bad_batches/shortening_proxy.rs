//! `ShorteningProxy`: a proxy in front of a real server that removes the last result from each reply to several plans.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// What separates the results of a reply.
const SEPARATOR: u8 = b';';

/// A proxy that runs until it is dropped.
pub(crate) struct ShorteningProxy {
    port: u16,
    state: Arc<State>,
    running: AbortHandle,
}

#[derive(Default)]
struct State {
    is_shortening: AtomicBool,
    shortened: AtomicU64,
}

impl ShorteningProxy {
    /// Starts a proxy that forwards everything unchanged at first.
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, state) = (listener.local_addr().unwrap().port(), Arc::new(State::default()));
        let shared = Arc::clone(&state);
        let running = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server, Arc::clone(&shared)));
            }
        });
        Self { port, state, running: running.abort_handle() }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether replies are shortened from now on. Connections must be idle or wait for replies to scripts.
    pub(crate) fn set_shortening(&self, is_shortening: bool) {
        self.state.is_shortening.store(is_shortening, Ordering::SeqCst);
    }

    /// How many replies were shortened.
    pub(crate) fn shortened(&self) -> u64 {
        self.state.shortened.load(Ordering::SeqCst)
    }
}

impl Drop for ShorteningProxy {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn forward(client: TcpStream, server: u16, state: Arc<State>) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server)).await?;
    client.set_nodelay(true)?;
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let down = async {
        let (mut received, mut buffer) = (Vec::new(), [0; 16_384]);
        loop {
            let length = from_server.read(&mut buffer).await?;
            if length == 0 {
                return io::Result::Ok(());
            }
            received.extend_from_slice(&buffer[..length]);
            let forwarded = if state.is_shortening.load(Ordering::SeqCst) {
                shorten(&mut received, &state)
            } else {
                std::mem::take(&mut received)
            };
            to_client.write_all(&forwarded).await?;
        }
    };
    tokio::select! {
        ended = copy(&mut from_client, &mut to_server) => ended.map(drop),
        ended = down => ended,
    }
}

/// Takes complete replies out of `received`, without their last results. A reply is a bulk string or one line.
fn shorten(received: &mut Vec<u8>, state: &State) -> Vec<u8> {
    let mut shortened = Vec::new();
    while let Some(line_end) = received.windows(2).position(|window| window == b"\r\n").map(|at| at + 2) {
        let is_bulk = received[0] == b'$' && received[1] != b'-';
        let text_bytes =
            std::str::from_utf8(&received[1..line_end - 2]).ok().and_then(|number| number.parse::<usize>().ok());
        let reply_bytes = line_end + text_bytes.filter(|_| is_bulk).map_or(0, |bytes| bytes + 2);
        if received.len() < reply_bytes {
            break;
        }
        let reply: Vec<u8> = received.drain(..reply_bytes).collect();
        // The time comes first, in eight bytes of any value.
        let results = if is_bulk { &reply[(line_end + 8).min(reply_bytes)..] } else { &[] };
        let is_separator = |byte: &u8| *byte == SEPARATOR;
        let first = results.iter().position(is_separator);
        match results.iter().rposition(is_separator) {
            Some(last) if first < Some(last) => {
                let text = &reply[line_end..line_end + 8 + last];
                shortened.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
                shortened.extend_from_slice(text);
                shortened.extend_from_slice(b"\r\n");
                state.shortened.fetch_add(1, Ordering::SeqCst);
            }
            _ => shortened.extend_from_slice(&reply),
        }
    }
    shortened
}
