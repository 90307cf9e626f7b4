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
    gathering: Gathering,
}

/// Whether a write lets the other tasks that could run go first, so that what they have to say goes out with it. A client with
/// many calls under way on one connection gets their answers by the dozen, and each call to the system carries as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gathering {
    /// Everything goes out at once.
    Never,
    /// The next write lets them go first.
    Next,
    /// They have gone, and all goes out until the next flush.
    Done,
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
    pub(super) fn new(stream: T, write_timeout: Duration, gathers: bool) -> Self {
        let gathering = if gathers { Gathering::Next } else { Gathering::Never };
        Self {
            stream,
            heads: Heads::default(),
            ambiguous: Ambiguous::default(),
            write_timeout,
            stalled: None,
            gathering,
        }
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
        if self.gathering == Gathering::Next {
            self.gathering = Gathering::Done;
            // Whoever wakes itself is asked again after all others.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patient(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if polled.is_ready() && self.gathering == Gathering::Done {
            self.gathering = Gathering::Next;
        }
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

/// Waits, to bound how long a client may take.
#[allow(clippy::disallowed_methods, reason = "a limit on clients runs by the runtime's own time, as those of hyper do")]
pub(crate) fn wait(timeout: Duration) -> Sleep {
    tokio::time::sleep(timeout)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes at most three bytes at a time.
    #[derive(Default)]
    struct Slow(Vec<u8>);

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..taken]);
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Trap: who says that it waits and wakes nobody is never asked again, and a timeout that runs then ends the connection.
    #[test]
    fn a_wire_that_gathers_asks_to_be_asked_again_once_for_each_flush() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut wire = Wire::new(Slow::default(), Duration::from_secs(60), true);
        for round in 1..=3 {
            assert!(Pin::new(&mut wire).poll_write(&mut context, b"abcdef").is_pending());
            assert_eq!((woken.0.load(Ordering::Relaxed), wire.stalled.is_none()), (round, true));
            for part in [&b"abcdef"[..], b"def"] {
                assert!(matches!(Pin::new(&mut wire).poll_write(&mut context, part), Poll::Ready(Ok(3))));
            }
            assert!(Pin::new(&mut wire).poll_flush(&mut context).is_ready());
        }
        assert_eq!(wire.stream.0, b"abcdefabcdefabcdef");
        let mut wire = Wire::new(Slow::default(), Duration::from_secs(60), false);
        assert!(Pin::new(&mut wire).poll_write(&mut context, b"abc").is_ready());
        assert_eq!(woken.0.load(Ordering::Relaxed), 3, "no other wire waits");
    }
}
