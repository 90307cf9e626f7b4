//! The size of a request body: what is known of it before the body is read, and `AssumedBodySize` for a body without a length.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Version;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http_body::Body;
use tidegate::attributes::stated_body_size;

/// The actual size is not known yet.
const UNKNOWN: u64 = u64::MAX;

/// The body of a request has no length, and the rules charged the request as if it had this size: an extension of the request.
///
/// The service must not accept more bytes than [`max_bytes`](Self::max_bytes), or they are free. If it knows the actual size
/// before it responds, it states it with [`set_actual`](Self::set_actual), and the difference in cost is given back or charged.
///
/// Clones share the actual size.
#[derive(Clone, Debug)]
pub struct AssumedBodySize {
    max_bytes: Option<u64>,
    actual: Arc<AtomicU64>,
}

impl AssumedBodySize {
    pub(crate) fn new(max_bytes: Option<u64>) -> Self {
        Self { max_bytes, actual: Arc::new(AtomicU64::new(UNKNOWN)) }
    }

    /// The size that the request was charged for; `None` if only shadow rules charged it, which affect no request.
    pub const fn max_bytes(&self) -> Option<u64> {
        self.max_bytes
    }

    /// States the size of the body, once all of it has arrived.
    pub fn set_actual(&self, bytes: u64) {
        self.actual.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn actual(&self) -> Option<u64> {
        Some(self.actual.load(Ordering::Relaxed)).filter(|bytes| *bytes != UNKNOWN)
    }
}

/// The size of a body in bytes, if it is known before the body is read. Servers end a request whose body has another length than
/// it announces.
pub(crate) fn body_size(parts: &Parts, body: &impl Body) -> Option<u64> {
    if body.is_end_stream() {
        return Some(0);
    }
    if let Some(size) = body.size_hint().exact() {
        return Some(size);
    }
    // The type of the body may hide what the head says.
    let is_http1 = parts.version < Version::HTTP_2;
    let has_transfer_encoding = parts.headers.contains_key(TRANSFER_ENCODING);
    let lengths = parts.headers.get_all(CONTENT_LENGTH).into_iter().map(HeaderValue::as_bytes);
    stated_body_size(parts.method.as_str(), is_http1, has_transfer_encoding, lengths)
}

/// A size as text, without an allocation for most requests.
pub(crate) fn size_text(headers: &HeaderMap, size: u64) -> Cow<'_, str> {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    match length {
        _ if size == 0 => Cow::Borrowed("0"),
        Some(length) if length.parse() == Ok(size) && !length.starts_with('+') => Cow::Borrowed(length),
        _ => Cow::Owned(size.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use http::request::Builder;
    use http_body::{Frame, SizeHint};
    use http_body_util::{Empty, Full};

    use super::*;

    /// A body that says as much about its size as `hint`.
    struct Hinted(SizeHint);

    impl Body for Hinted {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(None)
        }

        fn size_hint(&self) -> SizeHint {
            self.0
        }
    }

    fn size(request: Builder, body: &impl Body) -> Option<u64> {
        body_size(&request.body(()).unwrap().into_parts().0, body)
    }

    fn unknown() -> Hinted {
        Hinted(SizeHint::default())
    }

    #[test]
    fn the_body_knows_its_size() {
        let post = || http::Request::post("/").version(Version::HTTP_2);
        assert_eq!(size(post(), &Empty::<Bytes>::new()), Some(0));
        assert_eq!(size(post(), &Full::new(Bytes::from_static(b"tide"))), Some(4));
        assert_eq!(size(post().header("content-length", "9"), &Hinted(SizeHint::with_exact(7))), Some(7));
    }

    #[test]
    fn the_size_of_a_body_without_a_length_is_not_known() {
        let post = http::Request::post;
        assert_eq!(size(post("/").version(Version::HTTP_2), &unknown()), None);
        assert_eq!(size(http::Request::get("/").version(Version::HTTP_2), &unknown()), None);
        for (name, value) in [("transfer-encoding", "chunked"), ("content-length", "many"), ("content-length", "-1")] {
            assert_eq!(size(post("/").header(name, value), &unknown()), None, "{name}: {value}");
            assert_eq!(size(http::Request::get("/").header(name, value), &unknown()), None, "{name}: {value}");
        }
        let both = post("/").header("content-length", "1").header("transfer-encoding", "chunked");
        assert_eq!(size(both, &unknown()), None);
        let two = post("/").header("content-length", "1").header("content-length", "2");
        assert_eq!(size(two, &unknown()), None);
        assert_eq!(size(post("/"), &unknown()), None);
    }

    #[test]
    fn the_head_counts_if_the_type_of_the_body_hides_its_size() {
        assert_eq!(size(http::Request::post("/").header("content-length", "9"), &unknown()), Some(9));
        assert_eq!(size(http::Request::get("/"), &unknown()), Some(0));
    }
}
