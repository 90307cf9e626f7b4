//! `BufferBody`: reads short JSON bodies before the limit is checked, for rules that count by a field of the body. It does
//! not parse them.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body;
use tidegate::attributes::DEFAULT_MAX_BODY_BYTES;
use tidegate::http::ErrorFormat;
use tower_layer::Layer;
use tower_service::Service;

use crate::readiness::{reacquire, release};
use crate::response_body::error_response;
use crate::{ResponseBody, ResponseFuture, grpc};

const TOO_LARGE_MESSAGE: &str = "The body is too long. Send a shorter one, or its length with it.";
const INCOMPLETE_MESSAGE: &str = "The body ended before it was complete.";

/// Sets the attribute `body` of a request to the text of its JSON body. It goes around a [`LimitLayer`](crate::LimitLayer).
///
/// A body is read if its type is JSON, it is not compressed, and its declared length is small enough. All others, gRPC
/// streams among them, pass unread, and rules that count by a field of the body count those requests as one subject. A body
/// without a declared length that exceeds [`with_max_bytes`](Self::with_max_bytes) is rejected with 413, an incomplete body
/// with 400.
///
/// It waits for the body without a timeout of its own: the server's timeouts end slow clients. A slow client does not block
/// others, since readiness of the inner service is acquired after the body has been read. Trailers of a body that was read
/// are dropped.
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
///     .layer(BufferBody::new().with_max_bytes(4096)); // the last layer is the outermost
/// # Ok::<(), tidegate::rules::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BufferBody {
    max_bytes: usize,
}

/// A service behind a [`BufferBody`].
#[derive(Clone, Debug)]
pub struct BufferBodyService<T> {
    inner: T,
    max_bytes: usize,
}

/// The text of a body that was read: an extension of the request.
#[derive(Clone)]
pub struct BodyText(Bytes);

/// Why a body was not read completely.
enum BodyReadError {
    TooLarge,
    Incomplete,
}

impl BufferBody {
    /// Reads bodies of at most [`DEFAULT_MAX_BODY_BYTES`] bytes.
    pub const fn new() -> Self {
        Self { max_bytes: DEFAULT_MAX_BODY_BYTES }
    }

    /// Reads bodies of at most this many bytes.
    pub const fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
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
        BufferBodyService { inner, max_bytes: self.max_bytes }
    }
}

impl<T> BufferBodyService<T> {
    /// The service that gets the text of bodies.
    pub const fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The service that gets the text of bodies, to change it. Clones of this service keep theirs.
    pub const fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The service, which gets no text of bodies any more.
    pub fn into_inner(self) -> T {
        self.inner
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
    type Future = ResponseFuture<B, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // As in `LimitService`: the service that is ready is called.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        ResponseFuture::new(handle(ready, request, self.max_bytes))
    }
}

/// Handles a request: reads the body if it should be read, and calls the inner service.
async fn handle<T, A, B>(
    mut inner: T,
    mut request: Request<A>,
    max_bytes: usize,
) -> Result<Response<ResponseBody<B>>, T::Error>
where
    T: Service<Request<A>, Response = Response<B>> + Clone,
    A: Body<Data = Bytes> + From<Bytes>,
{
    if should_read(&request, max_bytes) {
        release(&mut inner);
        request = match buffer(request, max_bytes).await {
            Ok(request) => request,
            Err(BodyReadError::TooLarge) => {
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                return Ok(error_response(status, ErrorFormat::Json, "body_too_large", TOO_LARGE_MESSAGE));
            }
            Err(BodyReadError::Incomplete) => {
                let status = StatusCode::BAD_REQUEST;
                return Ok(error_response(status, ErrorFormat::Json, "body_unreadable", INCOMPLETE_MESSAGE));
            }
        };
        reacquire(&mut inner).await?;
    }
    Ok(inner.call(request).await?.map(ResponseBody::inner))
}

/// Whether the body of a request should be read.
fn should_read<A: Body>(request: &Request<A>, max_bytes: usize) -> bool {
    let declared = declared_length(request.headers()).max(request.body().size_hint().lower());
    is_plain_json(request.headers()) && declared <= max_bytes as u64
}

/// The same request with its body read.
async fn buffer<A>(request: Request<A>, max_bytes: usize) -> Result<Request<A>, BodyReadError>
where
    A: Body<Data = Bytes> + From<Bytes>,
{
    let (mut parts, body) = request.into_parts();
    let bytes = read(body, max_bytes).await?;
    if let Some(text) = BodyText::new(bytes.clone()) {
        parts.extensions.insert(text);
    }
    Ok(Request::from_parts(parts, bytes.into()))
}

/// Reads a body of at most `max_bytes` bytes.
async fn read(body: impl Body<Data = Bytes>, max_bytes: usize) -> Result<Bytes, BodyReadError> {
    let mut body = pin!(body);
    let mut read = BytesMut::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let frame = frame.map_err(|_| BodyReadError::Incomplete)?;
        if let Some(data) = frame.data_ref() {
            if data.len() > max_bytes - read.len() {
                return Err(BodyReadError::TooLarge);
            }
            read.extend_from_slice(data);
        }
    }
    Ok(read.freeze())
}

/// The length by the header `content-length`, or 0.
fn declared_length(headers: &HeaderMap) -> u64 {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Whether the type is `application/json` or `…+json`, without a content encoding. Messages of gRPC may be JSON, but its
/// bodies are frames, and a stream may last as long as its response.
fn is_plain_json(headers: &HeaderMap) -> bool {
    if grpc::response_type(headers).is_some() || headers.contains_key(CONTENT_ENCODING) {
        return false;
    }
    let media_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let name = media_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    name == b"application/json" || name.ends_with(b"+json")
}

// === impl BodyText ===

impl BodyText {
    /// The text of a body that a front end has read; `None` if it is not UTF-8.
    pub fn new(body: Bytes) -> Option<Self> {
        std::str::from_utf8(&body).is_ok().then_some(Self(body))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // It has been checked.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Shows the length only: bodies may contain passwords.
impl fmt::Debug for BodyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BodyText({} bytes)", self.0.len())
    }
}
