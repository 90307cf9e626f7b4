//! `/v1/forward-auth`: for proxies that ask before they forward a request: nginx, Traefik, Caddy and others. The original
//! request is rebuilt from the headers of the call and sent through the tower layer, around a service that answers 200.
//!
//! The client address comes from `X-Forwarded-For`, if the proxy is one of the rule file's trusted proxies. Method, target and
//! host come from headers that the proxy must set; if two of them disagree, one may be the client's, and the call is refused.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri, Version};
use http_body::Frame;
use tidegate::spi::Store;
use tidegate_tower::{DegradedMode, Handle, LimitLayer};
use tower::ServiceExt;
use tower_layer::Layer;

use super::DEGRADED_HEADER;
use super::check::BadRequest;
use crate::engine::client_resolver::ClientResolver;

/// Headers with the original method, as different proxies name them.
const METHOD_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
/// Headers with the original path and query.
const TARGET_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-url"),
];
/// The header with the original host.
const HOST_HEADERS: [HeaderName; 1] = [HeaderName::from_static("x-forwarded-host")];

/// The original status of a refusal, for proxies that pass on only some statuses.
const DENIED_HEADER: HeaderName = HeaderName::from_static("x-tidegate-denied");

/// The body of the original request, which the proxy keeps: its size is not known here.
struct UnseenBody;

/// The query parameters of a call, in order.
type Parameters = Query<Vec<(String, String)>>;

pub(crate) fn router<S: Store + 'static, T: Clone + Send + Sync + 'static>(
    handle: &Handle<S>,
    clients: &Arc<ClientResolver>,
) -> Router<T> {
    // The proxy waits for a short time only, so no request is delayed here. It does not say when a request ends, so a slot of a
    // concurrency limit is held for its whole lease.
    let layer = LimitLayer::from_handle(handle.clone())
        .with_max_delay(Duration::ZERO)
        .with_grpc_rejections(false)
        .with_held_leases(false)
        .with_front_door("forward-auth");
    Router::new().route("/v1/forward-auth", any(decide::<S>).with_state((layer, Arc::clone(clients))))
}

async fn decide<S: Store + 'static>(
    State((layer, clients)): State<(LimitLayer<S>, Arc<ClientResolver>)>,
    Query(parameters): Parameters,
    call: Request,
) -> Result<Response, BadRequest> {
    let status = deny_status(&parameters)?;
    if let Some(peer) = call.extensions().get::<SocketAddr>() {
        clients.count_call(peer.ip(), call.headers());
    }
    let request = original_request(call)?;
    let response = match layer.layer(tower::service_fn(allow)).oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    };
    // A request that cannot be judged is a bad request for every proxy; only a denial may have another status.
    let is_denial = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    Ok(if is_denial { denied(response, status) } else { response })
}

/// The service behind the limits.
async fn allow(request: http::Request<UnseenBody>) -> Result<http::Response<Body>, Infallible> {
    let mut response = http::Response::new(Body::empty());
    if request.extensions().get::<DegradedMode>().is_some() {
        response.headers_mut().insert(DEGRADED_HEADER, HeaderValue::from_static("true"));
    }
    Ok(response)
}

impl http_body::Body for UnseenBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }
}

/// The request that the proxy asks about.
fn original_request(call: Request) -> Result<http::Request<UnseenBody>, BadRequest> {
    let (mut parts, _) = call.into_parts();
    if let Some(method) = single_value(&parts.headers, &METHOD_HEADERS)? {
        let method = Method::from_bytes(method.as_bytes());
        parts.method = method.map_err(|_| BadRequest::new("X-Forwarded-Method: this is not a method"))?;
    }
    let Some(target) = single_value(&parts.headers, &TARGET_HEADERS)? else {
        let help = "X-Forwarded-Uri is missing: the proxy must set it to the original path";
        return Err(BadRequest::new(help));
    };
    let target = Uri::try_from(target.as_bytes())
        .ok()
        .filter(|uri| uri.path().starts_with('/') || uri.path() == "*")
        .ok_or_else(|| BadRequest::new("X-Forwarded-Uri: this is not a path, such as `/a?b=c`"))?;
    let host = single_value(&parts.headers, &HOST_HEADERS)?.cloned();
    // Some proxies send an absolute URI. Of two different hosts, one may be the client's.
    let target_host = target.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if host.is_some() && target_host.is_some() && host != target_host {
        return Err(BadRequest::new("X-Forwarded-Host: the target names another host; the proxy must set both"));
    }
    if let Some(host) = host.or(target_host) {
        parts.headers.insert(HOST, host);
    }
    parts.uri = target.path_and_query().cloned().map(Uri::from).unwrap_or_default();
    // Those of the call say nothing about the body of the original request.
    parts.headers.remove(CONTENT_LENGTH);
    parts.version = Version::HTTP_2;
    Ok(http::Request::from_parts(parts, UnseenBody))
}

/// The value of the headers `names`. Different values are refused: one of them may be the client's.
fn single_value<'h>(headers: &'h HeaderMap, names: &[HeaderName]) -> Result<Option<&'h HeaderValue>, BadRequest> {
    let mut lines = names.iter().flat_map(|name| headers.get_all(name));
    let Some(first) = lines.next() else { return Ok(None) };
    if lines.any(|line| line != first) {
        let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
        let help = "the proxy must set one of them and remove those of the client";
        return Err(BadRequest::new(format!("{}: different values; {help}", names.join(", "))));
    }
    Ok(Some(first))
}

