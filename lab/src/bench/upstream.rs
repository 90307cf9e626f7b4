//! The service behind the gateways: it answers every request with one line, on the CPU core of the load.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use http::{Request, Response};
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

    /// Serves until accepting fails.
    pub(crate) async fn serve(self) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.0)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond)));
        }
    }
}

async fn respond(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(RESPONSE_BODY))))
}
