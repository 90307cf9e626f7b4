//! `Backend`: the simulated ride-hailing service behind the gateways. They speak HTTP/2 with it, so that any number of requests can wait
//! in it. It has no rate limits.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tidegate::Timer;
use tokio::task::AbortHandle;

use super::endpoint::Endpoint;
use super::matching::Matching;
use super::position_index::PositionIndex;
use crate::traffic::Upstream;

/// A service that runs until this is dropped.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    pub(crate) components: Arc<ServiceComponents>,
    running: AbortHandle,
}

/// What the service consists of.
pub(crate) struct ServiceComponents {
    pub(crate) matching: Arc<Matching>,
    pub(crate) index: PositionIndex,
    request_counts: [AtomicU64; Endpoint::ALL.len()],
    timer: Arc<dyn Timer>,
}

impl Backend {
    /// Starts the service on the runtime of the caller.
    pub(crate) fn start(seed: u64, timer: Arc<dyn Timer>) -> io::Result<Self> {
        let listener = Upstream::bind()?;
        let address = listener.address()?;
        let components = Arc::new(ServiceComponents {
            matching: Arc::new(Matching::new(seed, Arc::clone(&timer))),
            index: PositionIndex::new(Arc::clone(&timer)),
            request_counts: Default::default(),
            timer,
        });
        let responding = Arc::clone(&components);
        let serving = listener.respond_with(move |request| {
            let components = Arc::clone(&responding);
            async move { components.respond(request).await }
        });
        // Accepting fails only if the system runs out of something; the gateways then report errors.
        let running = tokio::spawn(serving).abort_handle();
        Ok(Self { address, components, running })
    }

    /// Stops with requests in flight, like a killed process.
    pub(crate) fn kill(&mut self) {
        self.components.matching.close();
        self.running.abort();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.kill();
    }
}

impl ServiceComponents {
    /// Requests that arrived at an endpoint.
    pub(crate) fn request_count(&self, endpoint: Endpoint) -> u64 {
        self.request_counts[endpoint as usize].load(Ordering::Relaxed)
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let Some(endpoint) = Endpoint::from_path(request.uri().path()) else {
            return response(StatusCode::NOT_FOUND, "no such endpoint");
        };
        self.request_counts[endpoint as usize].fetch_add(1, Ordering::Relaxed);
        // An incomplete body means that the client has disconnected.
        let _ = request.into_body().collect().await;
        let (done, body) = match endpoint {
            Endpoint::Ride => (self.matching.match_rider().await, "a driver is on the way"),
            Endpoint::Location => (self.index.write().await, "noted"),
            Endpoint::Fare => (self.take_millis(5).await, "12.40"),
            Endpoint::Nearby => (self.take_millis(3).await, "three drivers"),
            Endpoint::History => (self.take_millis(8).await, "no trips yet"),
            Endpoint::Stats => (self.take_millis(8).await, "busy"),
        };
        if done { response(StatusCode::OK, body) } else { response(StatusCode::SERVICE_UNAVAILABLE, "overloaded") }
    }

    /// Cheap work: takes a fixed time, whatever the load.
    async fn take_millis(&self, millis: u64) -> bool {
        self.timer.sleep(Duration::from_millis(millis)).await;
        true
    }
}

fn response(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = status;
    response
}
