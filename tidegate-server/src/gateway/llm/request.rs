//! `ModelRequest`: a request to a language model, made ready so that its response can be counted.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body::Body;
use serde::de::IgnoredAny;
use tidegate_tower::{TokenUsage, UsageReport};

use super::metered_body::{Meter, MeteredBody};
use super::object_members::{Member, members};
use super::token_count::BYTES_PER_TOKEN;
use crate::gateway::proxy::ProxyError;
use crate::gateway::request_body::RequestBody;
use crate::gateway::upstream_body::UpstreamBody;

const INCLUDE_USAGE: &[u8] = br#""include_usage":true"#;
const STREAM_OPTIONS: &[u8] = br#""stream_options":{"include_usage":true}"#;

/// A request whose cost is reserved. Dropped before it is sent, it costs nothing.
#[derive(Debug)]
pub(in crate::gateway) struct ModelRequest {
    /// None after it is sent.
    report: Option<UsageReport>,
    /// Estimated by the length of the body.
    prompt_tokens: u64,
    /// Whether the gateway asked for the event with the usage, and not the client.
    withholds_usage: bool,
}

/// A request that may have reached the upstream. If its client leaves before the response begins, it costs what was reserved: the upstream
/// may work on it all the same.
#[derive(Debug)]
pub(in crate::gateway) struct SentModelRequest {
    report: UsageReport,
    /// Estimated by the length of the body.
    prompt_tokens: u64,
    /// Whether the gateway asked for the event with the usage, and not the client.
    withholds_usage: bool,
}

/// Why a body is not changed.
enum Unchanged {
    /// There is nothing to change, or the gateway cannot read it.
    AsItIs,
    /// A field comes twice, so that two servers may read two requests.
    Repeated,
}

impl ModelRequest {
    /// Takes the report from a request, and asks the upstream for what is needed to count: no compression, and in a stream of OpenAI's API
    /// an event with the usage. `None` if no rule counts tokens.
    pub(in crate::gateway) fn prepare(
        parts: &mut Parts,
        body: RequestBody,
    ) -> Result<(Option<Self>, RequestBody), ProxyError> {
        let Some(report) = parts.extensions.remove::<UsageReport>() else { return Ok((None, body)) };
        let is_enforced = report.is_enforced();
        let prompt_tokens = body.size_hint().upper().unwrap_or(0).div_ceil(BYTES_PER_TOKEN);
        let mut request = Self { report: Some(report), prompt_tokens, withholds_usage: false };
        if is_enforced && is_encoded(&parts.headers) {
            return Err(ProxyError::EncodedBody);
        }
        // Without the field, any compression would do.
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let body = match body {
            RequestBody::Buffered { data, trailers } if is_completion(parts.uri.path()) => {
                let data = match with_usage(&data) {
                    Ok(changed) => {
                        request.withholds_usage = true;
                        changed
                    }
                    Err(Unchanged::Repeated) if is_enforced => {
                        return Err(ProxyError::BadRequest("The request body has `stream` or `stream_options` twice."));
                    }
                    Err(_) => data,
                };
                if parts.headers.contains_key(CONTENT_LENGTH) {
                    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(data.len()));
                }
                RequestBody::Buffered { data, trailers }
            }
            body => body,
        };
        Ok((Some(request), body))
    }

    /// The request is about to be sent.
    pub(in crate::gateway) fn send(mut self) -> Option<SentModelRequest> {
        let Self { prompt_tokens, withholds_usage, .. } = self;
        Some(SentModelRequest { report: self.report.take()?, prompt_tokens, withholds_usage })
    }
}

impl Drop for ModelRequest {
    fn drop(&mut self) {
        if let Some(report) = &self.report {
            release(report);
        }
    }
}

impl SentModelRequest {
    /// The upstream has given no response. It costs nothing, unless the upstream may still work on it.
    pub(in crate::gateway) fn fail(self, problem: ProxyError) {
        if !matches!(problem, ProxyError::UpstreamTimeout) {
            release(&self.report);
        }
    }

    /// Counts the body of a response. One that is no success costs nothing.
    pub(in crate::gateway) fn meter(self, response: Response<UpstreamBody>) -> Response<MeteredBody> {
        let (mut parts, body) = response.into_parts();
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            // What is sent through a tunnel is not counted: the cost stays as it was reserved.
            return Response::from_parts(parts, MeteredBody::uncounted(body));
        }
        if !parts.status.is_success() {
            release(&self.report);
            return Response::from_parts(parts, MeteredBody::uncounted(body));
        }
        let is_stream = is_event_stream(&parts.headers);
        let meter = match is_encoded(&parts.headers) {
            true => Meter::unreadable(self.report),
            false if is_stream => Meter::stream(self.report, self.prompt_tokens, self.withholds_usage),
            false => Meter::json(self.report, self.prompt_tokens),
        };
        if is_stream && self.withholds_usage {
            parts.headers.remove(CONTENT_LENGTH);
        }
        Response::from_parts(parts, MeteredBody::new(body, meter))
    }
}

fn release(report: &UsageReport) {
    report.commit_soon(Some(TokenUsage::default()));
}

