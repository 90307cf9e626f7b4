//! The gRPC address: Envoy's rate limit service and the health service.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use hyper::service::Service;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::calls::large_bodies::LargeBodies;
use crate::calls::request_limits::{self, TimedCall};
use crate::doors::envoy::{EnvoyService, GrpcFuture, GrpcServer, SHOULD_RATE_LIMIT_PATH, unimplemented};
use crate::engine::instrumented_store::InstrumentedStore;
use crate::listen::ClientBody;

/// The services, dispatched by the path of a call.
pub(crate) struct Services<H> {
    limits: GrpcServer<InstrumentedStore>,
    health: HealthServer<H>,
    timeout: Duration,
    large_bodies: LargeBodies,
}

/// The services that health is reported for: the server as a whole, and the name that Envoy's reference server reports.
const HEALTH_NAMES: [&str; 2] = ["", "ratelimit"];

/// The services, with a timeout for each call. Once `stopped` completes, the health service reports `NOT_SERVING`.
pub(crate) async fn services(
    limits: EnvoyService<InstrumentedStore>,
    timeout: Duration,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Services<impl Health> {
    let (reporter, health) = tonic_health::server::health_reporter();
    for name in HEALTH_NAMES {
        reporter.set_service_status(name, ServingStatus::Serving).await;
    }
    tokio::spawn(async move {
        stopped.await;
        for name in HEALTH_NAMES {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
    });
    Services { limits: GrpcServer::new(limits), health, timeout, large_bodies: LargeBodies::new() }
}

impl<H: Health> Service<Request<ClientBody>> for Services<H> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = TimedCall<GrpcFuture>;

    fn call(&self, request: Request<ClientBody>) -> Self::Future {
        use tower_service::Service;
        let request = request.map(|body| self.large_bodies.watch(body, None));
        let path = request.uri().path();
        let call = if path == SHOULD_RATE_LIMIT_PATH {
            self.limits.decide(request)
        } else if service(path) == Some(HealthServer::<H>::NAME) {
            self.health.clone().call(request)
        } else {
            unimplemented()
        };
        request_limits::grpc(call, self.timeout)
    }
}

/// The service in `/package.Service/Method`.
fn service(path: &str) -> Option<&str> {
    Some(path.strip_prefix('/')?.split_once('/')?.0)
}
