//! The memory of the server while clients read nothing: requests under way times the bytes that each may buffer.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

use crate::serve::hostile_http2::get_all;
use crate::serve::{GATEWAY_REQUESTS, Running, ask};

/// The length of each response.
const RESPONSE_BYTES: usize = 20_000_000;

/// What the server may use at its peak.
const MAX_PEAK_BYTES: u64 = 100_000_000;

/// A long response that counts what was taken of it.
struct LongBody {
    bytes_left: usize,
    taken: Arc<AtomicU64>,
}

impl Body for LongBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static CHUNK: [u8; 65_536] = [b'x'; 65_536];
        let length = CHUNK.len().min(self.bytes_left);
        self.bytes_left -= length;
        self.taken.fetch_add(length as u64, Ordering::Relaxed);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(Bytes::from_static(&CHUNK[..length])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left as u64)
    }
}

/// Starts an upstream with long responses, over HTTP/1.1 and HTTP/2.
async fn upstream(taken: &Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, taken) = (listener.local_addr().unwrap(), Arc::clone(taken));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let taken = Arc::clone(&taken);
            let service = service_fn(move |_| {
                let body = LongBody { bytes_left: RESPONSE_BYTES, taken: Arc::clone(&taken) };
                std::future::ready(Ok::<_, Infallible>(Response::new(body)))
            });
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// The most memory that a process has had, in bytes.
fn peak_bytes(server: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Waits until the gateway takes no more of the responses.
fn wait_until_full(server: &Running, taken: &AtomicU64) {
    loop {
        let before = taken.load(Ordering::Relaxed);
        for _ in 0..30 {
            assert_eq!(ask(&server.admin, "GET", "/healthz", "").0, 200, "the admin address answers meanwhile");
        }
        if before > 0 && taken.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// Carries out the attack, and returns the peak.
async fn peak_under_attack(scheme: &str, window: u32, connections: usize) -> u64 {
    let taken = Arc::default();
    let upstream = format!("{scheme}://{}", upstream(&taken).await);
    tokio::task::spawn_blocking(move || {
        let server = Running::start(&["--gateway", "127.0.0.1:0", "--upstream", &upstream]);
        let connect = |_| get_all(TcpStream::connect(&server.gateway).unwrap(), window, 200);
        let mut clients: Vec<TcpStream> = (0..connections).map(connect).collect();
        for _ in 0..4 {
            wait_until_full(&server, &taken);
            for client in &mut clients {
                client.read_exact(&mut [0; 1000]).unwrap();
            }
        }
        assert_eq!(ask(&server.http, "GET", "/healthz", "").0, 200);
        assert!(server.metric(GATEWAY_REQUESTS) >= 100);
        peak_bytes(&server)
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_with_huge_windows_that_hardly_read_leave_the_memory_under_100_mb() {
    for scheme in ["http", "h2c"] {
        let peak = peak_under_attack(scheme, i32::MAX as u32, 3).await;
        assert!(peak < MAX_PEAK_BYTES, "{scheme}: {peak} bytes");
    }
}

/// The most memory of a connection without a request.
const MAX_CONNECTION_BYTES: u64 = 96 * 1024;

/// A head that never ends, and one after which a connection is idle.
#[test]
fn a_connection_with_an_incomplete_head_takes_at_most_96_kib() {
    const CONNECTIONS: u64 = 400;
    let value = "y".repeat(64_000);
    for end in ["", "\r\n\r\n"] {
        let server = Running::start(&[]);
        let before = peak_bytes(&server);
        let connect = |_| {
            let mut stream = TcpStream::connect(&server.http).unwrap();
            write!(stream, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: {value}{end}").unwrap();
            stream
        };
        let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(connect).collect();
        if end.is_empty() {
            // The server reads what is there before it closes a connection.
            for client in &mut clients {
                client.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = client.read_to_end(&mut Vec::new());
            }
        } else {
            for client in &mut clients {
                client.read_exact(&mut [0; 15]).unwrap();
            }
        }
        let used = peak_bytes(&server) - before;
        assert!(used < CONNECTIONS * MAX_CONNECTION_BYTES, "{used} bytes of {CONNECTIONS} connections");
    }
}

/// hyper takes a whole chunk for a window of one byte.
#[tokio::test(flavor = "multi_thread")]
async fn clients_with_tiny_windows_leave_the_memory_under_100_mb() {
    let peak = peak_under_attack("http", 60, 3).await;
    assert!(peak < MAX_PEAK_BYTES, "{peak} bytes");
}
