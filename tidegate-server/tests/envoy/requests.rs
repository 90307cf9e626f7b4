//! Requests that make no sense, or are too much.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use tidegate_server::envoy::{ConfigHandle, RateLimits};
use tonic::Code;

use crate::{Envoy, clock, handle, hit, no_rules, store};

const PLAIN: &str = "
domain: edge
descriptors:
  - { key: k, rate_limit: { unit: minute, requests_per_unit: 9 } }
";

#[tokio::test]
async fn nonsense_gets_a_clear_error() {
    let many: Vec<&[(&str, &str)]> = vec![&[("k", "v")]; 10_000];
    let long = vec![("k", "v"); 101];
    let mut unit = hit("edge", &[&[("k", "v")]]);
    unit.descriptors[0].limit = Some(RateLimitOverride::default());
    let cases = [
        (hit("", &[&[("k", "v")]]), "rate limit domain must not be empty"),
        (hit("edge", &[]), "rate limit descriptor list must not be empty"),
        (hit("edge", &many), "10000 descriptors in one request; at most 100"),
        (hit("edge", &[&long]), "a descriptor has more than 100 entries"),
        (unit, "the limit of a descriptor has no unit; send one from SECOND to YEAR"),
    ];
    let (mut envoy, mut strict) = (Envoy::of_config(PLAIN).await, Envoy::strict(PLAIN).await);
    for (request, expected) in cases {
        let status = envoy.ask(request.clone()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
        let status = strict.ask(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unknown, expected));
    }
}

#[tokio::test]
async fn more_limits_than_a_plan_takes_are_refused() {
    let names: Vec<String> = (0..33).map(|number| number.to_string()).collect();
    let entries: Vec<[(&str, &str); 1]> = names.iter().map(|name| [("k", name.as_str())]).collect();
    let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(<[_; 1]>::as_slice).collect();
    let mut envoy = Envoy::of_config(PLAIN).await;
    let status = envoy.ask(hit("edge", &descriptors)).await.unwrap_err();
    let expected = "too many limits apply to the request: 33 checks in one plan; at most 32";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    assert!(envoy.says(hit("edge", &descriptors[..32])).await.starts_with("OK:"));
}

#[tokio::test]
async fn a_large_value_is_fine_and_a_message_past_the_bound_is_not() {
    let mut envoy = Envoy::of_config(PLAIN).await;
    let value = "v".repeat(64 * 1024);
    assert_eq!(envoy.says(hit("edge", &[&[("k", &value)]])).await, "OK: OK 8/9 MINUTE 40s");
    let value = "v".repeat(1024 * 1024);
    assert_eq!(envoy.ask(hit("edge", &[&[("k", &value)]])).await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn without_a_configuration_there_is_no_answer_until_there_is_one() {
    let config = ConfigHandle::default();
    let mut envoy = Envoy::of(RateLimits::of_config(handle(no_rules(), store(&clock())), config.clone())).await;
    let status = envoy.ask(hit("edge", &[&[("k", "v")]])).await.unwrap_err();
    assert_eq!(status.message(), "no rate limit configuration loaded");
    config.replace(crate::configs::parse(PLAIN).unwrap());
    assert_eq!(envoy.says(hit("edge", &[&[("k", "v")]])).await, "OK: OK 8/9 MINUTE 40s");
    // What was counted stays counted.
    config.replace(crate::configs::parse(&PLAIN.replace('9', "20")).unwrap());
    assert_eq!(envoy.says(hit("edge", &[&[("k", "v")]])).await, "OK: OK 18/20 MINUTE 40s");
}
