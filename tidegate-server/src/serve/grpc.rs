//! The gRPC address: Envoy's rate limit service, and the health service beside it. What they say is theirs.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::bounds::{self, Within};
use super::watched::Watched;
use crate::envoy::{RateLimits, RateLimitsServer};

/// The services, found by the path of a call without anything in between.
pub(crate) struct Services<H> {
    limits: RateLimitsServer<Watched>,
    health: HealthServer<H>,
    timeout: Duration,
}

type Call = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The services, each call of which has so much time. Once `stopped`, the health service says so, for those who have not
/// noticed.
pub(crate) async fn services(
    limits: RateLimits<Watched>,
    timeout: Duration,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Services<impl Health> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", ServingStatus::Serving).await;
    tokio::spawn(async move {
        stopped.await;
        reporter.set_service_status("", ServingStatus::NotServing).await;
    });
    Services { limits: limits.into_server(), health, timeout }
}

impl<H: Health> Service<Request<Incoming>> for Services<H> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Within<Call>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        use tower_service::Service;
        // `/package.Service/Method`
        let service = request.uri().path().get(1..).and_then(|path| path.split_once('/')).map(|(service, _)| service);
        let call: Call = match service {
            Some(RateLimitsServer::<Watched>::NAME) => self.limits.clone().call(request),
            Some(name) if name == HealthServer::<H>::NAME => self.health.clone().call(request),
            _ => Box::pin(ready(Ok(Status::unimplemented("").into_http()))),
        };
        bounds::grpc(call, self.timeout)
    }
}
