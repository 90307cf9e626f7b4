//! `JsonBody`: the body of a call that is declared as JSON. A web page cannot declare it across origins without the permission of the
//! server, which is never given.

use axum::Json;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde_json::json;

/// The body of a call with `Content-Type: application/json`; 415 without it.
pub(crate) struct JsonBody(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        if !is_json(request.headers()) {
            let message = "Send the JSON with `Content-Type: application/json`.";
            let body = Json(json!({ "error": "unsupported_media_type", "message": message }));
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, body).into_response());
        }
        Bytes::from_request(request, state).await.map(Self).map_err(IntoResponse::into_response)
    }
}

/// Whether the only content type is `application/json`, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(first), None) = (types.next(), types.next()) else { return false };
    let name = first.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn has_json(types: &[&'static str]) -> bool {
        let values = types.iter().map(|value| (CONTENT_TYPE, HeaderValue::from_static(value)));
        is_json(&values.collect())
    }

    /// A page may send the other types across origins without asking: `text/plain`, forms, or none.
    #[test]
    fn only_application_json_is_json() {
        for types in [&["application/json"], &["Application/JSON; charset=utf-8"], &["application/json ;x"]] {
            assert!(has_json(types), "{types:?}");
        }
        for types in [
            &[][..],
            &[""],
            &["text/plain"],
            &["text/plain; application/json"],
            &["application/x-www-form-urlencoded"],
            &["application/jsonx"],
            &["text/plain, application/json"],
            &["text/plain", "application/json"],
            &["application/json", "application/json"],
        ] {
            assert!(!has_json(types), "{types:?}");
        }
    }
}
