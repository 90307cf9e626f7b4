//! `GuardedStream`: the byte stream of one connection. It looks for ambiguous requests in what it reads, and ends a connection
//! whose client reads too slowly. It changes no bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::client_body::Lingering;
use super::listener_stats::{Bound, ListenerStats};
use super::pace::Pace;
use super::smuggling_guard::SmugglingGuard;
use super::unsent_responses::UnsentResponses;

/// The most bytes that are read and dropped after a connection has ended.
const MAX_LINGER_BYTES: usize = 16 * 1024 * 1024;

/// The most time for these bytes.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// The byte stream of one connection.
pub(super) struct GuardedStream<T> {
    stream: T,
    guard: SmugglingGuard,
    ambiguous: AmbiguousRequest,
    pace: Pace,
    /// Runs from the first write that the client holds up until nothing waits for it any more. Each byte prolongs it.
    write_timer: Option<Pin<Box<Sleep>>>,
    batching: WriteBatching,
    /// Set if requests are under way until their responses are sent.
    unsent: Option<Arc<UnsentResponses>>,
    lingering: Lingering,
    /// Set once everything is written, and the client may still be sending.
    linger: Option<Linger>,
    stats: Arc<ListenerStats>,
}

/// Whether a write first yields to the other runnable tasks, so that one system call carries their responses too. For
/// connections with many concurrent calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteBatching {
    /// Writes at once.
    Off,
    /// The next write yields first.
    Yield,
    /// The write has yielded; everything is written until the next flush.
    Write,
}

/// Reads what a client still sends, so that its connection is not reset before it has read the response.
struct Linger {
    bytes_left: usize,
    timer: Pin<Box<Sleep>>,
}

/// The number of the ambiguous request of a connection, if there is one.
#[derive(Clone, Default)]
pub(super) struct AmbiguousRequest(Arc<AtomicU64>);

impl AmbiguousRequest {
    /// Whether the ambiguous request has this number, counted from one.
    pub(super) fn is_number(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) == number
    }
}

impl<T> GuardedStream<T> {
    pub(super) fn new(stream: T, pace: Pace, batches_writes: bool, stats: Arc<ListenerStats>) -> Self {
        let batching = if batches_writes { WriteBatching::Yield } else { WriteBatching::Off };
        Self {
            stream,
            guard: SmugglingGuard::default(),
            ambiguous: AmbiguousRequest::default(),
            pace,
            write_timer: None,
            batching,
            unsent: None,
            lingering: Lingering::default(),
            linger: None,
            stats,
        }
    }

    /// Ends the requests whose responses are sent.
    pub(super) fn with_unsent_responses(mut self, unsent: Arc<UnsentResponses>) -> Self {
        self.unsent = Some(unsent);
        self
    }

    pub(super) fn ambiguous_request(&self) -> AmbiguousRequest {
        self.ambiguous.clone()
    }

    /// Whether the connection lingers at its end.
    pub(super) const fn lingering(&self) -> &Lingering {
        &self.lingering
    }

    /// Turns `Pending` into a `TimedOut` error once bytes have waited for the client for too long.
    fn apply_write_timeout<R>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            return polled;
        }
        let timeout = self.pace.timeout();
        let write_timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        match write_timer.as_mut().poll(context) {
            Poll::Ready(()) => {
                self.stats.count(Bound::SlowReader);
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Prolongs the timer by the time that `bytes` make up for, but not beyond the whole timeout.
    fn prolong_write_timer(&mut self, bytes: usize) {
        if let Some(timer) = &mut self.write_timer {
            let latest = sleep(self.pace.timeout()).deadline();
            let prolonged = timer.deadline().checked_add(self.pace.time_for(bytes as u64));
            timer.as_mut().reset(prolonged.map_or(latest, |deadline| deadline.min(latest)));
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for GuardedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(number) = self.guard.read(&buffer.filled()[before..]) {
            self.ambiguous.0.store(number, Ordering::Relaxed);
        }
        polled
    }
}

impl<T: AsyncRead + Unpin> GuardedStream<T> {
    /// Reads until the client closes the connection, or a bound.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let linger = self
            .linger
            .get_or_insert_with(|| Linger { bytes_left: MAX_LINGER_BYTES, timer: Box::pin(sleep(LINGER_TIMEOUT)) });
        let mut bytes = [0; 8192];
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(context, &mut buffer) else {
                return linger.timer.as_mut().poll(context);
            };
            let length = buffer.filled().len();
            match linger.bytes_left.checked_sub(length) {
                Some(bytes_left) if result.is_ok() && length > 0 => linger.bytes_left = bytes_left,
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GuardedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.batching == WriteBatching::Yield {
            self.batching = WriteBatching::Write;
            // A task that wakes itself is polled again after all other runnable tasks.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.prolong_write_timer(written);
        }
        self.apply_write_timeout(context, polled)
    }

    /// hyper flushes once it has written all of its bytes.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if polled.is_ready() {
            self.write_timer = None;
            if let Some(unsent) = &self.unsent {
                unsent.report_flush();
            }
            if self.batching == WriteBatching::Write {
                self.batching = WriteBatching::Yield;
            }
        }
        self.apply_write_timeout(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let polled = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.apply_write_timeout(context, polled))?;
            if !self.lingering.is_set() {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_linger(context).map(Ok)
    }

    // With vectored writes, hyper passes HTTP/2 frames from 256 bytes on apart from their header, in a system call each
    // (`tidegate-lab bench rls`: a fifth of the time of a response).
    fn is_write_vectored(&self) -> bool {
        false
    }
}

/// A timer that bounds how long a client may take.
#[allow(clippy::disallowed_methods, reason = "timeouts of clients run by tokio's clock, as hyper's do")]
pub(crate) fn sleep(timeout: Duration) -> Sleep {
    tokio::time::sleep(timeout)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use super::*;

    const PACE: Pace = Pace::new(Duration::from_mins(1), 1024);

    /// Counts its wake-ups.
    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes at most three bytes at a time.
    #[derive(Default)]
    struct SlowWriter(Vec<u8>);

    impl AsyncRead for SlowWriter {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for SlowWriter {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let written = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..written]);
            Poll::Ready(Ok(written))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A `Pending` without a wake-up would stall the connection until its timeout.
    #[test]
    fn a_batching_stream_yields_and_wakes_its_task_once_per_flush() {
        let wake_count = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&wake_count));
        let mut context = Context::from_waker(&waker);
        let mut stream = GuardedStream::new(SlowWriter::default(), PACE, true, Arc::default());
        for round in 1..=3 {
            assert!(Pin::new(&mut stream).poll_write(&mut context, b"abcdef").is_pending());
            assert_eq!((wake_count.0.load(Ordering::Relaxed), stream.write_timer.is_none()), (round, true));
            for part in [&b"abcdef"[..], b"def"] {
                assert!(matches!(Pin::new(&mut stream).poll_write(&mut context, part), Poll::Ready(Ok(3))));
            }
            assert!(Pin::new(&mut stream).poll_flush(&mut context).is_ready());
        }
        assert_eq!(stream.stream.0, b"abcdefabcdefabcdef");
        let mut stream = GuardedStream::new(SlowWriter::default(), PACE, false, Arc::default());
        assert!(Pin::new(&mut stream).poll_write(&mut context, b"abc").is_ready());
        assert_eq!(wake_count.0.load(Ordering::Relaxed), 3, "without batching, a write does not yield");
    }
}
