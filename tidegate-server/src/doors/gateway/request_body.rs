//! `RequestBody`: the body of a request on its way through the gateway, as a stream or as bytes that were read for the rules.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use smallvec::SmallVec;

use crate::listen::ClientBody;

/// The body of a request.
pub(super) enum RequestBody {
    /// As the client sends it.
    Streamed(StreamedBody),
    /// All of it in parts, none of which is empty, and its trailers.
    Buffered { data: SmallVec<[Bytes; 3]>, trailers: Option<HeaderMap> },
}

/// A body of which the client may still send a part.
pub(super) struct StreamedBody {
    /// What was read of it before, in parts, none of which is empty.
    read: SmallVec<[Bytes; 3]>,
    rest: ClientBody,
}

impl RequestBody {
    pub(super) fn streamed(body: ClientBody) -> Self {
        Self::Streamed(StreamedBody { read: SmallVec::new(), rest: body })
    }

    pub(super) fn buffered(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self::Buffered { data: [data].into_iter().filter(|data| !data.is_empty()).collect(), trailers }
    }

    /// The body with what was read of it in front.
    pub(super) fn after(mut self, read: [Bytes; 2]) -> Self {
        self.parts().insert_many(0, read.into_iter().filter(|part| !part.is_empty()));
        self
    }

    pub(super) const fn is_buffered(&self) -> bool {
        matches!(self, Self::Buffered { .. })
    }

    /// The parts that are in memory.
    fn parts(&mut self) -> &mut SmallVec<[Bytes; 3]> {
        match self {
            Self::Streamed(body) => &mut body.read,
            Self::Buffered { data, .. } => data,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let parts = self.parts();
        if !parts.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(parts.remove(0)))));
        }
        match &mut *self {
            Self::Streamed(body) => Pin::new(&mut body.rest).poll_frame(context),
            Self::Buffered { trailers, .. } => {
                Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Streamed(body) => body.read.is_empty() && body.rest.is_end_stream(),
            Self::Buffered { data, trailers } => data.is_empty() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let length = |parts: &[Bytes]| parts.iter().map(|part| part.len() as u64).sum::<u64>();
        match self {
            Self::Streamed(body) => {
                let (read, rest) = (length(&body.read), body.rest.size_hint());
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower().saturating_add(read));
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper.saturating_add(read));
                }
                hint
            }
            Self::Buffered { data, .. } => SizeHint::with_exact(length(data)),
        }
    }
}
