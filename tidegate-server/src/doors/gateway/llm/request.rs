//! `LlmRequest`: a request to a language model, made ready so that its response can be counted.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{HeaderName, Method, Response, StatusCode};
use http_body::Body;
use smallvec::SmallVec;
use tidegate::attributes::PathReadings;
use tidegate_tower::{ReservedTokens, TokenUsage, UsageReport};

use super::metered_body::{Meter, MeteredBody};
use super::object_members::{MemberError, find_member, is_empty_object};
use super::strict_json::is_json_object;
use super::token_count::BYTES_PER_TOKEN;
use crate::doors::gateway::proxy::ProxyError;
use crate::doors::gateway::request_body::RequestBody;
use crate::doors::gateway::upstream_body::UpstreamBody;

const INCLUDE_USAGE: &[u8] = br#""include_usage":true"#;
const COMPLETIONS: &[u8] = b"/completions";
const STREAM_OPTIONS: &[u8] = br#""stream_options":{"include_usage":true}"#;

/// Header fields with a checksum of the body.
const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
];

/// A request whose cost is reserved. Dropped before it is sent, it costs nothing.
#[derive(Debug)]
pub(in crate::doors::gateway) struct LlmRequest {
    /// None after it is sent.
    report: Option<UsageReport>,
    facts: RequestFacts,
}

/// A request that may have reached the upstream. If its client leaves before the response begins, it costs what was reserved: the upstream
/// may work on it all the same.
#[derive(Debug)]
pub(in crate::doors::gateway) struct SentModelRequest {
    report: UsageReport,
    facts: RequestFacts,
}

/// What counts the response of a request.
#[derive(Clone, Copy, Debug)]
struct RequestFacts {
    /// Estimated by the length of the body, and at most what was reserved: an image is longer than its tokens.
    prompt_tokens: u64,
    /// Whether the gateway asked for the event with the usage, and not the client.
    withholds_usage: bool,
    /// Whether no model answers it: a request for the head of a response, or one for the options of a path.
    is_without_answer: bool,
}

/// A body in parts.
type BodyParts = SmallVec<[Bytes; 3]>;

/// Why a body is not changed.
enum RewriteSkip {
    /// There is nothing to change, or the gateway cannot read it.
    AsItIs,
    /// A field comes twice, or in other letters, so that two servers may read two requests.
    Ambiguous,
}

impl LlmRequest {
    /// Takes the report from a request, and asks the upstream for what is needed to count: no compression, and in a stream of OpenAI's API
    /// an event with the usage. `None` if no rule counts tokens.
    pub(in crate::doors::gateway) fn prepare(
        parts: &mut Parts,
        body: RequestBody,
    ) -> Result<(Option<Self>, RequestBody), ProxyError> {
        let Some(report) = parts.extensions.remove::<UsageReport>() else { return Ok((None, body)) };
        let is_enforced = report.is_enforced();
        let reserved = parts.extensions.remove::<ReservedTokens>().map_or(u64::MAX, |reserved| reserved.0);
        let prompt_tokens = body.size_hint().upper().unwrap_or(0).div_ceil(BYTES_PER_TOKEN).min(reserved);
        let is_preflight = parts.method == Method::OPTIONS && body.is_end_stream();
        let is_without_answer = parts.method == Method::HEAD || is_preflight;
        let facts = RequestFacts { prompt_tokens, withholds_usage: false, is_without_answer };
        let mut request = Self { report: Some(report), facts };
        if is_enforced && is_encoded(&parts.headers) {
            return Err(ProxyError::EncodedBody);
        }
        // Without the field, any compression would do.
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let body = match body {
            RequestBody::Buffered { data, trailers } => {
                let data = request.ask_for_usage(parts, data, is_enforced)?;
                RequestBody::Buffered { data, trailers }
            }
            body @ RequestBody::Streamed(_) => body,
        };
        Ok((Some(request), body))
    }

