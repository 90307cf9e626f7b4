//! Layers around layers: an answer speaks of limits with one voice, that of the innermost layer that had something to say.

use http::StatusCode;
use tidegate::http::{HeaderPolicy, ResetFormat};
use tidegate::spi::Store;
use tidegate::{OnFailure, Rule};
use tidegate_tower::LimitLayer;

use crate::{Heard, app, ask, at_once, from, limiter};

/// Other fields than the layers further in have, so that none of theirs are in the way.
fn fields() -> HeaderPolicy {
    HeaderPolicy::new().with_ratelimit(None).with_x_ratelimit(None).with_legacy_ratelimit(Some(ResetFormat::Delta))
}

/// What a caller hears through two ordinary rules around `inner`.
async fn through(inner: &LimitLayer<impl Store + 'static>) -> Heard {
    let ordinary = |id: &str| LimitLayer::new(limiter([Rule::new(id, at_once(9))]));
    ask(&app(inner.clone()).layer(ordinary("middle")).layer(ordinary("outer").contract(fields())), from("k1")).await
}

/// The fields that tell of limits, `retry-after` not among them.
fn numbers(heard: &Heard) -> Vec<&str> {
    heard.headers.keys().map(http::HeaderName::as_str).filter(|name| name.contains("ratelimit")).collect()
}

#[tokio::test]
async fn what_a_rule_against_guessing_keeps_no_layer_gives_away() {
    let login = LimitLayer::new(limiter([Rule::new("login", at_once(1)).with_security()]));
    let allowed = through(&login).await;
    assert_eq!((allowed.status, numbers(&allowed)), (StatusCode::OK, vec![]));
    let denied = through(&login).await;
    assert_eq!((denied.status, numbers(&denied)), (StatusCode::TOO_MANY_REQUESTS, vec![]));
    assert_eq!(denied.header("retry-after"), Some("3600"));
}

/// A refusal with the numbers of a rule that let the request pass would say that there is enough left.
#[tokio::test]
async fn nothing_is_added_to_a_refusal() {
    let contract = HeaderPolicy::new().with_ratelimit(None);
    let denied = through(&LimitLayer::new(limiter([Rule::new("inner", at_once(0))])).contract(contract)).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(numbers(&denied), ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]);
    assert_eq!(denied.header("x-ratelimit-limit"), Some("0"));

    let closed = Rule::new("pay", at_once(9)).with_on_failure(OnFailure::Closed);
    let failed = through(&crate::failures::failing([closed], false).0).await;
    assert_eq!((failed.status, numbers(&failed)), (StatusCode::SERVICE_UNAVAILABLE, vec![]));
}

#[tokio::test]
async fn numbers_of_two_layers_are_not_mixed() {
    let inner =
        LimitLayer::new(limiter([Rule::new("inner", at_once(5))])).contract(HeaderPolicy::new().with_ratelimit(None));
    let heard = through(&inner).await;
    assert_eq!(numbers(&heard), ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]);
    assert_eq!(heard.header("x-ratelimit-limit"), Some("5"));
}

#[tokio::test]
async fn a_layer_without_a_rule_for_the_request_leaves_the_word_to_the_next() {
    let inner = LimitLayer::new(limiter([Rule::new("exports", at_once(5)).with_action("export")]));
    assert!(through(&inner).await.header("ratelimit").unwrap().starts_with(r#""middle";r=8;"#));
}
