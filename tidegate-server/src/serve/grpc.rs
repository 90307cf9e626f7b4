//! The gRPC address: Envoy's rate limit service, and the health service beside it. What they say is theirs.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::bounds::{self, Within};
use super::watched::Watched;
use crate::envoy::{EnvoyService, GrpcFuture, GrpcServer, unimplemented};

/// The services, found by the path of a call without anything in between.
pub(crate) struct Services<H> {
    limits: GrpcServer<Watched>,
    health: HealthServer<H>,
    timeout: Duration,
}

/// The services, each call of which has so much time. Once `stopped`, the health service says so, for those who have not
/// noticed.
pub(crate) async fn services(
    limits: EnvoyService<Watched>,
    timeout: Duration,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Services<impl Health> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", ServingStatus::Serving).await;
    tokio::spawn(async move {
        stopped.await;
        reporter.set_service_status("", ServingStatus::NotServing).await;
    });
    Services { limits: GrpcServer::new(limits), health, timeout }
}

impl<H: Health> Service<Request<Incoming>> for Services<H> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Within<GrpcFuture>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        use tower_service::Service;
        let path = request.uri().path();
        let call = if path == GrpcServer::<Watched>::PATH {
            self.limits.call(request)
        } else if service(path) == Some(HealthServer::<H>::NAME) {
            self.health.clone().call(request)
        } else {
            unimplemented()
        };
        bounds::grpc(call, self.timeout)
    }
}

/// The service in `/package.Service/Method`.
fn service(path: &str) -> Option<&str> {
    Some(path.strip_prefix('/')?.split_once('/')?.0)
}
