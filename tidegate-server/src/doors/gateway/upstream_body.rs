//! `UpstreamBody`: the body of the upstream's response. Its request is at the upstream until the body ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::upstream_slots::UpstreamSlot;

/// The body of a response.
pub(super) struct UpstreamBody {
    body: Incoming,
    /// None after the end.
    slot: Option<UpstreamSlot>,
}

impl UpstreamBody {
    pub(super) const fn new(body: Incoming, slot: Option<UpstreamSlot>) -> Self {
        Self { body, slot }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
            self.slot = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