/// Whether a body is compressed, or encoded in another way.
fn is_encoded(headers: &HeaderMap) -> bool {
    let is_identity = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    headers.get_all(CONTENT_ENCODING).iter().any(|value| !value.is_empty() && !is_identity(value))
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// Whether a path is that of OpenAI's chat completions or completions, whatever is in front of it. Other APIs state the usage of streams
/// unasked, and refuse fields that they do not know.
fn is_completion(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/completions")
}

/// The body of a streamed completion, changed to ask for the usage, unless it does.
fn with_usage(body: &Bytes) -> Result<Bytes, Unchanged> {
    if serde_json::from_slice::<IgnoredAny>(body).is_err() {
        return Err(Unchanged::AsItIs);
    }
    let fields = members(body, 0).ok_or(Unchanged::AsItIs)?;
    let stream = single(&fields, "stream")?.ok_or(Unchanged::AsItIs)?;
    let options = single(&fields, "stream_options")?;
    if &body[stream.value.clone()] != b"true" {
        return Err(Unchanged::AsItIs);
    }
    let Some(options) = options else {
        let start = first_byte(body, 0) + 1;
        return Ok(splice(body, start..start, &[STREAM_OPTIONS, b","]));
    };
    if &body[options.value.clone()] == b"null" {
        return Ok(splice(body, options.value.clone(), &[b"{", INCLUDE_USAGE, b"}"]));
    }
    let inner = members(body, options.value.start).ok_or(Unchanged::AsItIs)?;
    match single(&inner, "include_usage")? {
        None => {
            let start = options.value.start + 1;
            let comma: &[u8] = if inner.is_empty() { b"" } else { b"," };
            Ok(splice(body, start..start, &[INCLUDE_USAGE, comma]))
        }
        Some(asked) if &body[asked.value.clone()] == b"true" => Err(Unchanged::AsItIs),
        Some(declined) => Ok(splice(body, declined.value.clone(), &[b"true"])),
    }
}

/// The only member with this name.
fn single<'m, 't>(fields: &'m [Member<'t>], name: &str) -> Result<Option<&'m Member<'t>>, Unchanged> {
    let mut found = fields.iter().filter(|member| member.name == name);
    match (found.next(), found.next()) {
        (_, Some(_)) => Err(Unchanged::Repeated),
        (member, None) => Ok(member),
    }
}

fn first_byte(text: &[u8], start: usize) -> usize {
    text[start..].iter().position(|byte| !byte.is_ascii_whitespace()).map_or(start, |offset| start + offset)
}

fn splice(body: &[u8], range: std::ops::Range<usize>, parts: &[&[u8]]) -> Bytes {
    [&body[..range.start], &parts.concat(), &body[range.end..]].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(body: &str) -> Option<String> {
        with_usage(&Bytes::copy_from_slice(body.as_bytes())).ok().map(|body| String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn a_stream_is_asked_for_its_usage_and_nothing_else_changes() {
        for (body, expected) in [
            (
                r#"{"model":"m","stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"model":"m","stream":true}"#,
            ),
            (
                " { \"stream\" : true, \"t\":1.50, \"u\":\"\\u00e9\" } ",
                " {\"stream_options\":{\"include_usage\":true}, \"stream\" : true, \"t\":1.50, \"u\":\"\\u00e9\" } ",
            ),
            (r#"{"stream":true,"stream_options":null}"#, r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
            (r#"{"stream_options":{},"stream":true}"#, r#"{"stream_options":{"include_usage":true},"stream":true}"#),
            (
                r#"{"stream":true,"stream_options":{"include_obfuscation":false}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}}"#,
            ),
            (
                r#"{"stream":true,"stream_options":{"include_usage": false }}"#,
                r#"{"stream":true,"stream_options":{"include_usage": true }}"#,
            ),
            (r#"{"str\u0065am":true}"#, r#"{"stream_options":{"include_usage":true},"str\u0065am":true}"#),
        ] {
            assert_eq!(changed(body).as_deref(), Some(expected));
            assert!(serde_json::from_str::<serde_json::Value>(expected).is_ok(), "{expected}");
        }
    }

    #[test]
    fn other_bodies_stay_as_they_are() {
        for body in [
            "",
            "null",
            "[]",
            "{}",
            "stream=true",
            r#"{"stream":false}"#,
            r#"{"stream":"true"}"#,
            r#"{"stream":true"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":7}"#,
            r#"{"options":{"stream":true}}"#,
            r#"{"messages":[{"content":"\"stream\":true"}]}"#,
        ] {
            assert_eq!(changed(body), None, "{body}");
        }
    }

    #[test]
    fn a_field_that_comes_twice_is_refused() {
        for body in [
            r#"{"stream":true,"stream":false}"#,
            r#"{"stream":true,"stream_options":null,"stream_options":{"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}"#,
            r#"{"stream":false,"str\u0065am":true}"#,
        ] {
            let result = with_usage(&Bytes::copy_from_slice(body.as_bytes()));
            assert!(matches!(result, Err(Unchanged::Repeated)), "{body}");
        }
    }

    #[test]
    fn the_path_tells_whether_usage_must_be_asked_for() {
        for (path, asks) in [
            ("/v1/chat/completions", true),
            ("/v1/completions/", true),
            ("/openai/deployments/gpt/chat/completions", true),
            ("/v1/messages", false),
            ("/v1/responses", false),
            ("/completions.html", false),
        ] {
            assert_eq!(is_completion(path), asks, "{path}");
        }
    }
}
