//! `/v1/status`: the front ends, the store with its circuit breakers, the rules and the instances, for `tidegate status`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::calls::health;
use crate::engine::Engine;

/// The addresses of a server, without those that are off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DoorAddresses {
    pub(crate) http: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    pub(crate) gateway: Option<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
}

pub(super) async fn status(State((engine, doors)): State<(Arc<Engine>, DoorAddresses)>) -> Json<Value> {
    let DoorAddresses { http, grpc, gateway, admin } = doors;
    let mut status = health::readiness(&engine).await;
    status["version"] = env!("CARGO_PKG_VERSION").into();
    status["doors"] = json!({ "http": http, "grpc": grpc, "gateway": gateway, "admin": admin });
    status["doors"]["tls"] = engine.has_tls().into();
    Json(status)
}
