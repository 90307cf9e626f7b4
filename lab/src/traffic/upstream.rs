//! `Upstream`: the service behind the gateways. It answers every request with one line, on the thread or the runtime of the load.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::task::JoinSet;

/// The body of every response.
pub(crate) const RESPONSE_BODY: &[u8] = b"the tide is in\n";

/// More requests than ever wait on one connection.
const MAX_STREAMS: u32 = 1_000_000;

/// A bound listener; it exists before the runtime does.
pub(crate) struct Upstream(TcpListener);

impl Upstream {
    pub(crate) fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves until accepting fails. `observe` gets every request.
    pub(crate) async fn serve(self, observe: impl Fn(&HeaderMap) + Clone + Send + 'static) -> io::Result<()> {
        self.respond_with(move |request| {
            observe(request.headers());
            ready(Response::new(Full::new(Bytes::from_static(RESPONSE_BODY))))
        })
        .await
    }

    /// Serves HTTP/1.1 and HTTP/2 with these responses. Dropping the future closes all connections.
    pub(crate) async fn respond_with<F>(
        self,
        respond: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    ) -> io::Result<()>
    where
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let listener = tokio::net::TcpListener::from_std(self.0)?;
        let mut server = auto::Builder::new(TokioExecutor::new());
        server.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
        let mut connections = JoinSet::new();
        loop {
            // Accepting fails only if the system runs out of something; the clients then report errors.
            let Ok((stream, _)) = listener.accept().await else { continue };
            // Failing to set it costs speed only.
            let _ = stream.set_nodelay(true);
            let (server, respond) = (server.clone(), respond.clone());
            let service = service_fn(move |request| respond(request).map(Ok::<_, Infallible>));
            // An error means that the client has disconnected.
            connections.spawn(async move { drop(server.serve_connection(TokioIo::new(stream), service).await) });
            while connections.try_join_next().is_some() {}
        }
    }
}
