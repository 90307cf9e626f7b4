//! `Service`: the backend behind a proxy. It echoes requests, so that a test sees what reached it.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::{Bytes, to_bytes};
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::routing::any;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A running backend.
pub(crate) struct Service {
    address: SocketAddr,
    broken_off: Arc<AtomicU32>,
}

impl Service {
    /// Starts a backend on a free port.
    pub(crate) async fn start() -> Self {
        let broken_off = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&broken_off);
        let break_off = async move || -> StatusCode {
            count.fetch_add(1, Ordering::Relaxed);
            // Closes the connection without a panic message that would look like a failed test.
            resume_unwind(Box::new("broken off"))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let refuse = async |Path(status): Path<u16>, request: Request| {
            (StatusCode::from_u16(status).unwrap(), repeat(request).await)
        };
        let pages =
            Router::new().route("/broken-off", any(break_off)).route("/status/{status}", any(refuse)).fallback(repeat);
        tokio::spawn(async { axum::serve(listener, pages).await });
        Self { address, broken_off }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The number of requests for `/broken-off`, which are never answered.
    pub(crate) fn broken_off(&self) -> u32 {
        self.broken_off.load(Ordering::Relaxed)
    }
}

async fn repeat(request: Request) -> Json<Value> {
    let (head, body) = request.into_parts();
    let body: Bytes = to_bytes(body, 65_536).await.unwrap();
    let fields: Vec<_> =
        head.headers.iter().map(|(name, value)| [name.as_str(), value.to_str().unwrap_or_default()]).collect();
    Json(json!({
        "asked": format!("{} {}", head.method, head.uri),
        "fields": fields,
        "body": String::from_utf8_lossy(&body),
    }))
}