fn denied(mut response: Response, status: Option<StatusCode>) -> Response {
    let own = HeaderValue::from(response.status().as_u16());
    response.headers_mut().insert(DENIED_HEADER, own);
    if let Some(status) = status {
        *response.status_mut() = status;
    }
    response.into_response()
}

/// The status for refusals that the caller chose, if any.
fn deny_status(parameters: &[(String, String)]) -> Result<Option<StatusCode>, BadRequest> {
    let deny: Vec<&str> =
        parameters.iter().filter(|(name, _)| name == "deny").map(|(_, status)| status.as_str()).collect();
    match deny.as_slice() {
        [] => Ok(None),
        ["401"] => Ok(Some(StatusCode::UNAUTHORIZED)),
        ["403"] => Ok(Some(StatusCode::FORBIDDEN)),
        ["429"] => Ok(Some(StatusCode::TOO_MANY_REQUESTS)),
        _ => {
            Err(BadRequest::new("deny must be 401, 403 or 429, once; the default is 429, or 503 while the store fails"))
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use tidegate::limits::{Period, Periods};
    use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rule, RuleSet};
    use tidegate_rules::RuleFile;

    use super::*;
    use crate::observe::metrics::untrusted_forwarded::UntrustedForwarded;

    #[tokio::test]
    async fn a_slot_is_held_for_its_whole_lease_since_the_end_of_the_request_is_not_known() {
        let (clock, lease) = (ManualClock::default(), Duration::from_secs(30));
        let rule = Rule::new("exports", Limit::concurrency(1, lease).unwrap());
        let store = Arc::new(MemoryStore::new().with_clock(clock.clone()));
        let handle = Handle::new(Limiter::new(RuleSet::new([rule]).unwrap(), store));
        let file = RuleFile::parse("rules.yaml", "version: 1\nrules: []\n").unwrap();
        let clients = Arc::new(ClientResolver::new(
            "none".parse().unwrap(),
            &file,
            UntrustedForwarded::new(&mut Registry::default()),
        ));
        let app: Router = router(&handle, &clients).with_state(());
        let ask = async || {
            let call = http::Request::get("/v1/forward-auth").header("x-forwarded-uri", "/export");
            app.clone().oneshot(call.body(Body::empty()).unwrap()).await.unwrap().status()
        };
        assert_eq!([ask().await, ask().await], [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS]);
        clock.advance(lease.saturating_sub(Duration::from_micros(1)));
        assert_eq!(ask().await, StatusCode::TOO_MANY_REQUESTS);
        clock.advance(Duration::from_micros(1));
        assert_eq!((ask().await, handle.held_leases()), (StatusCode::OK, 0));
    }

    #[tokio::test]
    async fn the_answer_says_that_the_grace_of_a_quota_is_used_whatever_the_client_claims() {
        let limit = Limit::quota_with_grace(1, 1, Periods::utc(Period::Year)).unwrap();
        let limiter = Limiter::new(RuleSet::new([Rule::new("year", limit)]).unwrap(), Arc::new(MemoryStore::new()));
        let file = RuleFile::parse("rules.yaml", "version: 1\nrules: []\n").unwrap();
        let clients = Arc::new(ClientResolver::new(
            "none".parse().unwrap(),
            &file,
            UntrustedForwarded::new(&mut Registry::default()),
        ));
        let app: Router = router(&Handle::new(limiter), &clients).with_state(());
        let mut answers = Vec::new();
        for _ in 0..3 {
            let call = http::Request::get("/v1/forward-auth").header("x-forwarded-uri", "/");
            let call = call.header("x-tidegate-grace", "true").body(Body::empty()).unwrap();
            let response = app.clone().oneshot(call).await.unwrap();
            answers.push((response.status().as_u16(), response.headers().contains_key("x-tidegate-grace")));
        }
        assert_eq!(answers, [(200, false), (200, true), (429, false)]);
    }

    #[tokio::test]
    async fn a_denial_has_the_format_of_its_rule_whatever_status_the_proxy_asks_for() {
        let limit = Limit::quota(1, Periods::utc(Period::Year)).unwrap();
        let rule = Rule::new("year", limit).with_usage(tidegate::rules::UsageKind::Total);
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), Arc::new(MemoryStore::new()));
        let file = RuleFile::parse("rules.yaml", "version: 1\nrules: []\n").unwrap();
        let clients = Arc::new(ClientResolver::new(
            "none".parse().unwrap(),
            &file,
            UntrustedForwarded::new(&mut Registry::default()),
        ));
        let app: Router = router(&Handle::new(limiter), &clients).with_state(());
        for (address, status) in
            [("/v1/forward-auth", 200), ("/v1/forward-auth", 429), ("/v1/forward-auth?deny=403", 403)]
        {
            let call =
                http::Request::get(address).header("x-forwarded-uri", "/v1/messages").body(Body::empty()).unwrap();
            let response = app.clone().oneshot(call).await.unwrap();
            assert_eq!(response.status().as_u16(), status, "{address}");
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
            let is_openai =
                body.ends_with(br#""type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#);
            assert_eq!(is_openai, status != 200, "{body:?}");
        }
    }
}
