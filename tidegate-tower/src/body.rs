//! `ResponseBody`: the body of the inner service, or a short text of our own. It changes nothing that passes through.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::http::Rejection;

use crate::fields::extend;

pin_project! {
    /// The body of an answer: what the inner service said, or why it was not asked.
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
        Inner { #[pin] body: B },
        Own { text: Bytes },
    }
}

impl<B> ResponseBody<B> {
    /// What the inner service said.
    pub(crate) const fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body } }
    }

    /// A text of our own.
    pub(crate) const fn own(text: Bytes) -> Self {
        Self { kind: Kind::Own { text } }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner { body } => body.poll_frame(context),
            KindProjection::Own { text } if text.is_empty() => Poll::Ready(None),
            KindProjection::Own { text } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Own { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Own { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}

/// A refusal as it is sent.
pub(crate) fn refusal<B>(answer: Rejection) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::own(answer.body.into()));
    // The contract answers 429 and 503; were it ever something that is no status, it would be our fault.
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    extend(response.headers_mut(), answer.headers);
    response
}

/// An error in the form that refusals have.
pub(crate) fn error<B>(status: StatusCode, json: &'static str) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::own(Bytes::from_static(json.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[test]
    fn a_body_knows_how_long_it_is() {
        let own = ResponseBody::<Full<Bytes>>::own(Bytes::from_static(b"too many"));
        assert_eq!((own.size_hint().exact(), own.is_end_stream()), (Some(8), false));
        let inner = ResponseBody::inner(Full::new(Bytes::from_static(b"hello")));
        assert_eq!((inner.size_hint().exact(), inner.is_end_stream()), (Some(5), false));
        let empty = ResponseBody::<Full<Bytes>>::own(Bytes::new());
        assert_eq!((empty.size_hint().exact(), empty.is_end_stream()), (Some(0), true));
    }

    #[tokio::test]
    async fn a_text_is_sent_once() {
        let mut own = ResponseBody::<Full<Bytes>>::own(Bytes::from_static(b"too many"));
        assert_eq!(own.frame().await.unwrap().unwrap().into_data().unwrap(), "too many");
        assert!(own.frame().await.is_none());
        assert!(own.is_end_stream());
    }
}
