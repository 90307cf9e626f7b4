//! A rate limit service that says yes at once: the least that any server of this kind costs. It reads the request, since
//! every such server does, and decides nothing.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_server::command::{Exit, Failure, Output};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

struct Nothing;

/// Serves on a free port until the process is told to end.
pub(crate) fn run(output: &mut Output<'_>) -> Result<Exit, Failure> {
    // The runtime of `tidegate serve`, so that only what is served differs.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("no runtime can be started: {error}")))?;
    let served: std::io::Result<()> = runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        output.info(format!("Envoy RLS  {} (gRPC)", listener.local_addr()?));
        let router = Server::builder().add_service(RateLimitServiceServer::new(Nothing));
        router
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await
            .map_err(std::io::Error::other)
    });
    served.map_err(|error| Failure::usage(format!("nothing can be served: {error}")))?;
    Ok(Exit::Success)
}

#[tonic::async_trait]
impl RateLimitService for Nothing {
    async fn should_rate_limit(&self, _: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() }))
    }
}
