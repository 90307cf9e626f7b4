//! `UpstreamConnector`: opens connections to the upstream, at most a fixed number at a time, idle ones included.
//!
//! [`UpstreamSlots`](super::upstream_slots::UpstreamSlots) bounds the requests. Without this one, the pool could still have more
//! connections than requests: it opens one for a request while another becomes idle.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use super::upstream_tls::UpstreamConnectorTls;

/// Opens connections to the upstream.
#[derive(Clone)]
pub(super) struct UpstreamConnector {
    connector: HttpConnector,
    permits: Arc<Semaphore>,
    timeout: Duration,
    tls: Option<UpstreamConnectorTls>,
}

/// A connection to the upstream.
pub(super) struct UpstreamStream {
    stream: Transport,
    _permit: OwnedSemaphorePermit,
}

/// A connection in the clear, or after its TLS handshake.
enum Transport {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

/// Calls a method of the stream inside.
macro_rules! on_transport {
    ($self:ident, $stream:ident => $call:expr) => {
        match &mut $self.stream {
            Transport::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Transport::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
        }
    };
}

impl UpstreamConnector {
    /// At most `max` connections; each must be open, and its handshake done, after `timeout`.
    pub(super) fn new(max: usize, timeout: Duration, tls: Option<UpstreamConnectorTls>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.enforce_http(tls.is_none());
        Self { connector, permits: Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS))), timeout, tls }
    }
}

impl Service<Uri> for UpstreamConnector {
    type Response = UpstreamStream;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<UpstreamStream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (permits, timeout) = (Arc::clone(&self.permits), self.timeout);
        let (mut connector, tls) = (self.connector.clone(), self.tls.clone());
        Box::pin(async move {
            let connecting = async move {
                // The pool offers a connection that becomes idle to a request that waits here.
                let permit = permits.acquire_owned().await?;
                let stream = connector.call(target).await?;
                let stream = match tls {
                    None => Transport::Plain(stream),
                    Some(tls) => Transport::Tls(Box::new(TokioIo::new(tls.connect(stream.into_inner()).await?))),
                };
                Ok::<_, Box<dyn Error + Send + Sync>>(UpstreamStream { stream, _permit: permit })
            };
            tokio::time::timeout(timeout, connecting).await?
        })
    }
}

impl Connection for UpstreamStream {
    fn connected(&self) -> Connected {
        match &self.stream {
            Transport::Plain(stream) => stream.connected(),
            Transport::Tls(stream) => stream.inner().get_ref().0.connected(),
        }
    }
}

impl Read for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        on_transport!(self, stream => stream.poll_read(context, buffer))
    }
}

impl Write for UpstreamStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_transport!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_transport!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_transport!(self, stream => stream.poll_shutdown(context))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_transport!(self, stream => stream.poll_write_vectored(context, bytes))
    }
}
