//! Reads the body of a request before the decision, for rules that count by one of its fields.
//!
//! The type of the body is not looked at: many servers parse JSON whatever the type says. Whether the text is JSON, and has the
//! field, the rules find out. What they cannot read counts as one subject.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request};
use http_body::Body;
use http_body_util::BodyExt;
use tidegate::http::ErrorFormat;
use tidegate::spi::{BodyNeed, Store};
use tidegate_tower::{BodyText, LimitLayer};

use super::GatewayOptions;
use super::body_buffer::BodyBuffer;
use super::proxy::ProxyError;
use super::request_body::RequestBody;
use super::upload::Upload;
use super::upload_pace::UploadPace;
use crate::listen::{BodyMemory, Bound, ClientBody, ListenerStats, RequestClient};

/// What was read of a body.
enum BodyReadOutcome {
    Whole(Bytes, Option<HeaderMap>),
    /// There is no memory for more. The body begins with what was read.
    NoMemory(RequestBody, ProxyError),
}

/// Reads the body of a request if a rule that applies to it does. An error comes with the format of the response.
pub(super) async fn read_for_rules<S: Store>(
    request: Request<ClientBody>,
    layer: &LimitLayer<S>,
    options: &GatewayOptions,
    memory: &BodyMemory,
    stats: &ListenerStats,
) -> Result<Request<RequestBody>, (ProxyError, ErrorFormat)> {
    let (mut parts, body) = request.into_parts();
    match read_if_needed(&mut parts, body, layer, options, memory, stats).await {
        Ok(body) => Ok(Request::from_parts(parts, body)),
        Err(error) => Err((error, layer.error_format(&parts))),
    }
}

/// Reads a body if a rule that applies to its request does, and adds its text to the request.
async fn read_if_needed<S: Store>(
    parts: &mut Parts,
    body: ClientBody,
    layer: &LimitLayer<S>,
    options: &GatewayOptions,
    memory: &BodyMemory,
    stats: &ListenerStats,
) -> Result<RequestBody, ProxyError> {
    let body = RequestBody::streamed(body);
    // The proxy refuses CONNECT; its bytes are not a body.
    let has_body = !body.is_end_stream() && parts.method != Method::CONNECT;
    let need = if has_body { layer.body_need(parts) } else { BodyNeed::None };
    if need == BodyNeed::None {
        return Ok(body);
    }
    // If the rules change meanwhile, the decision refuses a body that is too long for the new ones.
    let max_bytes = options.max_body_bytes.min(layer.max_body_bytes() as u64);
    let (lower, upper) = (body.size_hint().lower(), body.size_hint().upper());
    // Refusing a body for a shadow rule would affect the request, so none is read that may be too long.
    if need == BodyNeed::Shadow && upper.is_none_or(|upper| upper > max_bytes) {
        return Ok(body);
    }
    if lower > max_bytes {
        return Err(ProxyError::BodyTooLong);
    }
    let client = parts.extensions.get::<RequestClient>().map(|client| client.0);
    let longest = upper.map_or(max_bytes, |upper| upper.min(max_bytes));
    let buffer = BodyBuffer::new(memory, usize::try_from(longest).unwrap_or(usize::MAX), client);
    let (data, trailers) = match read(body, buffer, max_bytes, options, stats).await? {
        BodyReadOutcome::Whole(data, trailers) => (data, trailers),
        // A shadow rule counts it as one that cannot be read.
        BodyReadOutcome::NoMemory(body, _) if need == BodyNeed::Shadow => return Ok(body),
        BodyReadOutcome::NoMemory(_, error) => {
            stats.count(Bound::LargeBodies);
            return Err(error);
        }
    };
    if let Some(text) = BodyText::new(data.clone()) {
        parts.extensions.insert(text);
    }
    Ok(RequestBody::buffered(data, trailers))
}

/// Reads a whole body of bounded length, unless there is no memory for it. The client must keep the pace of uploads.
async fn read(
    body: RequestBody,
    mut buffer: BodyBuffer,
    max_bytes: u64,
    options: &GatewayOptions,
    stats: &ListenerStats,
) -> Result<BodyReadOutcome, ProxyError> {
    let (mut body, progress) = Upload::new(body, max_bytes, None);
    let mut pace = UploadPace::new(options, *progress.borrow());
    let mut trailers = None;
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = pace.tick() => {
                if !pace.allows(*progress.borrow()) {
                    stats.count(Bound::Upload);
                    return Err(ProxyError::ClientTimeout);
                }
                continue;
            }
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ProxyError::from_stage(progress.borrow().stage))?;
        match frame.into_data() {
            Ok(bytes) => {
                if let Err(error) = buffer.append(&bytes) {
                    let body = body.into_body().after([buffer.into_bytes(), bytes]);
                    return Ok(BodyReadOutcome::NoMemory(body, error));
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok(BodyReadOutcome::Whole(buffer.into_bytes(), trailers))
}
