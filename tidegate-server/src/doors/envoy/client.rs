//! `RateLimitClient`: calls the rate limit service like Envoy does, for tests and measurements.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::{IntoRequest, Response, Status};
use tonic_prost::ProstCodec;

use super::grpc_server::SHOULD_RATE_LIMIT_PATH;
use super::messages::{RateLimitRequest, RateLimitResponse};

/// A client of the rate limit service, such as `RateLimitClient::new(channel)` with a `tonic::transport::Channel`.
#[derive(Clone, Debug)]
pub struct RateLimitClient<C>(Grpc<C>);

impl<C> RateLimitClient<C>
where
    C: GrpcService<Body>,
    C::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <C::ResponseBody as HttpBody>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    /// A client that sends its calls through `channel`.
    pub fn new(channel: C) -> Self {
        Self(Grpc::new(channel))
    }

    /// Asks whether a request is within its limits.
    pub async fn should_rate_limit(
        &mut self,
        request: impl IntoRequest<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let is_ready = self.0.ready().await;
        is_ready.map_err(|error| Status::unavailable(format!("the channel is not ready: {}", error.into())))?;
        let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT_PATH);
        self.0.unary(request.into_request(), path, ProstCodec::default()).await
    }
}
