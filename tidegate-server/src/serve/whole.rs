//! `Whole`: a connection that is written to from one buffer. It changes no byte.
//!
//! To one that takes several buffers at a time, the HTTP/2 codec hands a body of 256 bytes or more as it is, and what follows
//! in a write of its own: two system calls for an answer of the rate limit service. To one that does not, bodies up to 1024
//! bytes go through the codec's buffer, and all that is ready leaves in one call.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A connection that does not offer to write several buffers at a time.
#[derive(Debug)]
pub(crate) struct Whole<C>(pub(crate) C);

impl<C: AsyncWrite + Unpin> AsyncWrite for Whole<C> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Whole<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<C: Connected> Connected for Whole<C> {
    type ConnectInfo = C::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.0.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_is_written_arrives_and_several_buffers_are_not_asked_for() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut ours = Whole(ours);
        assert!(!ours.is_write_vectored());
        ours.write_all(b"tide").await.unwrap();
        ours.shutdown().await.unwrap();
        let mut came = String::new();
        theirs.read_to_string(&mut came).await.unwrap();
        assert_eq!(came, "tide");
    }
}