    /// The body that is sent in place of `data`.
    fn ask_for_usage(
        &mut self,
        parts: &mut Parts,
        data: BodyParts,
        is_enforced: bool,
    ) -> Result<BodyParts, ProxyError> {
        // It was read in one part.
        let [text] = data.as_slice() else { return Ok(data) };
        if !is_json_object(text) {
            return if is_enforced {
                Err(ProxyError::BadRequest("The request body is no JSON object."))
            } else {
                Ok(data)
            };
        }
        if !is_completion(parts.uri.path()) {
            return Ok(data);
        }
        match with_usage(text) {
            Ok(changed) => {
                self.facts.withholds_usage = true;
                if parts.headers.contains_key(CONTENT_LENGTH) {
                    let length: usize = changed.iter().map(Bytes::len).sum();
                    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
                }
                for name in &DIGESTS {
                    parts.headers.remove(name);
                }
                Ok(changed)
            }
            Err(RewriteSkip::Ambiguous) if is_enforced => {
                let message = "The request body has `stream` or `stream_options` twice, or in other letters.";
                Err(ProxyError::BadRequest(message))
            }
            Err(_) => Ok(data),
        }
    }

    /// The request is about to be sent.
    pub(in crate::doors::gateway) fn send(mut self) -> Option<SentModelRequest> {
        let facts = self.facts;
        Some(SentModelRequest { report: self.report.take()?, facts })
    }
}

impl Drop for LlmRequest {
    fn drop(&mut self) {
        if let Some(report) = &self.report {
            report_no_tokens(report);
        }
    }
}

impl SentModelRequest {
    /// The upstream has given no response. It costs nothing, unless the upstream may still work on it.
    pub(in crate::doors::gateway) fn fail(self, problem: ProxyError) {
        if !matches!(problem, ProxyError::UpstreamTimeout | ProxyError::UpstreamBrokeOff) {
            report_no_tokens(&self.report);
        }
    }

    /// Counts the body of a response. One that is no success, or cannot have an answer, costs nothing.
    pub(in crate::doors::gateway) fn meter(self, response: Response<UpstreamBody>) -> Response<MeteredBody> {
        let (mut parts, body) = response.into_parts();
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            // What is sent through a tunnel is not counted: the cost stays as it was reserved.
            return Response::from_parts(parts, MeteredBody::uncounted(body));
        }
        let is_empty = matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT);
        if !parts.status.is_success() || is_empty || self.facts.is_without_answer {
            report_no_tokens(&self.report);
            return Response::from_parts(parts, MeteredBody::uncounted(body));
        }
        let RequestFacts { prompt_tokens, withholds_usage, .. } = self.facts;
        let is_stream = is_event_stream(&parts.headers);
        let meter = match is_encoded(&parts.headers) {
            true => Meter::unreadable(self.report),
            false if is_stream => Meter::stream(self.report, prompt_tokens, withholds_usage),
            // With a length, nothing can be withheld.
            false => {
                let withholds_usage = withholds_usage && !parts.headers.contains_key(CONTENT_LENGTH);
                Meter::undeclared(self.report, prompt_tokens, withholds_usage)
            }
        };
        if is_stream && withholds_usage {
            parts.headers.remove(CONTENT_LENGTH);
        }
        Response::from_parts(parts, MeteredBody::new(body, meter))
    }
}

