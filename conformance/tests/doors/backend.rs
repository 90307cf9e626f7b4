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
use conformance::http_client::HttpResponse;
use conformance::suite::serve;
use serde_json::{Value, json};

/// A running backend.
pub(crate) struct Service {
    address: SocketAddr,
    aborted_requests: Arc<AtomicU32>,
}

/// A response through a proxy.
pub(crate) trait ProxyResponse {
    /// Whether it has `Retry-After` and `retry-after-ms`, and both say the same.
    fn has_both_retry_times(&self) -> bool;
    /// The request line that the backend received, if any.
    fn backend_request_line(&self) -> Option<String>;
    /// All values of a header that the backend received.
    fn backend_values(&self, name: &str) -> Vec<String>;
}

impl ProxyResponse for HttpResponse {
    fn has_both_retry_times(&self) -> bool {
        let millis = self.field("retry-after-ms").map(|millis| millis.parse::<u64>().unwrap());
        millis.is_some_and(|millis| self.retry_after() == Some(millis.div_ceil(1_000)))
    }

    fn backend_request_line(&self) -> Option<String> {
        Some(serde_json::from_slice::<Value>(&self.body).ok()?["request_line"].as_str()?.to_owned())
    }

    fn backend_values(&self, name: &str) -> Vec<String> {
        let seen = self.json();
        let fields = seen["fields"].as_array().unwrap_or_else(|| panic!("not a response of the backend: {self:?}"));
        let of_name = fields.iter().filter(|field| field[0] == name);
        of_name.map(|field| field[1].as_str().unwrap().to_owned()).collect()
    }
}

impl Service {
    /// Starts a backend on a free port.
    pub(crate) async fn start() -> Self {
        let aborted_requests = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&aborted_requests);
        let break_off = async move || -> StatusCode {
            count.fetch_add(1, Ordering::Relaxed);
            // Closes the connection without a panic message that would look like a failed test.
            resume_unwind(Box::new("broken off"))
        };
        let refuse = async |Path(status): Path<u16>, request: Request| {
            (StatusCode::from_u16(status).unwrap(), echo(request).await)
        };
        let pages =
            Router::new().route("/broken-off", any(break_off)).route("/status/{status}", any(refuse)).fallback(echo);
        Self { address: serve(pages).await, aborted_requests }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The number of requests for `/broken-off`, which are never answered.
    pub(crate) fn aborted_requests(&self) -> u32 {
        self.aborted_requests.load(Ordering::Relaxed)
    }
}

async fn echo(request: Request) -> Json<Value> {
    let (head, body) = request.into_parts();
    let body: Bytes = to_bytes(body, 65_536).await.unwrap();
    let fields: Vec<_> =
        head.headers.iter().map(|(name, value)| [name.as_str(), value.to_str().unwrap_or_default()]).collect();
    Json(json!({
        "request_line": format!("{} {}", head.method, head.uri),
        "fields": fields,
        "body": String::from_utf8_lossy(&body),
    }))
}
