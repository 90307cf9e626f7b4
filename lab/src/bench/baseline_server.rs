//! The baseline for the rate limit service: a gRPC server that decodes each request, as any such server must, and answers OK
//! without deciding anything.

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

use crate::traffic::runtime_failure;

struct BaselineService;

/// Serves on a free port until the process is stopped.
pub(crate) fn run(output: &mut Output<'_>) -> Result<Exit, Failure> {
    // The same runtime as `tidegate serve`, so that only the service differs.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| runtime_failure(&error))?;
    let result: std::io::Result<()> = runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        output.line(format!("Envoy RLS  {} (gRPC)", listener.local_addr()?));
        let router = Server::builder().add_service(RateLimitServiceServer::new(BaselineService));
        router
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await
            .map_err(std::io::Error::other)
    });
    result.map_err(|error| Failure::usage(format!("the baseline server failed: {error}")))?;
    Ok(Exit::Success)
}

#[tonic::async_trait]
impl RateLimitService for BaselineService {
    async fn should_rate_limit(&self, _: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() }))
    }
}