/// No tokens are used. The response may still state costs under other rules.
fn report_no_tokens(report: &UsageReport) {
    report.commit_at_end(TokenUsage::default());
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

/// Whether a server may read a path as that of OpenAI's chat completions or completions, whatever is in front of it. Other APIs state the
/// usage of streams unasked, and refuse fields that they do not know.
fn is_completion(path: &str) -> bool {
    let is_one = |reading: &str| {
        let reading = reading.trim_end_matches('/').as_bytes();
        reading.last_chunk().is_some_and(|end: &[u8; COMPLETIONS.len()]| end.eq_ignore_ascii_case(COMPLETIONS))
    };
    PathReadings::new(path).map_or(true, |readings| readings.iter().any(is_one))
}

/// The body of a streamed completion, changed to ask for the usage, unless it does. It is a valid object.
fn with_usage(body: &Bytes) -> Result<BodyParts, RewriteSkip> {
    let is_off = |value: &[u8]| matches!(value, b"false" | b"null");
    let stream = find_member(body, 0, "stream")?;
    let options = find_member(body, 0, "stream_options")?;
    // Some servers take `1` or `"true"` for true.
    if stream.is_none_or(|value| is_off(&body[value])) {
        return Err(RewriteSkip::AsItIs);
    }
    let Some(options) = options else {
        let start = first_byte(body) + 1;
        return Ok(splice(body, start..start, &[STREAM_OPTIONS, b","]));
    };
    if &body[options.clone()] == b"null" {
        return Ok(splice(body, options, &[b"{", INCLUDE_USAGE, b"}"]));
    }
    match find_member(body, options.start, "include_usage")? {
        None => {
            let start = options.start + 1;
            let comma: &[u8] = if is_empty_object(body, options.start) { b"" } else { b"," };
            Ok(splice(body, start..start, &[INCLUDE_USAGE, comma]))
        }
        Some(asked) if &body[asked.clone()] == b"true" => Err(RewriteSkip::AsItIs),
        Some(declined) => Ok(splice(body, declined, &[b"true"])),
    }
}

impl From<MemberError> for RewriteSkip {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::NoObject => Self::AsItIs,
            MemberError::Repeated => Self::Ambiguous,
        }
    }
}

fn first_byte(text: &[u8]) -> usize {
    text.len() - text.trim_ascii_start().len()
}

/// The body with other bytes in place of a range. The rest is not copied: it may be long.
fn splice(body: &Bytes, range: std::ops::Range<usize>, inserted: &[&[u8]]) -> BodyParts {
    let parts = [body.slice(..range.start), inserted.concat().into(), body.slice(range.end..)];
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(body: &str) -> Option<String> {
        let parts = with_usage(&Bytes::copy_from_slice(body.as_bytes())).ok()?;
        Some(String::from_utf8(parts.concat()).unwrap())
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
            (r#"{"stream":1}"#, r#"{"stream_options":{"include_usage":true},"stream":1}"#),
            (r#"{"stream":"true"}"#, r#"{"stream_options":{"include_usage":true},"stream":"true"}"#),
            (r#"{"str\u0065am":true}"#, r#"{"stream_options":{"include_usage":true},"str\u0065am":true}"#),
        ] {
            assert_eq!(changed(body).as_deref(), Some(expected));
            assert!(serde_json::from_str::<serde_json::Value>(expected).is_ok(), "{expected}");
        }
    }

    #[test]
    fn other_bodies_stay_as_they_are() {
        for body in [
            "{}",
            r#"{"stream":false}"#,
            r#"{"stream":null}"#,
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
            r#"{"Stream":true}"#,
            r#"{"stream":false,"STREAM":true}"#,
            "{\"\u{17f}tream\":true}",
            r#"{"stream":true,"Stream_Options":{"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":{"Include_Usage":false}}"#,
        ] {
            let result = with_usage(&Bytes::copy_from_slice(body.as_bytes()));
            assert!(matches!(result, Err(RewriteSkip::Ambiguous)), "{body}");
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
            ("/v1/completion\u{17f}", false),
            // Servers may read these as the first one.
            ("/v1/chat%2Fcompletions", true),
            ("/v1/chat%252fcompletions", true),
            ("/v1/chat\\completions", true),
            ("/v1/chat/completions;x=1", true),
            ("/v1/chat/completions//", true),
            ("/v1/chat/%63ompletions", true),
            ("/v1/chat/completions/x/..", true),
            ("/v1/Chat/Completions", true),
            ("/v1/chat;b%2Fc\\completions", true),
        ] {
            assert_eq!(is_completion(path), asks, "{path}");
        }
    }
}
