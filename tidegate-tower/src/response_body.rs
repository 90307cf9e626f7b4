//! `ResponseBody`: the unchanged body of the inner service, or the text of a rejection. The slots of the request are held until it
//! ends.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::grants::HeldLease;
use tidegate::http::{ErrorFormat, Rejection};

use crate::limit_headers::append_headers;

type BodyError = Box<dyn Error + Send + Sync>;

pin_project! {
    /// The body of a response: that of the inner service, or the text of a rejection.
    ///
    /// It holds the slots of the request until it ends, fails or is dropped. If they are lost, it ends with [`LeaseLost`].
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProjection]
    enum Kind<B> {
        Inner { #[pin] body: B, lease: Option<Box<HeldLease>> },
        Text { text: Bytes },
    }
}

/// The request has lost its slots while its response was sent: the limit was lowered, or the store has lost its state and others have
/// taken the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseLost;

impl<B> ResponseBody<B> {
    /// The body of the inner service.
    pub(crate) const fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body, lease: None } }
    }

    /// Holds `lease` until the body ends.
    pub(crate) fn with_lease(mut self, held: Option<Box<HeldLease>>) -> Self {
        if let Kind::Inner { lease, .. } = &mut self.kind {
            *lease = held;
        }
        self
    }

    /// The text of a rejection.
    pub(crate) const fn text(text: Bytes) -> Self {
        Self { kind: Kind::Text { text } }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut kind = self.project().kind;
        match kind.as_mut().project() {
            KindProjection::Inner { mut body, lease } => {
                if lease.as_ref().is_some_and(|lease| lease.poll_lost(context).is_ready()) {
                    kind.set(Kind::Text { text: Bytes::new() });
                    return Poll::Ready(Some(Err(LeaseLost.into())));
                }
                let frame = ready!(body.as_mut().poll_frame(context));
                if lease.is_some() && (!matches!(frame, Some(Ok(_))) || body.is_end_stream()) {
                    *lease = None;
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            KindProjection::Text { text } if text.is_empty() => Poll::Ready(None),
            KindProjection::Text { text } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Text { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Text { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request has lost its slot of a concurrency limit")
    }
}

impl Error for LeaseLost {}

/// The HTTP response of a rejection.
pub(crate) fn rejection_response<B>(rejection: Rejection) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::text(rejection.body.into()));
    // The header policy only makes valid statuses.
    *response.status_mut() = StatusCode::from_u16(rejection.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    append_headers(response.headers_mut(), rejection.headers);
    response
}

/// An error response in the form of a rejection.
pub(crate) fn error_response<B>(
    status: StatusCode,
    format: ErrorFormat,
    name: &str,
    message: &str,
) -> Response<ResponseBody<B>> {
    let body = format.error_body(status.as_u16(), name, message);
    let mut response = Response::new(ResponseBody::text(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[test]
    fn a_body_reports_its_length() {
        let text = ResponseBody::<Full<Bytes>>::text(Bytes::from_static(b"too many"));
        assert_eq!((text.size_hint().exact(), text.is_end_stream()), (Some(8), false));
        let inner = ResponseBody::inner(Full::new(Bytes::from_static(b"hello")));
        assert_eq!((inner.size_hint().exact(), inner.is_end_stream()), (Some(5), false));
        let empty = ResponseBody::<Full<Bytes>>::text(Bytes::new());
        assert_eq!((empty.size_hint().exact(), empty.is_end_stream()), (Some(0), true));
    }

    #[tokio::test]
    async fn a_text_is_sent_once() {
        let mut text = ResponseBody::<Full<Bytes>>::text(Bytes::from_static(b"too many"));
        assert_eq!(text.frame().await.unwrap().unwrap().into_data().unwrap(), "too many");
        assert!(text.frame().await.is_none());
        assert!(text.is_end_stream());
    }
}
