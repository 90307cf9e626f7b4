//! `RequestBody`: the body of a request on its way through the gateway, as a stream or as bytes that were read for the rules.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use smallvec::{SmallVec, smallvec};

use crate::listen::ClientBody;

/// The body of a request.
pub(super) enum RequestBody {
    /// As the client sends it.
    Streamed(ClientBody),
    /// All of it in parts, none of which is empty, and its trailers.
    Buffered { data: SmallVec<[Bytes; 3]>, trailers: Option<HeaderMap> },
}

impl RequestBody {
    pub(super) fn buffered(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self::Buffered { data: if data.is_empty() { SmallVec::new() } else { smallvec![data] }, trailers }
    }

    pub(super) const fn is_buffered(&self) -> bool {
        matches!(self, Self::Buffered { .. })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Streamed(body) => Pin::new(body).poll_frame(context),
            Self::Buffered { data, .. } if !data.is_empty() => Poll::Ready(Some(Ok(Frame::data(data.remove(0))))),
            Self::Buffered { trailers, .. } => {
                Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Streamed(body) => body.is_end_stream(),
            Self::Buffered { data, trailers } => data.is_empty() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Streamed(body) => body.size_hint(),
            Self::Buffered { data, .. } => SizeHint::with_exact(data.iter().map(|part| part.len() as u64).sum()),
        }
    }
}
