//! `/v1/forward-auth`: for proxies that ask about each request before they let it pass: nginx, Traefik, Caddy and others. The
//! request that a proxy asks about is put together from what it tells, and goes through the same layer as any other; behind
//! it, there is nothing but a yes.
//!
//! Whom a request comes from is told by `X-Forwarded-For`, and believed as everywhere: from the trusted proxies of the rule
//! file only. What is asked about is told by fields that a proxy must set itself: where two of them disagree, one is the
//! client's, and the call is refused.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri};
use tidegate::spi::Store;
use tidegate_tower::{DegradedMode, Handle, LimitLayer};
use tower::ServiceExt;
use tower_layer::Layer;

use super::api::Refusal;
use crate::degraded::DEGRADED;

/// Where a proxy tells what it was asked: each by the names that proxies use.
const METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
const TARGET: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-url"),
];
const FORWARDED_HOST: [HeaderName; 1] = [HeaderName::from_static("x-forwarded-host")];

/// The status that a refusal has in itself, for a proxy that only understands some.
const DENIED: HeaderName = HeaderName::from_static("x-tidegate-denied");

/// The parameters of a call, as they come.
type Parameters = Query<Vec<(String, String)>>;

pub(crate) fn router<S: Store + 'static, T: Clone + Send + Sync + 'static>(handle: &Handle<S>) -> Router<T> {
    // Nobody could be held here: the proxy waits for a word, and would give up.
    let layer = LimitLayer::from_handle(handle.clone())
        .with_max_delay(Duration::ZERO)
        .with_grpc_rejections(false)
        .with_front_door("forward-auth");
    Router::new().route("/v1/forward-auth", any(judge::<S>).with_state(layer))
}

async fn judge<S: Store + 'static>(
    State(layer): State<LimitLayer<S>>,
    Query(parameters): Parameters,
    call: Request,
) -> Result<Response, Refusal> {
    let status = wanted(&parameters)?;
    let request = asked(call)?;
    let response = match layer.layer(tower::service_fn(pass)).oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    };
    Ok(if response.status().is_success() { response } else { denied(response, status) })
}

/// What stands behind the limits.
async fn pass(request: http::Request<()>) -> Result<http::Response<Body>, Infallible> {
    let mut response = http::Response::new(Body::empty());
    if request.extensions().get::<DegradedMode>().is_some() {
        response.headers_mut().insert(DEGRADED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// The request that the call is about.
fn asked(call: Request) -> Result<http::Request<()>, Refusal> {
    let (mut parts, _) = call.into_parts();
    if let Some(method) = told(&parts.headers, &METHOD)? {
        let method = Method::from_bytes(method.as_bytes());
        parts.method = method.map_err(|_| Refusal::new("X-Forwarded-Method: this is no method"))?;
    }
    let Some(target) = told(&parts.headers, &TARGET)? else {
        let help = "X-Forwarded-Uri is missing: the proxy must tell the path that it was asked for";
        return Err(Refusal::new(help));
    };
    let target = Uri::try_from(target.as_bytes())
        .ok()
        .filter(|uri| uri.path().starts_with('/') || uri.path() == "*")
        .ok_or_else(|| Refusal::new("X-Forwarded-Uri: this is no path, such as `/a?b=c`"))?;
    let host = told(&parts.headers, &FORWARDED_HOST)?.cloned();
    // Some proxies tell the whole address. Of two hosts, one is the client's.
    let of_target = target.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if host.is_some() && of_target.is_some() && host != of_target {
        return Err(Refusal::new("X-Forwarded-Host: the target names another host; the proxy must set both"));
    }
    if let Some(host) = host.or(of_target) {
        parts.headers.insert(HOST, host);
    }
    parts.uri = target.path_and_query().cloned().map(Uri::from).unwrap_or_default();
    Ok(http::Request::from_parts(parts, ()))
}

/// What is told under one of `names`. What is told in two ways cannot be relied upon.
fn told<'h>(headers: &'h HeaderMap, names: &[HeaderName]) -> Result<Option<&'h HeaderValue>, Refusal> {
    let mut lines = names.iter().flat_map(|name| headers.get_all(name));
    let Some(first) = lines.next() else { return Ok(None) };
    if lines.any(|line| line != first) {
        let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
        let help = "the proxy must set one of them, and take off what a client sends";
        return Err(Refusal::new(format!("{}: told in two ways; {help}", names.join(", "))));
    }
    Ok(Some(first))
}

fn denied(mut response: Response, status: Option<StatusCode>) -> Response {
    let own = HeaderValue::from(response.status().as_u16());
    response.headers_mut().insert(DENIED, own);
    if let Some(status) = status {
        *response.status_mut() = status;
    }
    response.into_response()
}

/// The status that a refusal is to have, if not its own.
fn wanted(parameters: &[(String, String)]) -> Result<Option<StatusCode>, Refusal> {
    let deny: Vec<&str> =
        parameters.iter().filter(|(name, _)| name == "deny").map(|(_, status)| status.as_str()).collect();
    match deny.as_slice() {
        [] => Ok(None),
        ["401"] => Ok(Some(StatusCode::UNAUTHORIZED)),
        ["403"] => Ok(Some(StatusCode::FORBIDDEN)),
        ["429"] => Ok(Some(StatusCode::TOO_MANY_REQUESTS)),
        _ => Err(Refusal::new("deny: 401, 403 or 429, once; left out, it is 429, or 503 while the store fails")),
    }
}
