//! `Upstream`: the service behind the gateways. It answers every request with one line, on the thread or the runtime of the load.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

/// The body of every response.
pub(crate) const RESPONSE_BODY: &[u8] = b"the tide is in\n";

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
        let listener = tokio::net::TcpListener::from_std(self.0)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let observe = observe.clone();
            let respond = service_fn(move |request: Request<Incoming>| {
                observe(request.headers());
                ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(RESPONSE_BODY)))))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), respond));
        }
    }
}
