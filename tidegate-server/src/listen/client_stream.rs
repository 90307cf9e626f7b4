//! `ClientStream`: the connection of a client, in the clear or after its TLS handshake. One type for both, so that hyper is compiled
//! once for each service and not twice.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// The connection of a client.
pub(super) enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls a method of the stream inside.
macro_rules! on_stream {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            ClientStream::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            ClientStream::Tls(stream) => {
                let $stream = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(context))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write_vectored(context, bytes))
    }
}
