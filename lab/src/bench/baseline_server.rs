//! The baseline for the rate limit service: a gRPC server that decodes each request, as any such server must, and answers OK
//! without deciding anything.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_server::command::{Exit, Failure, Output};
use tidegate_server::envoy::messages::{Code, RateLimitRequest, RateLimitResponse};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::traffic;

#[derive(Clone, Copy)]
struct BaselineService;

/// Serves on a free port until the process is stopped.
pub(crate) fn run(output: &mut Output<'_>) -> Result<Exit, Failure> {
    // The same runtime as `tidegate serve`, so that only the service differs.
    let result: std::io::Result<()> = traffic::runtime()?.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        output.line(format!("Envoy RLS  {} (gRPC)", listener.local_addr()?));
        let router = Server::builder().add_service(BaselineService);
        router
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await
            .map_err(std::io::Error::other)
    });
    result.map_err(|error| Failure::usage(format!("the baseline server failed: {error}")))?;
    Ok(Exit::Success)
}

impl NamedService for BaselineService {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<http::Request<Body>> for BaselineService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = *self;
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(service, request).await) })
    }
}

impl UnaryService<RateLimitRequest> for BaselineService {
    type Response = RateLimitResponse;
    type Future = Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, _: Request<RateLimitRequest>) -> Self::Future {
        let response = RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() };
        ready(Ok(Response::new(response)))
    }
}
