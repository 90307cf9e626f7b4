//! `Listener`: one address of a server. It accepts connections, optionally over TLS, bounds their number, sizes and times, and
//! drains them on shutdown. It knows nothing about limits.
//!
//! ```text
//! accept ──▶ TLS ──▶ GuardedStream (smuggling, ──▶ HTTP/1.1 or ──▶ ConnectionService (requests under way, ──▶ service
//!  Clients            slow readers)                 HTTP/2          ClientBody, TrackedBody)
//! ```

mod body_memory;
mod client_body;
mod client_stream;
mod clients;
mod connection;
mod connection_service;
mod guarded_stream;
mod limits;
mod listener_stats;
pub use limits::ConnectionLimits;
mod pace;
mod request_bounds;
mod smuggling_guard;
mod tasks;
mod tls;
mod tls_args;
mod tracked_body;
mod unsent_responses;
pub(crate) use tls::certificates;
pub use tls::{Tls, TlsError, TlsFiles};
pub(crate) use tls_args::TlsArgs;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::service::Service;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

pub(crate) use body_memory::{BodyMemory, MemoryPermit, OutOfMemory};
pub(crate) use client_body::ClientBody;
use clients::{CallCount, ClientCounts, PeerAddresses};
pub(crate) use clients::{RequestClient, ResolveClient};
use connection::{ClientInfo, ConnectionConfig, serve_connection};
pub(crate) use connection::{ConnectionPermit, OverTls};
pub(crate) use guarded_stream::sleep;
pub(crate) use listener_stats::{AddressStats, Bound, Gauge, GaugeGuard, ListenerStats};
pub(crate) use pace::Pace;
#[cfg(test)]
pub(crate) use request_bounds::MAX_CALLS;
pub(crate) use request_bounds::{RequestPermit, RequestScope};
pub(crate) use tasks::{TaskSpawner, Tasks};
use tracked_body::ResponseMonitor;

/// Pause after a failed accept, for example when too many files are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Connections that the system keeps until they are accepted, as far as `net.core.somaxconn` allows. With the 128 of the standard
/// library, a burst of connections of one client makes the system drop those of others, which try again after a second.
const ACCEPT_QUEUE_LENGTH: u32 = 4096;

/// Longest interval at which responses are checked for slow readers.
const MAX_MONITOR_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest interval at which they are.
const MIN_MONITOR_INTERVAL: Duration = Duration::from_millis(10);

/// The most requests at a time on one HTTP/2 connection of a client.
const DEFAULT_MAX_STREAMS: u32 = 100;

/// The same for a proxy, which sends the calls of many clients on one connection.
const MAX_STREAMS_OF_PROXY: u32 = 200;

/// One bound address, with the bounds of its connections.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<Tls>,
    limits: ConnectionLimits,
    passes_client_info: bool,
    batches_writes: bool,
    request_scope: Option<RequestScope>,
    max_streams: u32,
    resolver: Arc<dyn ResolveClient>,
    stats: Arc<ListenerStats>,
}

