//! The gRPC address: Envoy's rate limit service, and the health service beside it.

use std::future::Future;
use std::io;

use tokio::net::TcpListener;
use tonic::codegen::tokio_stream::StreamExt;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::watched::Watched;
use super::whole::Whole;
use crate::envoy::RateLimits;

pub(crate) async fn serve(
    listener: TcpListener,
    limits: RateLimits<Watched>,
    stopped: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let (health, service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let router = Server::builder().add_service(service).add_service(limits.into_server());
    // An answer may leave in two pieces; the second must not wait until the first is acknowledged.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).map(|accepted| accepted.map(Whole));
    router.serve_with_incoming_shutdown(incoming, stopped).await.map_err(io::Error::other)
}
