//! Reads the body of a request before the decision, for rules that count by one of its fields.
//!
//! The type of the body is not looked at: many servers parse JSON whatever the type says. Whether the text is JSON, and has the
//! field, the rules find out. What they cannot read counts as one subject.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body::Body;
use http_body_util::BodyExt;
use tidegate::spi::{BodyNeed, Store};
use tidegate_tower::{BodyText, LimitLayer};

use super::GatewayOptions;
use super::body_memory::{BodyBuffer, BodyMemory};
use super::proxy::ProxyError;
use super::request_body::RequestBody;
use super::upload::Upload;
use super::upload_pace::UploadPace;
use crate::listen::{Bound, ClientBody, ListenerStats};

/// Reads the body of a request if a rule that applies to it does.
pub(super) async fn read_for_rules<S: Store>(
    request: Request<ClientBody>,
    layer: &LimitLayer<S>,
    options: &GatewayOptions,
    memory: &BodyMemory,
    stats: &ListenerStats,
) -> Result<Request<RequestBody>, ProxyError> {
    let (mut parts, body) = request.into_parts();
    let body = RequestBody::Streamed(body);
    // The proxy refuses CONNECT; its bytes are not a body.
    let has_body = !body.is_end_stream() && parts.method != Method::CONNECT;
    let need = if has_body { layer.body_need(&parts) } else { BodyNeed::None };
    let max_bytes = options.max_body_bytes.min(layer.max_body_bytes() as u64);
    let mut buffer = memory.buffer(usize::try_from(max_bytes).unwrap_or(usize::MAX));
    let is_read = match need {
        BodyNeed::None => false,
        // Refusing a body would affect the request, so it is read only if that cannot happen.
        BodyNeed::Shadow => {
            let length = body.size_hint().upper().filter(|length| *length <= max_bytes);
            length.and_then(|length| usize::try_from(length).ok()).is_some_and(|length| buffer.reserve(length).is_ok())
        }
        BodyNeed::Enforced => true,
    };
    if !is_read {
        return Ok(Request::from_parts(parts, body));
    }
    let (data, trailers) = read(body, buffer, max_bytes, options, stats).await?;
    if let Some(text) = BodyText::new(data.clone()) {
        parts.extensions.insert(text);
    }
    Ok(Request::from_parts(parts, RequestBody::buffered(data, trailers)))
}

/// Reads a whole body of bounded length. The client must keep the pace of uploads.
async fn read(
    body: RequestBody,
    mut buffer: BodyBuffer,
    max_bytes: u64,
    options: &GatewayOptions,
    stats: &ListenerStats,
) -> Result<(Bytes, Option<HeaderMap>), ProxyError> {
    if body.size_hint().lower() > max_bytes {
        return Err(ProxyError::BodyTooLong);
    }
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
            Ok(bytes) => buffer.append(&bytes)?,
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok((buffer.into_bytes(), trailers))
}
