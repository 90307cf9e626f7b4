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
    stats: &ListenerStats,
) -> Result<Request<RequestBody>, ProxyError> {
    let (mut parts, body) = request.into_parts();
    let body = RequestBody::Streamed(body);
    // The proxy refuses CONNECT; its bytes are not a body.
    let has_body = !body.is_end_stream() && parts.method != Method::CONNECT;
    let is_read = has_body
        && match layer.body_need(&parts) {
            BodyNeed::None => false,
            // Refusing a body for its length would affect the request.
            BodyNeed::Shadow => body.size_hint().upper().is_some_and(|bytes| bytes <= max_bytes(layer, options)),
            BodyNeed::Enforced => true,
        };
    if !is_read {
        return Ok(Request::from_parts(parts, body));
    }
    let (data, trailers) = read(body, max_bytes(layer, options), options, stats).await?;
    if let Some(text) = BodyText::new(data.clone()) {
        parts.extensions.insert(text);
    }
    Ok(Request::from_parts(parts, RequestBody::Buffered { data, trailers }))
}

/// The longest body that is read.
fn max_bytes<S: Store>(layer: &LimitLayer<S>, options: &GatewayOptions) -> u64 {
    options.max_body_bytes.min(layer.max_body_bytes() as u64)
}

/// Reads a whole body of bounded length. The client must keep the pace of uploads.
async fn read(
    body: RequestBody,
    max_bytes: u64,
    options: &GatewayOptions,
    stats: &ListenerStats,
) -> Result<(Bytes, Option<HeaderMap>), ProxyError> {
    if body.size_hint().lower() > max_bytes {
        return Err(ProxyError::BodyTooLong);
    }
    let (mut body, progress) = Upload::new(body, max_bytes, None);
    let mut pace = UploadPace::new(options, *progress.borrow());
    let (mut data, mut trailers) = (Vec::new(), None);
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
            Ok(bytes) => append(&mut data, &bytes, usize::try_from(max_bytes).unwrap_or(usize::MAX)),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok((data.into(), trailers))
}

/// Appends to a buffer that never takes more memory than the longest body.
fn append(data: &mut Vec<u8>, bytes: &[u8], max_bytes: usize) {
    let needed = data.len() + bytes.len();
    if needed > data.capacity() {
        let capacity = (2 * data.capacity()).min(max_bytes).max(needed);
        data.reserve_exact(capacity - data.len());
    }
    data.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_of_a_body_never_exceeds_the_longest_body() {
        const MAX_BYTES: usize = 64 * 1024;
        for chunk in [1, 7, 1000, 40_000, MAX_BYTES] {
            let mut data = Vec::new();
            while data.len() + chunk <= MAX_BYTES {
                append(&mut data, &vec![b'a'; chunk], MAX_BYTES);
                assert!(data.capacity() <= MAX_BYTES, "{chunk}");
            }
        }
    }
}
