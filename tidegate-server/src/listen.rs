//! `Listener`: one address of a server. It accepts connections, optionally over TLS, bounds their number, sizes and times, and
//! drains them on shutdown. It knows nothing about limits or requests.
//!
//! ```text
//! accept ──▶ TLS ──▶ GuardedStream (smuggling, write timeout) ──▶ HTTP/1.1 or HTTP/2 ──▶ service
//! ```

mod connection;
mod guarded_stream;
mod limits;
pub use limits::ConnectionLimits;
mod smuggling_guard;
mod tasks;
mod tls;
pub use tls::{Tls, TlsError, TlsFiles};

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use connection::{ClientInfo, ConnectionConfig, serve_connection};
pub(crate) use connection::{ConnectionPermit, OverTls};
pub(crate) use guarded_stream::sleep;
pub(crate) use tasks::{TaskSpawner, Tasks};

/// Pause after a failed accept, for example when too many files are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// One bound address, with the bounds of its connections.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    tls: Option<Tls>,
    limits: ConnectionLimits,
    passes_client_info: bool,
    batches_writes: bool,
}

impl Listener {
    /// Binds an address; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self::from)
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

    /// Adds to each request, as extensions, the client's `SocketAddr`, its [`ConnectionPermit`], and [`OverTls`] for TLS.
    pub(crate) const fn with_client_info(mut self) -> Self {
        self.passes_client_info = true;
        self
    }

    /// Writes responses that become ready together in one system call. For many concurrent calls on one connection.
    pub(crate) const fn with_write_batching(mut self) -> Self {
        self.batches_writes = true;
        self
    }

    /// The bound address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Accepts connections until `shutdown` completes, then waits up to [`ConnectionLimits::drain_timeout`] for open requests
    /// and the tasks they spawned. Returns whether all of them finished.
    pub(crate) async fn serve<S, B>(self, service: S, tasks: Tasks, shutdown: impl Future<Output = ()> + Send) -> bool
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
        S::Future: Send,
        B: Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (graceful, shutting_down) = (GracefulShutdown::new(), watch::Sender::new(()));
        let permits = Arc::new(Semaphore::new(self.limits.max_connections));
        let is_tls = self.tls.is_some();
        let config = Arc::new(ConnectionConfig::new(service, &self));
        let spawner = tasks.spawner();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                accepted = accept(&self.tcp, &permits) => accepted,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok((stream, peer, permit)) => {
                    let client = ClientInfo::new(peer, permit, is_tls);
                    spawner.spawn(serve_connection(
                        Arc::clone(&config),
                        stream,
                        client,
                        graceful.watcher(),
                        shutting_down.subscribe(),
                    ));
                }
                Err(error) if is_connection_error(&error) => (),
                Err(_) => {
                    if tokio::time::timeout(ACCEPT_RETRY_DELAY, &mut shutdown).await.is_ok() {
                        break;
                    }
                }
            }
        }
        drop(self.tcp);
        shutting_down.send_replace(());
        let drain = async {
            graceful.shutdown().await;
            tasks.wait_all().await;
        };
        // Dropping `tasks` aborts those that are left.
        tokio::time::timeout(self.limits.drain_timeout, drain).await.is_ok()
    }
}

impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self { tcp, tls: None, limits: ConnectionLimits::new(), passes_client_info: false, batches_writes: false }
    }
}

/// Accepts the next connection once a permit is free. Until then, clients wait in the accept queue of the system.
async fn accept(
    tcp: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = tcp.accept().await?;
    Ok((stream, peer, permit))
}

/// Whether an accept failed because of the one connection, not because of the listener.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
