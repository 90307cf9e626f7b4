//! The gateway as clients and upstreams meet it: over real connections, mostly as plain bytes. Time is a clock that the tests
//! move, or the refill is too slow to matter.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bodies;
mod ending;
mod limits;
mod passing;
mod smuggling;
mod trouble;
mod tunnels;
mod upstreams;

use std::fmt::Write;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use tidegate::spi::Store;
use tidegate::{Limiter, ManualClock, MemoryStore, Rule, RuleSet, Timestamp};
use tidegate_server::Listener;
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tidegate_tower::LimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A midnight in September 2026.
const START: Timestamp = Timestamp::from_micros(20_717 * 86_400_000_000);

/// A connection to the gateway, and what was read from it.
struct Wire {
    stream: TcpStream,
    heard: String,
}

impl Wire {
    async fn to(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), heard: String::new() }
    }

    async fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until `text` was heard.
    async fn hear(&mut self, text: &str) {
        while !self.heard.contains(text) {
            let mut bytes = [0; 4096];
            let read = self.stream.read(&mut bytes).await.unwrap();
            assert_ne!(read, 0, "closed before {text:?}: {}", self.heard);
            self.heard.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    /// Reads until the other side closes. A reset is an end as well.
    async fn rest(mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.stream.read_to_end(&mut bytes).await;
        self.heard + &String::from_utf8_lossy(&bytes)
    }
}

/// Says all of it at once, and hears all of the answer.
async fn exchange(address: SocketAddr, text: &str) -> String {
    let mut wire = Wire::to(address).await;
    wire.say(text).await;
    wire.rest().await
}

/// Asks for a page, with these lines in the head.
async fn get(address: SocketAddr, path: &str, lines: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n{lines}\r\n")).await
}

/// The value of a field in an answer.
fn field<'h>(heard: &'h str, name: &str) -> Option<&'h str> {
    let head = heard.split("\r\n\r\n").next()?;
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// A server on a port of its own.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// An upstream that says what it was asked.
fn mirror() -> Router {
    Router::new().fallback(async |request: Request| {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_else(|_| "broken".into());
        let mut said = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
        for (name, value) in &parts.headers {
            writeln!(said, "{name}: {}", String::from_utf8_lossy(value.as_bytes())).unwrap();
        }
        said + "body: " + &String::from_utf8_lossy(&body)
    })
}

/// A gateway to `upstream`, which runs as long as the test.
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

/// A free port.
async fn listener() -> Listener {
    Listener::bind(([127, 0, 0, 1], 0).into()).await.unwrap()
}

/// One without limits to `app`.
async fn gateway(app: Router) -> SocketAddr {
    let upstream = format!("http://{}", serve(app).await);
    gateway_with(&upstream, GatewayOptions::new(), limits([], &ManualClock::at(START))).await
}

/// Limits on a clock that a test moves.
fn limits(rules: impl IntoIterator<Item = Rule>, clock: &ManualClock) -> LimitLayer<Arc<MemoryStore>> {
    let store = Arc::new(MemoryStore::new().clock(clock.clone()));
    LimitLayer::new(Limiter::new(RuleSet::new(rules).unwrap(), store)).timer(clock.clone())
}

/// Lets the other tasks of this thread go on until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..100_000_000_u64 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("what the test waits for does not come");
}
