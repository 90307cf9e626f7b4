//! Refusals as gRPC wants them: HTTP 200 without a body, the status in the header. It says what the contract says, in
//! another form.

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tidegate::http::Rejection;

use crate::ResponseBody;
use crate::fields::extend;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// The forms that browsers speak; their type is followed by the format of the messages, as in the first.
const WEB: [&[u8]; 2] = [b"application/grpc-web", b"application/grpc-web-text"];
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When a client that tries again by itself may do so (gRFC A6); without it, it would follow its own, shorter pauses.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const RETRY_AFTER: &str = "retry-after";

/// The status of a denial in HTTP.
const DENIED: u16 = 429;
/// The code of a denial, `RESOURCE_EXHAUSTED`.
const EXHAUSTED: HeaderValue = HeaderValue::from_static("8");
/// The code of a failure, `UNAVAILABLE`.
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");

/// The content type of an answer, if the caller speaks gRPC. A caller of gRPC-Web looks for its own.
pub(crate) fn spoken(headers: &HeaderMap) -> Option<HeaderValue> {
    let media_type = headers.get(CONTENT_TYPE)?;
    if is_of(media_type.as_bytes(), GRPC.as_bytes()) {
        return Some(GRPC);
    }
    WEB.iter().any(|web| is_of(media_type.as_bytes(), web)).then(|| media_type.clone())
}

/// Whether `media_type` is `name`, whatever the format of the messages and the parameters.
fn is_of(media_type: &[u8], name: &[u8]) -> bool {
    let Some((start, rest)) = media_type.split_at_checked(name.len()) else { return false };
    start.eq_ignore_ascii_case(name) && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// The same refusal: `RESOURCE_EXHAUSTED` for a denial, `UNAVAILABLE` for a failure, the fields as metadata. Without a
/// body, the status may stand in the header in gRPC-Web too.
pub(crate) fn refusal<B>(answer: Rejection, media_type: HeaderValue) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::own(Bytes::new()));
    let headers = response.headers_mut();
    headers.insert(STATUS, if answer.status == DENIED { EXHAUSTED } else { UNAVAILABLE });
    if let Ok(message) = HeaderValue::try_from(percent_encoded(&answer.message)) {
        headers.insert(MESSAGE, message);
    }
    let mut fields = answer.headers;
    // Whole seconds, like `retry-after`: for a rule that guards against guessing, more would be too much. Where waiting
    // does not help, a negative number says so.
    let retry = fields.iter().find(|(name, _)| *name == RETRY_AFTER);
    let pushback = retry.map_or_else(|| "-1".to_owned(), |(_, seconds)| format!("{seconds}000"));
    if let Ok(pushback) = HeaderValue::try_from(pushback) {
        headers.insert(PUSHBACK, pushback);
    }
    // These are about a body, and there is none.
    fields.retain(|(name, _)| !matches!(*name, "content-type" | "cache-control"));
    extend(headers, fields);
    headers.insert(CONTENT_TYPE, media_type);
    response
}

/// Encodes a `grpc-message` as the gRPC protocol says: printable ASCII as it is, everything else and the percent sign as
/// `%XX`.
fn percent_encoded(message: &str) -> String {
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    utf8_percent_encode(message, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_known_by_its_content_type() {
        let answered = |media_type: &'static str| {
            spoken(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media_type))]))
        };
        for native in ["application/grpc", "application/grpc+proto", "Application/gRPC;x=1", "application/grpc ; x=1"] {
            assert_eq!(answered(native).unwrap(), "application/grpc", "{native}");
        }
        for web in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text+proto;x=1"] {
            assert_eq!(answered(web).unwrap(), web);
        }
        for other in [
            "",
            "application/json",
            "application/grp",
            "text/application/grpc",
            "application/grpcfoo",
            "application/grpc-x",
            "application/grpc-website",
            "application/grpc-web-texts",
        ] {
            assert_eq!(answered(other), None, "{other}");
        }
        assert_eq!(spoken(&HeaderMap::new()), None);
    }

    #[test]
    fn a_message_is_encoded_as_the_protocol_says() {
        assert_eq!(percent_encoded("Too many, ~wait~!"), "Too many, ~wait~!");
        assert_eq!(percent_encoded("100 %\r\n"), "100 %25%0D%0A");
        assert_eq!(percent_encoded("später"), "sp%C3%A4ter");
    }

    #[test]
    fn a_client_is_told_when_to_try_again() {
        let answer = |status, headers| Rejection { status, message: "Later.".to_owned(), headers, body: String::new() };
        let failed: Response<ResponseBody<String>> = refusal(answer(503, vec![("retry-after", "1".to_owned())]), GRPC);
        assert_eq!(failed.headers()["grpc-status"], UNAVAILABLE);
        assert_eq!(failed.headers()["grpc-retry-pushback-ms"], "1000");
        let never: Response<ResponseBody<String>> = refusal(answer(429, Vec::new()), GRPC);
        assert_eq!(never.headers()["grpc-status"], EXHAUSTED);
        assert_eq!(never.headers()["grpc-retry-pushback-ms"], "-1");
    }
}
