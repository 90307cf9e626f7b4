//! Nested layers: a response has the limit headers of one layer only, the innermost one that has any. Tokens count in each.

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use http::StatusCode;
use tidegate::http::{HeaderPolicy, ResetFormat};
use tidegate::rules::UsageKind;
use tidegate::spi::Store;
use tidegate::{OnFailure, Rule};
use tidegate_tower::{LimitLayer, ReservedTokens, TokenUsage, UsageReport};

use crate::layer::{TestResponse, app, burst, limiter, request_with_key, send, wait_until};

/// A policy with other header names than the inner layers use.
fn legacy_policy() -> HeaderPolicy {
    HeaderPolicy::new().with_ratelimit(None).with_x_ratelimit(None).with_legacy_ratelimit(Some(ResetFormat::Delta))
}

/// The response through two layers with ordinary rules around `inner`.
async fn send_through(inner: &LimitLayer<impl Store + 'static>) -> TestResponse {
    let ordinary = |id: &str| LimitLayer::new(limiter([Rule::new(id, burst(9))]));
    send(
        &app(inner.clone()).layer(ordinary("middle")).layer(ordinary("outer").with_header_policy(legacy_policy())),
        request_with_key("k1"),
    )
    .await
}

/// The names of the limit headers, without `retry-after`.
fn limit_header_names(response: &TestResponse) -> Vec<&str> {
    response.headers.keys().map(http::HeaderName::as_str).filter(|name| name.contains("ratelimit")).collect()
}

#[tokio::test]
async fn outer_layers_do_not_disclose_what_a_security_rule_hides() {
    let login = LimitLayer::new(limiter([Rule::new("login", burst(1)).with_security()]));
    let allowed = send_through(&login).await;
    assert_eq!((allowed.status, limit_header_names(&allowed)), (StatusCode::OK, vec![]));
    let denied = send_through(&login).await;
    assert_eq!((denied.status, limit_header_names(&denied)), (StatusCode::TOO_MANY_REQUESTS, vec![]));
    assert_eq!(denied.header("retry-after"), Some("3600"));
}

/// Headers of a rule that allowed the request would contradict the rejection.
#[tokio::test]
async fn outer_layers_add_no_headers_to_a_rejection() {
    let policy = HeaderPolicy::new().with_ratelimit(None);
    let denied =
        send_through(&LimitLayer::new(limiter([Rule::new("inner", burst(0))])).with_header_policy(policy)).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limit_header_names(&denied), ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]);
    assert_eq!(denied.header("x-ratelimit-limit"), Some("0"));

    let closed = Rule::new("pay", burst(9)).with_on_failure(OnFailure::Closed);
    let failed = send_through(&crate::layer::failures::failing_layer([closed], false).0).await;
    assert_eq!((failed.status, limit_header_names(&failed)), (StatusCode::SERVICE_UNAVAILABLE, vec![]));
}

#[tokio::test]
async fn limit_headers_of_two_layers_are_not_mixed() {
    let inner = LimitLayer::new(limiter([Rule::new("inner", burst(5))]))
        .with_header_policy(HeaderPolicy::new().with_ratelimit(None));
    let response = send_through(&inner).await;
    assert_eq!(limit_header_names(&response), ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]);
    assert_eq!(response.header("x-ratelimit-limit"), Some("5"));
}

#[tokio::test]
async fn an_outer_layer_adds_headers_if_no_rule_of_the_inner_layer_applies() {
    let inner = LimitLayer::new(limiter([Rule::new("exports", burst(5)).with_action("export")]));
    assert!(send_through(&inner).await.header("ratelimit").unwrap().starts_with(r#""middle";r=8;"#));
}

/// Otherwise the outer one would keep its estimate.
#[tokio::test]
async fn tokens_are_committed_in_every_layer() {
    let layer = |cost: u64| {
        let rule = Rule::new("tokens", burst(1000)).with_cost(cost).with_usage(UsageKind::Total);
        LimitLayer::new(limiter([rule]))
    };
    let used = TokenUsage { input: 30, output: 7 };
    for (way, left) in [("commit", [963, 963]), ("soon", [963, 963]), ("at end", [963, 963]), ("drop", [900, 800])] {
        let layers = [layer(100), layer(200)];
        let [inner, outer] = layers.each_ref().map(|layer| layer.handle().limiter());
        let remaining = || {
            [&inner, &outer].map(|limiter| {
                let plan = limiter.plan(&tidegate::Request::new("")).with_peek();
                limiter.plans().check_now(&plan).remaining().unwrap()
            })
        };
        let page = get(async move |mut request: Request| {
            let report: UsageReport = request.extensions_mut().remove().unwrap();
            assert_eq!(request.extensions().get(), Some(&ReservedTokens(200)));
            match way {
                "commit" => report.commit(Some(used)).await,
                "soon" => report.spawn_commit(Some(used)),
                "at end" => report.commit_at_end(used),
                _ => drop(report),
            }
        });
        let [inner, outer] = layers;
        send(&Router::new().route("/", page).layer(inner).layer(outer), request_with_key("k1")).await;
        wait_until(|| remaining() == left).await;
    }
}
