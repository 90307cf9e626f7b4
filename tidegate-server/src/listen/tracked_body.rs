//! `TrackedBody`: the body of a response, with the permit of its request. In HTTP/2 it records whether its client or its source
//! must act next, and [`ResponseMonitor`] ends the bodies whose clients read too slowly.
//!
//! An HTTP/2 client chooses how much it takes of each response, so that a stalled response is not a stalled connection. Slow
//! clients of HTTP/1.1 are found by `GuardedStream`.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tidegate::sync::{Mutex, MutexGuard};

use super::connection::ClientConnection;
use super::pace::Pace;
use super::request_bounds::HeldPermit;

/// A chunk up to this length is sent as it is.
const MAX_UNSPLIT_BYTES: usize = 1024;

/// The body of a response.
pub(super) enum TrackedBody<B> {
    /// Not watched.
    Plain {
        body: B,
        _permit: Option<HeldPermit>,
    },
    Watched(WatchedBody<B>),
    /// A response of the listener itself.
    Local(Full<Bytes>),
}

/// A body that the monitor can end.
pub(super) struct WatchedBody<B> {
    shared: Arc<Mutex<ResponseState<B>>>,
    /// The last byte of a chunk. hyper takes it only when the client's window covers the bytes before it; it takes a chunk of any
    /// length for a window of one byte.
    tail: Option<Bytes>,
    id: u64,
    monitor: Arc<ResponseMonitor>,
}

/// A response under way.
struct ResponseState<B> {
    /// None after the end.
    body: Option<B>,
    permit: Option<HeldPermit>,
    /// Whether bytes wait for the client; otherwise the source must act next.
    awaits_client: bool,
    /// The bytes that wait for the client, or waited last.
    bytes: u64,
    /// How long the client has kept bytes waiting.
    waited: Duration,
    /// The flushes of the connection when the last bytes were taken.
    flushes: u64,
    connection: Arc<ClientConnection>,
}

/// A response as the monitor sees it.
trait WatchResponse: Send + Sync {
    /// Adds the time since the last call, and ends the response if its client is too slow. Returns whether it ended it.
    fn tick(&self, interval: Duration, pace: Pace) -> bool;
}

/// Finds responses whose clients read too slowly.
pub(super) struct ResponseMonitor {
    pace: Pace,
    responses: Mutex<HashMap<u64, Weak<dyn WatchResponse>>>,
    next_id: AtomicU64,
}

impl ResponseMonitor {
    pub(super) fn new(pace: Pace) -> Arc<Self> {
        Arc::new(Self { pace, responses: Mutex::default(), next_id: AtomicU64::new(0) })
    }

    /// Adds the time since the last call to all responses whose bytes wait for the client. Returns how many were ended.
    pub(super) fn tick(&self, interval: Duration) -> usize {
        let responses: Vec<_> = self.responses.lock().values().filter_map(Weak::upgrade).collect();
        responses.iter().filter(|response| response.tick(interval, self.pace)).count()
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> TrackedBody<B> {
    pub(super) const fn plain(body: B, permit: Option<HeldPermit>) -> Self {
        Self::Plain { body, _permit: permit }
    }

    /// A body that the monitor watches until it ends.
    pub(super) fn watched(
        body: B,
        permit: Option<HeldPermit>,
        connection: Arc<ClientConnection>,
        monitor: &Arc<ResponseMonitor>,
    ) -> Self {
        let state = ResponseState {
            body: Some(body),
            permit,
            awaits_client: false,
            bytes: 0,
            waited: Duration::ZERO,
            flushes: connection.unsent.flushes(),
            connection,
        };
        let shared = Arc::new(Mutex::new(state));
        let id = monitor.next_id.fetch_add(1, Ordering::Relaxed);
        let weak: Weak<Mutex<ResponseState<B>>> = Arc::downgrade(&shared);
        monitor.responses.lock().insert(id, weak);
        Self::Watched(WatchedBody { shared, tail: None, id, monitor: Arc::clone(monitor) })
    }
}

impl<B: Send> WatchResponse for Mutex<ResponseState<B>> {
    fn tick(&self, interval: Duration, pace: Pace) -> bool {
        let mut state = lock(self);
        if !state.awaits_client || state.body.is_none() {
            return false;
        }
        state.waited += interval;
        if pace.allows(state.waited) {
            return false;
        }
        let ended = (state.body.take(), state.permit.take());
        state.connection.report_stall();
        drop(state);
        // Without the lock: this closes the connection to the upstream.
        drop(ended);
        true
    }
}

impl<B> ResponseState<B> {
    /// The connection has all bytes of the response, and sends them. The request is under way until then.
    fn hand_over(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.connection.unsent.add(permit, self.flushes);
        }
    }
}

fn lock<B>(state: &Mutex<ResponseState<B>>) -> MutexGuard<'_, ResponseState<B>> {
    state.lock()
}

impl<B> Drop for WatchedBody<B> {
    fn drop(&mut self) {
        self.monitor.responses.lock().remove(&self.id);
        lock(&self.shared).hand_over();
    }
}

impl<B> WatchedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut state = lock(&self.shared);
        state.flushes = state.connection.unsent.flushes();
        state.awaits_client = false;
        state.waited = self.monitor.pace.wait_after(state.waited, state.bytes);
        state.bytes = 0;
        if let Some(tail) = self.tail.take() {
            (state.awaits_client, state.bytes) = (true, tail.len() as u64);
            return Poll::Ready(Some(Ok(Frame::data(tail))));
        }
        let Some(body) = &mut state.body else {
            return Poll::Ready(Some(Err("the client reads the response too slowly".into())));
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        match frame {
            None => {
                state.body = None;
                state.hand_over();
                Poll::Ready(None)
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => Poll::Ready(Some(Ok(match frame.into_data() {
                Err(trailers) => trailers,
                Ok(mut data) => {
                    (state.awaits_client, state.bytes) = (true, data.len() as u64);
                    if data.len() > MAX_UNSPLIT_BYTES {
                        self.tail = Some(data.split_off(data.len() - 1));
                    }
                    Frame::data(data)
                }
            }))),
        }
    }
}

impl<B> Body for TrackedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Plain { body, .. } => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Watched(body) => body.poll_frame(context),
            Self::Local(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain { body, .. } => body.is_end_stream(),
            Self::Watched(WatchedBody { tail: Some(_), .. }) => false,
            // A body that the monitor ended has an error to return.
            Self::Watched(watched) => lock(&watched.shared).body.as_ref().is_some_and(B::is_end_stream),
            Self::Local(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain { body, .. } => body.size_hint(),
            // hyper asks before the first frame, when there is no tail.
            Self::Watched(watched) => lock(&watched.shared).body.as_ref().map_or_else(SizeHint::new, B::size_hint),
            Self::Local(body) => body.size_hint(),
        }
    }
}
