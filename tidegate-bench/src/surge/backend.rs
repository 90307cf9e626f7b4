//! `Backend`: the ride-hailing service behind the gateways, over HTTP/2, so that any number of requests can wait in it. It knows
//! no limits but what its parts can do.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate::Timer;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::endpoint::Endpoint;
use super::index::Index;
use super::matching::Matching;

/// More than ever wait on one connection.
const STREAMS: u32 = 1_000_000;

/// A service that runs until it is dropped.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    pub(crate) parts: Arc<Parts>,
    running: JoinSet<()>,
}

/// What the service is made of.
pub(crate) struct Parts {
    pub(crate) matching: Arc<Matching>,
    pub(crate) index: Index,
    asked: [AtomicU64; Endpoint::ALL.len()],
    timer: Arc<dyn Timer>,
}

impl Backend {
    pub(crate) async fn start(seed: u64, timer: Arc<dyn Timer>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let parts = Arc::new(Parts {
            matching: Arc::new(Matching::new(seed, Arc::clone(&timer))),
            index: Index::new(Arc::clone(&timer)),
            asked: Default::default(),
            timer,
        });
        let mut running = JoinSet::new();
        running.spawn(accept(listener, Arc::clone(&parts)));
        Ok(Self { address, parts, running })
    }

    /// Ends in the middle of everything, as a process that is killed.
    pub(crate) fn die(&mut self) {
        self.parts.matching.close();
        self.running.abort_all();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.die();
    }
}

impl Parts {
    /// How many requests arrived for an endpoint.
    pub(crate) fn asked(&self, endpoint: Endpoint) -> u64 {
        self.asked[endpoint as usize].load(Ordering::Relaxed)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let Some(endpoint) = Endpoint::at(request.uri().path()) else {
            return said(StatusCode::NOT_FOUND, "there is nothing here");
        };
        self.asked[endpoint as usize].fetch_add(1, Ordering::Relaxed);
        // Whoever does not send all of it has left.
        let _ = request.into_body().collect().await;
        let (done, answer) = match endpoint {
            Endpoint::Ride => (self.matching.matched().await, "a driver is on the way"),
            Endpoint::Location => (self.index.write().await, "noted"),
            Endpoint::Fare => (self.think(5).await, "12.40"),
            Endpoint::Nearby => (self.think(3).await, "three drivers"),
            Endpoint::History => (self.think(8).await, "no trips yet"),
            Endpoint::Stats => (self.think(8).await, "it is busy"),
        };
        if done { said(StatusCode::OK, answer) } else { said(StatusCode::SERVICE_UNAVAILABLE, "too many wait") }
    }

    /// What is no trouble takes a few milliseconds.
    async fn think(&self, millis: u64) -> bool {
        self.timer.sleep(Duration::from_millis(millis)).await;
        true
    }
}

async fn accept(listener: TcpListener, parts: Arc<Parts>) {
    let mut connections = JoinSet::new();
    loop {
        // Only the system can fail here, and then the gateways tell.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        connections.spawn(serve(stream, Arc::clone(&parts)));
    }
}

async fn serve(stream: TcpStream, parts: Arc<Parts>) {
    let answer = service_fn(move |request| {
        let parts = Arc::clone(&parts);
        async move { Ok::<_, Infallible>(parts.answer(request).await) }
    });
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
    // A gateway that leaves has its reasons.
    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
}

fn said(status: StatusCode, words: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(words.as_bytes())));
    *response.status_mut() = status;
    response
}
