//! `ClientBody`: the body of a request, as the client sends it. The part that a service leaves unread goes back to the connection,
//! which reads a bounded rest of it: a client may send its whole body before it reads the response, and the next request comes
//! after that body.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tidegate::sync::Mutex;
use tokio::time::Sleep;

use super::guarded_stream::sleep;

/// The most bytes of an unread body that are read after the response is known.
const MAX_DRAIN_BYTES: u64 = 256 * 1024;

/// The most time for these bytes.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a request.
pub(crate) struct ClientBody {
    /// None after the last frame, or an error.
    body: Option<Incoming>,
    /// Where the body goes if it is dropped before its end.
    unread: Option<Arc<UnreadSlot>>,
}

/// The body that a service did not read.
type UnreadSlot = Mutex<Option<Incoming>>;

/// Takes back the body of an HTTP/1.1 request once the service has dropped it.
pub(super) struct UnreadBody {
    slot: Arc<UnreadSlot>,
    /// The client waits for `100 Continue`, and may not send the body at all.
    expects_continue: bool,
    lingering: Lingering,
}

/// Whether a client may still be sending a body when its connection ends. A connection that is closed with unread bytes is reset, and the
/// client may lose the response.
#[derive(Clone, Debug, Default)]
pub(super) struct Lingering(Arc<AtomicBool>);

/// Reads the rest of a body before the response is sent, as far as the bounds allow.
pub(super) struct Drain {
    body: Incoming,
    bytes_left: u64,
    timer: Pin<Box<Sleep>>,
    lingering: Lingering,
}

impl Lingering {
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl ClientBody {
    /// Splits a request from the body that may come back. HTTP/2 needs none: each of its requests is a stream of its own.
    pub(super) fn split(request: Request<Incoming>, lingering: &Lingering) -> (Request<Self>, Option<UnreadBody>) {
        let has_rest = request.version() != Version::HTTP_2 && !request.body().is_end_stream();
        let unread = has_rest.then(|| UnreadBody {
            slot: Arc::default(),
            expects_continue: request.headers().contains_key(EXPECT),
            lingering: lingering.clone(),
        });
        let slot = unread.as_ref().map(|unread| Arc::clone(&unread.slot));
        (request.map(|body| Self { body: Some(body), unread: slot }), unread)
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if let (Some(body), Some(slot)) = (self.body.take(), &self.unread)
            && !body.is_end_stream()
        {
            *slot.lock() = Some(body);
        }
    }
}

impl UnreadBody {
    /// What has to be read before `response` is sent, if the service has dropped the body unread. If the rest is not read, the
    /// response announces the end of the connection.
    pub(super) fn drain<B>(self, response: &mut Response<B>) -> Option<Drain> {
        let body = self.slot.lock().take()?;
        // A client that is too slow already is not waited for.
        let is_slow = response.status() == StatusCode::REQUEST_TIMEOUT;
        if self.expects_continue || is_slow || body.size_hint().lower() > MAX_DRAIN_BYTES {
            announce_close(response);
            if !is_slow {
                self.lingering.set();
            }
            return None;
        }
        let timer = Box::pin(sleep(DRAIN_TIMEOUT));
        Some(Drain { body, bytes_left: MAX_DRAIN_BYTES, timer, lingering: self.lingering })
    }
}

impl Drain {
    /// Reads until the end or a bound. Returns whether the end was reached, so that the connection can go on.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        loop {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                Poll::Ready(Some(Ok(frame))) => {
                    let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                    let Some(bytes_left) = self.bytes_left.checked_sub(length) else {
                        self.lingering.set();
                        return Poll::Ready(false);
                    };
                    self.bytes_left = bytes_left;
                }
                Poll::Pending => return self.timer.as_mut().poll(context).map(|()| false),
            }
        }
    }
}

/// Tells the client that no further request can follow on this connection.
pub(super) fn announce_close<B>(response: &mut Response<B>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}
