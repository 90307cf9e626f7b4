//! `copy_until_idle`: copies the bytes of a tunnel both ways. A tunnel of which one side has closed ends when the other side is idle.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

/// Copies until both sides have closed, one of them fails, or one has closed and nothing has been written to either for as long as
/// a future of `idle_timer` takes.
pub(super) async fn copy_until_idle<C, U, T>(client: C, upstream: U, idle_timer: impl Fn() -> T)
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
    T: Future<Output = ()>,
{
    let progress = TunnelProgress::default();
    let mut client = TunnelSide { stream: client, progress: &progress };
    let mut upstream = TunnelSide { stream: upstream, progress: &progress };
    let mut copying = pin!(copy_bidirectional(&mut client, &mut upstream));
    let mut timer = pin!(None);
    let mut timed_bytes = 0;
    poll_fn(|context| {
        if copying.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !progress.is_half_closed.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        // All bytes are written by `copying`, so this task has been polled since the last one.
        let written = progress.written_bytes.load(Ordering::Relaxed);
        if timer.is_none() || timed_bytes != written {
            timer.set(Some(idle_timer()));
            timed_bytes = written;
        }
        timer.as_mut().as_pin_mut().map_or(Poll::Pending, |timer| timer.poll(context))
    })
    .await;
}

/// What has happened in a tunnel. One task reads and writes it.
#[derive(Default)]
struct TunnelProgress {
    /// Bytes written to both sides.
    written_bytes: AtomicU64,
    /// Whether one side has closed.
    is_half_closed: AtomicBool,
}

/// One side of a tunnel, which records the progress.
struct TunnelSide<'p, S> {
    stream: S,
    progress: &'p TunnelProgress,
}

impl<S: AsyncRead + Unpin> AsyncRead for TunnelSide<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if matches!(polled, Poll::Ready(Ok(()))) && before > 0 && buffer.remaining() == before {
            self.progress.is_half_closed.store(true, Ordering::Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TunnelSide<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.progress.written_bytes.fetch_add(written as u64, Ordering::Relaxed);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::{ManualClock, Timer};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(1);

    /// Each byte starts the time anew, in either direction; as long as both sides are open, no time runs.
    #[tokio::test]
    async fn a_half_closed_tunnel_goes_on_as_long_as_the_open_side_sends() {
        for client_closes in [true, false] {
            let ((mut closing, client), (upstream, mut open)) = (duplex(64), duplex(64));
            let (client, upstream) = if client_closes { (client, upstream) } else { (upstream, client) };
            let clock = ManualClock::default();
            let timer = clock.clone();
            let copying = tokio::spawn(copy_until_idle(client, upstream, move || timer.sleep(TIMEOUT)));
            open.write_all(b"x").await.unwrap();
            assert_eq!(closing.read_u8().await.unwrap(), b'x');
            assert_eq!(clock.pending_sleeps(), 0);
            closing.shutdown().await.unwrap();
            assert_eq!(open.read(&mut [0]).await.unwrap(), 0);
            for _ in 0..10 {
                clock.advance(TIMEOUT * 2 / 3);
                open.write_all(b"y").await.unwrap();
                assert_eq!(closing.read_u8().await.unwrap(), b'y');
            }
            assert!(!copying.is_finished());
            clock.advance(TIMEOUT);
            copying.await.unwrap();
            assert_eq!(closing.read(&mut [0]).await.unwrap(), 0);
        }
    }
}
