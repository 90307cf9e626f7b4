//! The gRPC address: Envoy's rate limit service, and the health service beside it.

use axum::Router;
use tonic::service::Routes;
use tonic_health::ServingStatus;

use super::watched::Watched;
use crate::envoy::RateLimits;

/// The services. Once `stopped`, the health service says so, for those who have not noticed.
pub(crate) async fn router(limits: RateLimits<Watched>, stopped: impl Future<Output = ()> + Send + 'static) -> Router {
    let (health, service) = tonic_health::server::health_reporter();
    health.set_service_status("", ServingStatus::Serving).await;
    tokio::spawn(async move {
        stopped.await;
        health.set_service_status("", ServingStatus::NotServing).await;
    });
    Routes::new(service).add_service(limits.into_server()).prepare().into_axum_router()
}
