//! `BufferBody`: reads short JSON bodies before the limit, for rules that count by a field of them. It parses nothing.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::body::error;
use crate::readiness::{give_back, regain};
use crate::{LimitFuture, ResponseBody, grpc};

/// The longest body that is read unless another length is given: 64 KiB.
pub const DEFAULT_LONGEST_BODY: usize = 64 * 1024;

const TOO_LONG: &str =
    r#"{"error":"body_too_large","message":"The body is too long. Send a shorter one, or its length with it."}"#;
const BROKEN: &str = r#"{"error":"body_unreadable","message":"The body ended before it was complete."}"#;

/// Puts the text of a JSON body where rules can read it, as the attribute `body`. It goes around a
/// [`LimitLayer`](crate::LimitLayer).
///
/// A body is read if its type is JSON, it is not compressed, and the length that is announced is small enough; all others,
/// the streams of gRPC among them, pass untouched, and rules that count by a field of the body count those requests as one.
/// A body that turns out longer than [`longest`](Self::longest), because no length was announced, is answered with 413, one
/// that breaks off with 400.
///
/// It waits for the body as long as the server does: slow callers are for the server's timeouts to end. They keep nobody
/// else out, since the inner service is asked whether it is ready only once the body is there. The trailers of a body that
/// was read are gone.
///
/// ```
/// # use axum::{Router, routing::post};
/// # use tidegate::{Limiter, MemoryStore, RuleSet};
/// # use tidegate_tower::LimitLayer;
/// use tidegate_tower::BufferBody;
///
/// # let limits = LimitLayer::new(Limiter::new(RuleSet::new([])?, MemoryStore::new()));
/// let app: Router = Router::new()
///     .route("/login", post(async || "welcome"))
///     .layer(limits)
///     .layer(BufferBody::new().longest(4096)); // the last layer comes first
/// # Ok::<(), tidegate::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BufferBody {
    longest: usize,
}

/// A service behind a [`BufferBody`].
#[derive(Clone, Debug)]
pub struct BufferBodyService<T> {
    inner: T,
    longest: usize,
}

/// The text of a body that was read: an extension of the request.
#[derive(Clone)]
pub struct BodyText(Arc<str>);

/// Why a body was not read to its end.
enum Unread {
    TooLong,
    Broken,
}

impl BufferBody {
    /// Reads bodies of at most [`DEFAULT_LONGEST_BODY`] bytes.
    pub const fn new() -> Self {
        Self { longest: DEFAULT_LONGEST_BODY }
    }

    /// Reads bodies of at most this many bytes.
    pub const fn longest(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }
}

impl Default for BufferBody {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Layer<T> for BufferBody {
    type Service = BufferBodyService<T>;

    fn layer(&self, inner: T) -> BufferBodyService<T> {
        BufferBodyService { inner, longest: self.longest }
    }
}

impl<T, A, B> Service<Request<A>> for BufferBodyService<T>
where
    T: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    T::Future: Send,
    A: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = T::Error;
    type Future = LimitFuture<B, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // As in `LimitService`: the one that is ready is called.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        LimitFuture::new(go(inner, request, self.longest))
    }
}

/// The whole way of a request.
async fn go<T, A, B>(
    mut inner: T,
    mut request: Request<A>,
    longest: usize,
) -> Result<Response<ResponseBody<B>>, T::Error>
where
    T: Service<Request<A>, Response = Response<B>> + Clone,
    A: Body<Data = Bytes> + From<Bytes>,
{
    if is_read(&request, longest) {
        give_back(&mut inner);
        request = match buffered(request, longest).await {
            Ok(request) => request,
            Err(Unread::TooLong) => return Ok(error(StatusCode::PAYLOAD_TOO_LARGE, TOO_LONG)),
            Err(Unread::Broken) => return Ok(error(StatusCode::BAD_REQUEST, BROKEN)),
        };
        regain(&mut inner).await?;
    }
    Ok(inner.call(request).await?.map(ResponseBody::inner))
}

/// Whether the body of a request is one to read.
fn is_read<A: Body>(request: &Request<A>, longest: usize) -> bool {
    let announced = announced(request.headers()).max(request.body().size_hint().lower());
    is_plain_json(request.headers()) && announced <= longest as u64
}

/// The same request with its body read.
async fn buffered<A>(request: Request<A>, longest: usize) -> Result<Request<A>, Unread>
where
    A: Body<Data = Bytes> + From<Bytes>,
{
    let (mut parts, body) = request.into_parts();
    let bytes = read(body, longest).await?;
    if let Ok(text) = std::str::from_utf8(&bytes) {
        parts.extensions.insert(BodyText(text.into()));
    }
    Ok(Request::from_parts(parts, bytes.into()))
}

/// Reads a body of at most `longest` bytes.
async fn read(body: impl Body<Data = Bytes>, longest: usize) -> Result<Bytes, Unread> {
    let mut body = pin!(body);
    let mut read = BytesMut::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let frame = frame.map_err(|_| Unread::Broken)?;
        if let Some(data) = frame.data_ref() {
            if data.len() > longest - read.len() {
                return Err(Unread::TooLong);
            }
            read.extend_from_slice(data);
        }
    }
    Ok(read.freeze())
}

fn announced(headers: &HeaderMap) -> u64 {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Whether the type is `application/json` or `…+json`, without an encoding that would have to be undone. The messages of
/// gRPC may be JSON, but its bodies are frames, and may go on for as long as the answer.
fn is_plain_json(headers: &HeaderMap) -> bool {
    if grpc::spoken(headers).is_some() || headers.contains_key(CONTENT_ENCODING) {
        return false;
    }
    let media_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let name = media_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    name == b"application/json" || name.ends_with(b"+json")
}

// === impl BodyText ===

impl BodyText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Shows the length only: bodies hold passwords.
impl fmt::Debug for BodyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BodyText({} bytes)", self.0.len())
    }
}
