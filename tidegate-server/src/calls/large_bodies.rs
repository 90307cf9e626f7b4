//! `LargeBodies`: the memory for large bodies of calls. A small body needs none of it, so that callers with large bodies keep
//! only each other from being served.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tidegate::sync::Mutex;
use tonic::Status;

use super::request_limits::MAX_BODY_BYTES;
use crate::listen::{BodyMemory, MemoryPermit};

/// A body up to this length is not large.
pub(crate) const MAX_SMALL_BODY_BYTES: u64 = 16 * 1024;

/// The most bytes of large bodies in memory at a time.
const MAX_LARGE_BODY_BYTES: usize = 64 * 1024 * 1024;

/// The memory that is left for large bodies. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LargeBodies(BodyMemory);

/// The memory of one call, until it is dropped.
#[derive(Default)]
pub(crate) struct Reservation {
    permit: Mutex<Option<MemoryPermit>>,
    is_refused: AtomicBool,
}

/// A body that reserves its memory once it turns out to be large.
pub(crate) struct ReservingBody<B> {
    body: B,
    bytes: u64,
    large_bodies: LargeBodies,
    /// Keeps the memory longer than this body lives.
    reservation: Option<Arc<Reservation>>,
    /// The memory, without a reservation.
    permit: Option<MemoryPermit>,
}

impl LargeBodies {
    pub(crate) fn new() -> Self {
        Self::with_bytes(MAX_LARGE_BODY_BYTES)
    }

    fn with_bytes(bytes: usize) -> Self {
        Self(BodyMemory::new(bytes))
    }

    /// A reservation for what is made of a body, unless the declared length of that is small.
    pub(crate) fn reservation(body: &impl Body) -> Option<Arc<Reservation>> {
        let is_small = body.size_hint().upper().is_some_and(|length| length <= MAX_SMALL_BODY_BYTES);
        (!is_small).then(Arc::default)
    }

    /// Watches a body. Its memory is reserved until both the body and the reservation are dropped.
    pub(crate) fn watch<B>(&self, body: B, reservation: Option<Arc<Reservation>>) -> ReservingBody<B> {
        ReservingBody { body, bytes: 0, large_bodies: self.clone(), reservation, permit: None }
    }

    /// Memory for the longest body.
    fn reserve(&self) -> Option<MemoryPermit> {
        self.0.acquire(MAX_BODY_BYTES, None).ok()
    }
}

impl Reservation {
    /// Whether there was no memory for the body.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Gives the memory back before the end of the call, once nothing is left of the body.
    pub(crate) fn release(&self) {
        self.permit.lock().take();
    }
}

impl<B> ReservingBody<B> {
    /// Reserves the memory, once. Returns whether there is any.
    fn reserve(&mut self) -> bool {
        let Some(reservation) = &self.reservation else {
            self.permit = self.permit.take().or_else(|| self.large_bodies.reserve());
            return self.permit.is_some();
        };
        let mut permit = reservation.permit.lock();
        *permit = permit.take().or_else(|| self.large_bodies.reserve());
        reservation.is_refused.store(permit.is_none(), Ordering::Relaxed);
        permit.is_some()
    }
}

impl<B> Body for ReservingBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            if self.bytes > MAX_SMALL_BODY_BYTES && !self.reserve() {
                // The status of a gRPC call; others look at the reservation.
                let status = Status::resource_exhausted("too many large bodies are in memory");
                return Poll::Ready(Some(Err(status.into())));
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    async fn read(large_bodies: &LargeBodies, length: usize) -> (Option<Arc<Reservation>>, bool) {
        let body = Full::<Bytes>::from(vec![b' '; length]);
        let reservation = LargeBodies::reservation(&body);
        let body = large_bodies.watch(body, reservation.clone());
        (reservation, body.collect().await.is_ok())
    }

    #[tokio::test]
    async fn large_bodies_share_a_bounded_memory_and_small_ones_need_none() {
        let large_bodies = LargeBodies::with_bytes(2 * MAX_BODY_BYTES);
        let first = read(&large_bodies, 100_000).await;
        let _second = read(&large_bodies, 16_385).await;
        for (length, is_read) in [(0, true), (16_384, true), (16_385, false), (1_000_000, false)] {
            let (reservation, was_read) = read(&large_bodies, length).await;
            assert_eq!(was_read, is_read, "{length}");
            assert_eq!(reservation.is_some_and(|reservation| reservation.is_refused()), !is_read, "{length}");
        }
        drop(first);
        assert!(read(&large_bodies, 16_385).await.1);
    }

    #[tokio::test]
    async fn without_a_reservation_the_memory_is_that_of_the_body() {
        let large_bodies = LargeBodies::with_bytes(MAX_BODY_BYTES);
        let watch = || large_bodies.watch(Full::<Bytes>::from(vec![b' '; 20_000]), None);
        let mut first = watch();
        assert!(first.frame().await.unwrap().is_ok());
        assert!(watch().collect().await.is_err());
        drop(first);
        assert!(watch().collect().await.is_ok());
    }
}
