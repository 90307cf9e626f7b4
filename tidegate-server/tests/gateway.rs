//! The gateway over real TCP connections, mostly as raw bytes. The limits run by a manual clock, or refill too slowly to matter.

mod body_fields;
mod body_sizes;
mod bounds;
mod error_responses;
mod forwarding;
mod http2;
mod http2_frames;
mod late_tokens;
mod leases;
mod limits;
mod paths;
mod request_fields;
mod shutdown;
mod slow_clients;
mod smuggling;
mod streaming;
mod token_errors;
mod token_floods;
mod token_requests;
mod token_streams;
mod tokens;
mod upgrades;
mod upstream_tls;

use std::fmt::Write;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use tidegate::spi::Store;
use tidegate::{Limiter, ManualClock, MemoryStore, Rule, RuleSet, Timestamp};
use tidegate_rules::RuleFile;
use tidegate_server::Listener;
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tidegate_tower::LimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Midnight UTC of a day in September 2026.
const START: Timestamp = Timestamp::from_micros(20_717 * 86_400_000_000);

/// A TCP connection, and the text received on it.
struct RawConnection {
    stream: TcpStream,
    received: String,
}

impl RawConnection {
    fn new(stream: TcpStream) -> Self {
        Self { stream, received: String::new() }
    }

    async fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).await.unwrap())
    }

    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until `text` was received.
    async fn receive_until(&mut self, text: &str) {
        while !self.received.contains(text) {
            let mut bytes = [0; 4096];
            let read = self.stream.read(&mut bytes).await.unwrap();
            assert_ne!(read, 0, "closed before {text:?}: {}", self.received);
            self.received.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    /// Reads some bytes; 0 if the other side has closed the connection.
    async fn read_some(&mut self, bytes: &mut [u8]) -> usize {
        self.stream.read(bytes).await.unwrap_or(0)
    }

    /// Reads until the other side closes or resets the connection.
    async fn receive_to_end(mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.stream.read_to_end(&mut bytes).await;
        self.received + &String::from_utf8_lossy(&bytes)
    }
}

/// Sends `text` and returns everything received until the connection closes.
async fn exchange(address: SocketAddr, text: &str) -> String {
    let mut connection = RawConnection::connect(address).await;
    connection.send(text).await;
    connection.receive_to_end().await
}

/// Sends a GET request with these header lines.
async fn get(address: SocketAddr, path: &str, lines: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n{lines}\r\n")).await
}

/// The value of a response header.
fn field<'h>(response: &'h str, name: &str) -> Option<&'h str> {
    let head = response.split("\r\n\r\n").next()?;
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Serves `app` on a free port.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// An upstream that returns the request it received as text.
fn mirror() -> Router {
    Router::new().fallback(async |request: Request| {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_else(|_| "broken".into());
        let mut text = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
        for (name, value) in &parts.headers {
            writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes())).unwrap();
        }
        text + "body: " + &String::from_utf8_lossy(&body)
    })
}

/// Starts a gateway to `upstream`, which runs as long as the test.
async fn gateway_with<S: Store + 'static>(upstream: &str, options: GatewayOptions, layer: LimitLayer<S>) -> SocketAddr {
    gateway_at(listener().await, upstream, options, layer)
}

fn gateway_at<S: Store + 'static>(
    listener: Listener,
    upstream: &str,
    options: GatewayOptions,
    layer: LimitLayer<S>,
) -> SocketAddr {
    let gateway = Gateway::new(&upstream.parse().unwrap(), options).unwrap();
    let address = listener.address().unwrap();
    tokio::spawn(gateway.serve(listener, layer, pending()));
    address
}

/// A listener on a free port.
async fn listener() -> Listener {
    Listener::bind(([127, 0, 0, 1], 0).into()).await.unwrap()
}

/// Starts a gateway without limits in front of `app`.
async fn gateway(app: Router) -> SocketAddr {
    let upstream = format!("http://{}", serve(app).await);
    gateway_with(&upstream, GatewayOptions::new(), limits([], &ManualClock::starting_at(START))).await
}

/// A limit layer on a memory store with a manual clock.
fn limits(rules: impl IntoIterator<Item = Rule>, clock: &ManualClock) -> LimitLayer<Arc<MemoryStore>> {
    let store = Arc::new(MemoryStore::new().with_clock(clock.clone()));
    LimitLayer::new(Limiter::new(RuleSet::new(rules).unwrap(), store)).with_timer(clock.clone())
}

/// The limits of a rule file.
fn file_limits(text: &str) -> LimitLayer<Arc<MemoryStore>> {
    let file = RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"));
    let store = Arc::new(MemoryStore::new().with_clock(ManualClock::starting_at(START)));
    LimitLayer::new(Limiter::new(file.rules().clone(), store))
}

/// Yields to the other tasks of this thread until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..100_000_000_u64 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the condition did not become true");
}
