//! `Listener`: one address of a server. It takes connections, over TLS if there is a certificate, bounds what each may take and
//! how long it may wait, and ends in good order. What a request means is the business of the service behind it.
//!
//! ```text
//! accept ──▶ TLS ──▶ Wire (bytes, watched) ──▶ HTTP/1.1 or HTTP/2 ──▶ service
//! ```

mod connection;
mod heads;
mod limits;
pub use limits::ConnectionLimits;
mod tasks;
mod tls;
pub use tls::{Tls, TlsError, TlsFiles};
mod wire;

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

use connection::{Client, Door, connection};
pub(crate) use connection::{Place, Secure};
pub(crate) use tasks::{Starter, Tasks};
pub(crate) use wire::wait;

/// How long no connection is taken after one could not be, such as when there are too many open files.
const BREATHER: Duration = Duration::from_millis(100);

/// One address, and what a connection to it may do.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    tls: Option<Tls>,
    limits: ConnectionLimits,
    tells_client: bool,
    gathers: bool,
}

impl Listener {
    /// Binds an address; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self::from)
    }

    /// Speaks TLS.
    pub fn tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Bounds connections by these instead of the [usual](ConnectionLimits::new) limits.
    pub const fn limits(mut self, limits: ConnectionLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Lets every request say whom it is from: the address as an extension of it, and [`Secure`] if it came over TLS.
    pub(crate) const fn tells_client(mut self) -> Self {
        self.tells_client = true;
        self
    }

    /// Lets answers that are ready at the same time leave together, for many calls at a time on one connection.
    pub(crate) const fn gathers(mut self) -> Self {
        self.gathers = true;
        self
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Takes connections until `shutdown`, then none any more. Requests that are under way, and tasks that they started, may
    /// end, within [`ConnectionLimits::drain_timeout`]. Whether all of them did.
    pub(crate) async fn serve<S, B>(self, service: S, tasks: Tasks, shutdown: impl Future<Output = ()> + Send) -> bool
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
        S::Future: Send,
        B: Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (graceful, ending) = (GracefulShutdown::new(), watch::Sender::new(()));
        let places = Arc::new(Semaphore::new(self.limits.max_connections));
        let is_secure = self.tls.is_some();
        let door = Arc::new(Door::new(service, &self));
        let starter = tasks.starter();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                accepted = accept(&self.tcp, &places) => accepted,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok((stream, peer, place)) => {
                    let client = Client::new(peer, place, is_secure);
                    starter.start(connection(
                        Arc::clone(&door),
                        stream,
                        client,
                        graceful.watcher(),
                        ending.subscribe(),
                    ));
                }
                Err(error) if is_about_one(&error) => (),
                Err(_) => {
                    if tokio::time::timeout(BREATHER, &mut shutdown).await.is_ok() {
                        break;
                    }
                }
            }
        }
        drop(self.tcp);
        ending.send_replace(());
        let drained = async {
            graceful.shutdown().await;
            tasks.ended().await;
        };
        // What has not ended by then ends with `tasks`.
        tokio::time::timeout(self.limits.drain_timeout, drained).await.is_ok()
    }
}

impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self { tcp, tls: None, limits: ConnectionLimits::new(), tells_client: false, gathers: false }
    }
}

/// The next connection, once there is a place for it. Until then, those who come wait in the queue of the system.
async fn accept(
    tcp: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = tcp.accept().await?;
    Ok((stream, peer, place))
}

/// Whether an error is about the connection that was to be taken, and not about taking any.
fn is_about_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
