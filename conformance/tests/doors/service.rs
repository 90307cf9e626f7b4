//! The service behind a proxy: repeats what it was asked, so that a test sees what has reached it.

use std::net::SocketAddr;

use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Starts a service on a free port.
pub(crate) async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, Router::new().fallback(repeat)).await });
    address
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
