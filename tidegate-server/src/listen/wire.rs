//! `Wire`: the bytes of one connection. On the way in it looks for requests that can be read in two ways, on the way out for a
//! client that takes nothing any more. It changes none of them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::heads::Heads;

/// The bytes of one connection.
pub(super) struct Wire<T> {
    stream: T,
    heads: Heads,
    ambiguous: Ambiguous,
    write_timeout: Duration,
    /// Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// Which request of a connection can be read in two ways, if any.
#[derive(Clone, Default)]
pub(super) struct Ambiguous(Arc<AtomicU64>);

impl Ambiguous {
    /// Whether it is the one with this number, counted from one.
    pub(super) fn is(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) == number
    }
}

impl<T> Wire<T> {
    pub(super) fn new(stream: T, write_timeout: Duration) -> Self {
        Self { stream, heads: Heads::default(), ambiguous: Ambiguous::default(), write_timeout, stalled: None }
    }

    pub(super) fn ambiguous(&self) -> Ambiguous {
        self.ambiguous.clone()
    }

    /// An error in place of waiting, if the client has taken nothing for too long.
    fn patient<R>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let timeout = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(wait(timeout)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Wire<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(number) = self.heads.read(&buffer.filled()[before..]) {
            self.ambiguous.0.store(number, Ordering::Relaxed);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Wire<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patient(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.patient(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.patient(context, polled)
    }

    // Not in parts: HTTP/2 would hand over a frame of 256 bytes or more apart from its head, and each would be a call to the
    // system of its own (`tidegate bench rls`: a fifth of the time of an answer).
    fn is_write_vectored(&self) -> bool {
        false
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a limit on connections runs by the runtime's own time, as those of hyper do"
)]
fn wait(timeout: Duration) -> Sleep {
    tokio::time::sleep(timeout)
}
