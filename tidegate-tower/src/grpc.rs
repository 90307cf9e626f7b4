//! Rejections in gRPC: HTTP 200 without a body, with the status in a header.

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tidegate::http::Rejection;

use crate::ResponseBody;
use crate::limit_headers::append_headers;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// The types of gRPC-Web, without the suffix for the message format.
const GRPC_WEB: [&[u8]; 2] = [b"application/grpc-web", b"application/grpc-web-text"];
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When a client with a retry policy may retry (gRFC A6). Without it, the client uses its own, shorter backoff.
const RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const RETRY_AFTER: &str = "retry-after";

/// The HTTP status of a denial.
const TOO_MANY_REQUESTS: u16 = 429;
/// The gRPC code of a denial.
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");
/// The HTTP status of a store failure.
const SERVICE_UNAVAILABLE: u16 = 503;
/// The gRPC code of a store failure.
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
/// The gRPC code of a request that cannot be judged.
const INVALID_ARGUMENT: HeaderValue = HeaderValue::from_static("3");

/// The content type of the response if the request is gRPC. A gRPC-Web client expects the type that it sent.
pub(crate) fn response_type(headers: &HeaderMap) -> Option<HeaderValue> {
    let media_type = headers.get(CONTENT_TYPE)?;
    if is_type(media_type.as_bytes(), GRPC.as_bytes()) {
        return Some(GRPC);
    }
    GRPC_WEB.iter().any(|web| is_type(media_type.as_bytes(), web)).then(|| media_type.clone())
}

/// Whether `media_type` is `name`, with any message format and parameters.
fn is_type(media_type: &[u8], name: &[u8]) -> bool {
    let Some((start, rest)) = media_type.split_at_checked(name.len()) else { return false };
    start.eq_ignore_ascii_case(name) && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// The gRPC response of a rejection: `RESOURCE_EXHAUSTED` for a denial, `UNAVAILABLE` for a store failure, `INVALID_ARGUMENT` for a
/// request that cannot be judged, and the rate-limit headers as metadata. gRPC-Web, too, allows the status in a header if there is no body.
pub(crate) fn rejection_response<B>(rejection: Rejection, content_type: HeaderValue) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::text(Bytes::new()));
    let headers = response.headers_mut();
    let status = match rejection.status {
        TOO_MANY_REQUESTS => RESOURCE_EXHAUSTED,
        SERVICE_UNAVAILABLE => UNAVAILABLE,
        _ => INVALID_ARGUMENT,
    };
    headers.insert(GRPC_STATUS, status);
    if let Ok(message) = HeaderValue::try_from(percent_encoded(&rejection.message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    let mut limit_headers = rejection.headers;
    // Whole seconds, like `retry-after`: a security rule must not disclose more. A negative number forbids a retry.
    let retry = limit_headers.iter().find(|(name, _)| *name == RETRY_AFTER);
    let pushback = retry.map_or_else(|| "-1".to_owned(), |(_, seconds)| format!("{seconds}000"));
    if let Ok(pushback) = HeaderValue::try_from(pushback) {
        headers.insert(RETRY_PUSHBACK, pushback);
    }
    // These describe the body, and there is none.
    limit_headers.retain(|(name, _)| !matches!(*name, "content-type" | "cache-control"));
    append_headers(headers, limit_headers);
    headers.insert(CONTENT_TYPE, content_type);
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
    fn a_grpc_request_is_recognized_by_its_content_type() {
        let response_to = |media_type: &'static str| {
            response_type(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media_type))]))
        };
        for native in ["application/grpc", "application/grpc+proto", "Application/gRPC;x=1", "application/grpc ; x=1"] {
            assert_eq!(response_to(native).unwrap(), "application/grpc", "{native}");
        }
        for web in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text+proto;x=1"] {
            assert_eq!(response_to(web).unwrap(), web);
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
            assert_eq!(response_to(other), None, "{other}");
        }
        assert_eq!(response_type(&HeaderMap::new()), None);
    }

    #[test]
    fn a_message_is_percent_encoded() {
        assert_eq!(percent_encoded("Too many, ~wait~!"), "Too many, ~wait~!");
        assert_eq!(percent_encoded("100 %\r\n"), "100 %25%0D%0A");
        assert_eq!(percent_encoded("später"), "sp%C3%A4ter");
    }

    #[test]
    fn a_rejection_says_when_to_retry() {
        let rejection = |status, headers| Rejection::new(status, "Later.".to_owned(), headers, String::new());
        let failed: Response<ResponseBody<String>> =
            rejection_response(rejection(503, vec![("retry-after", "1".to_owned())]), GRPC);
        assert_eq!(failed.headers()["grpc-status"], UNAVAILABLE);
        assert_eq!(failed.headers()["grpc-retry-pushback-ms"], "1000");
        let never: Response<ResponseBody<String>> = rejection_response(rejection(429, Vec::new()), GRPC);
        assert_eq!(never.headers()["grpc-status"], RESOURCE_EXHAUSTED);
        assert_eq!(never.headers()["grpc-retry-pushback-ms"], "-1");
    }
}
