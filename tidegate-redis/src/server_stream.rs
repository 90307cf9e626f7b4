//! `ServerStream`: the bytes to and from one server, over TCP, TLS or a Unix socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::select_ok;
use redis::{ConnectionAddr, ErrorKind, RedisError, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use crate::tls::TrustedCertificates;

/// The bytes to and from one server.
pub(crate) enum ServerStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    /// To a server that exists only in the simulation.
    #[cfg(test)]
    Simulated(tokio::io::DuplexStream),
}

impl ServerStream {
    /// Opens a stream to `address`. A host name is resolved each time, and the first of its addresses that answers is used.
    pub(crate) async fn open(address: &ConnectionAddr, trusted: &TrustedCertificates) -> RedisResult<Self> {
        match address {
            ConnectionAddr::Tcp(host, port) => connect_tcp(host, *port).await.map(Self::Tcp),
            ConnectionAddr::TcpTls { host, port, .. } => {
                let stream = connect_tcp(host, *port).await?;
                Ok(Self::Tls(Box::new(trusted.connect(host, stream).await?)))
            }
            ConnectionAddr::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
            _ => Err(RedisError::from((ErrorKind::InvalidClientConfig, "an unknown kind of address"))),
        }
    }
}

async fn connect_tcp(host: &str, port: u16) -> RedisResult<TcpStream> {
    let addresses = tokio::net::lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(io::Error::other("failed to lookup address information: no address").into());
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            #[cfg(test)]
            Self::Simulated(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(test)]
            Self::Simulated(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(test)]
            Self::Simulated(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(test)]
            Self::Simulated(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