impl Listener {
    /// Binds an address; port 0 takes a free one.
    #[allow(clippy::unused_async, reason = "it must be called in a runtime, as the other ways to bind an address")]
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // As tokio's `bind`: a restarted server need not wait for old connections.
        socket.set_reuseaddr(true)?;
        // Accepted connections inherit it: a tunnel whose client has vanished without a word must end.
        socket.set_keepalive(true)?;
        socket.bind(address)?;
        socket.listen(ACCEPT_QUEUE_LENGTH).map(Self::from)
    }

    /// Accepts TLS connections only.
    pub fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Replaces the [default](ConnectionLimits::new) bounds of connections.
    pub const fn with_limits(mut self, limits: ConnectionLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Adds to each request, as extensions, the client's `SocketAddr`, its [`ConnectionPermit`], [`OverTls`] for TLS, and
    /// [`RequestClient`] if it has a body.
    pub(crate) const fn with_client_info(mut self) -> Self {
        self.passes_client_info = true;
        self
    }

    /// Writes responses that become ready together in one system call. For many concurrent calls on one connection.
    pub(crate) const fn with_write_batching(mut self) -> Self {
        self.batches_writes = true;
        self.max_streams = MAX_STREAMS_OF_PROXY;
        self
    }

    /// Bounds the requests under way.
    pub(crate) const fn with_request_bounds(mut self, scope: RequestScope) -> Self {
        self.request_scope = Some(scope);
        self
    }

    /// Finds clients in another way than by the address of the peer.
    pub(crate) fn with_resolver(mut self, resolver: Arc<dyn ResolveClient>) -> Self {
        self.resolver = resolver;
        self
    }

    /// Counts in `stats`.
    pub(crate) fn with_stats(mut self, stats: Arc<ListenerStats>) -> Self {
        self.stats = stats;
        self
    }

    /// What this listener counts.
    pub(crate) const fn stats(&self) -> &Arc<ListenerStats> {
        &self.stats
    }

    /// The bound address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Accepts connections until `shutdown` completes, then waits up to [`ConnectionLimits::drain_timeout`] for open requests
    /// and the tasks they spawned. Returns whether all of them finished.
    pub(crate) async fn serve<S, B>(self, service: S, tasks: Tasks, shutdown: impl Future<Output = ()> + Send) -> bool
    where
        S: Service<Request<ClientBody>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
        S::Future: Send,
        B: Body<Data = bytes::Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let shutting_down = watch::Sender::new(());
        let permits = Arc::new(Semaphore::new(self.limits.max_connections));
        let clients = ClientCounts::new(self.limits.max_connections_per_client());
        let monitor = ResponseMonitor::new(Pace::from_limits(&self.limits));
        // Dropping it ends the task.
        let mut monitoring = JoinSet::new();
        if self.watches_responses() {
            let interval = self.limits.write_timeout.clamp(MIN_MONITOR_INTERVAL, MAX_MONITOR_INTERVAL);
            monitoring.spawn(watch_responses(Arc::clone(&monitor), interval, Arc::clone(&self.stats)));
        }
        let config = Arc::new(ConnectionConfig::new(service, &self, monitor));
        let spawner = tasks.spawner();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&permits) => accepted,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok((stream, peer, permit)) => {
                    if let Some(client) = self.admit(peer, permit, &clients) {
                        let shutting_down = shutting_down.subscribe();
                        spawner.spawn(serve_connection(Arc::clone(&config), stream, client, shutting_down));
                    }
                }
                Err(error) if is_connection_error(&error) => (),
                Err(error) => {
                    self.stats.count_accept_error(&error);
                    if tokio::time::timeout(ACCEPT_RETRY_DELAY, &mut shutdown).await.is_ok() {
                        break;
                    }
                }
            }
        }
        drop(self.tcp);
        shutting_down.send_replace(());
        // Dropping `tasks` aborts those that are left.
        tokio::time::timeout(self.limits.drain_timeout, tasks.wait_all()).await.is_ok()
    }

    /// Whether HTTP/2 responses that clients do not take are ended. Not those of many concurrent calls on one connection: they are
    /// short, and watching each of them would cost more than they do.
    const fn watches_responses(&self) -> bool {
        self.request_scope.is_some() && !self.batches_writes
    }

    /// Accepts the next connection once a permit is free. Until then, clients wait in the accept queue of the system.
    async fn accept(&self, permits: &Arc<Semaphore>) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let permit = if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            permit
        } else {
            self.stats.count(Bound::MaxConnections);
            Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?
        };
        let (stream, peer) = self.tcp.accept().await?;
        Ok((stream, peer, permit))
    }

    /// The client of a new connection; `None` if it has the maximum of connections.
    fn admit(
        &self,
        peer: SocketAddr,
        permit: OwnedSemaphorePermit,
        clients: &Arc<ClientCounts<CallCount>>,
    ) -> Option<ClientInfo> {
        let address = self.resolver.of_connection(peer.ip());
        let client = match address.map(|address| clients.acquire(address)) {
            None => None,
            Some(Some(client)) => Some(client),
            Some(None) => {
                self.stats.count(Bound::MaxConnectionsPerClient);
                return None;
            }
        };
        let calls = client.as_ref().map(|client| Arc::clone(client.shared()));
        let permit = ConnectionPermit::new(permit, client, self.stats.enter(Gauge::Connections));
        Some(ClientInfo::new(peer, permit, self.tls.is_some(), calls))
    }
}

impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self {
            tcp,
            tls: None,
            limits: ConnectionLimits::new(),
            passes_client_info: false,
            batches_writes: false,
            request_scope: None,
            max_streams: DEFAULT_MAX_STREAMS,
            resolver: Arc::new(PeerAddresses),
            stats: Arc::default(),
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("tcp", &self.tcp).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Ends responses whose clients read too slowly.
async fn watch_responses(monitor: Arc<ResponseMonitor>, interval: Duration, stats: Arc<ListenerStats>) {
    let mut ticks = tokio::time::interval(interval);
    // The time in which the server itself stood still is not the client's.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for _ in 0..monitor.tick(interval) {
            stats.count(Bound::SlowReader);
        }
    }
}

/// Whether an accept failed because of the one connection, not because of the listener.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
