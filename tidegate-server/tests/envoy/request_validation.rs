//! Invalid and oversized requests.

use tidegate_server::envoy::messages::RateLimitOverride;
use tidegate_server::envoy::{ConfigHandle, EnvoyService};
use tonic::Code;

use crate::envoy::{EnvoyClient, clock, handle, hit, no_rules, store};

const PLAIN: &str = "
domain: edge
descriptors:
  - { key: k, rate_limit: { unit: minute, requests_per_unit: 9 } }
";

#[tokio::test]
async fn an_invalid_request_gets_an_error_with_its_reason() {
    let many: Vec<&[(&str, &str)]> = vec![&[("k", "v")]; 10_000];
    let long = vec![("k", "v"); 101];
    let mut unit = hit("edge", &[&[("k", "v")]]);
    unit.descriptors[0].limit = Some(RateLimitOverride::default());
    let cases = [
        (hit("", &[&[("k", "v")]]), "rate limit domain must not be empty"),
        (hit("edge", &[]), "rate limit descriptor list must not be empty"),
        (hit("edge", &many), "the request has more than 100 descriptors"),
        (hit("edge", &[&long]), "a descriptor has more than 100 entries"),
        (unit, "the limit of a descriptor has no unit; send one from SECOND to YEAR"),
    ];
    let (mut client, mut strict) =
        (EnvoyClient::with_config(PLAIN).await, EnvoyClient::with_strict_config(PLAIN).await);
    for (request, expected) in cases {
        let status = client.send(request.clone()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
        let status = strict.send(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unknown, expected));
    }
}

#[tokio::test]
async fn a_request_with_more_limits_than_a_plan_allows_is_rejected() {
    let names: Vec<String> = (0..33).map(|number| number.to_string()).collect();
    let entries: Vec<[(&str, &str); 1]> = names.iter().map(|name| [("k", name.as_str())]).collect();
    let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(<[_; 1]>::as_slice).collect();
    let mut client = EnvoyClient::with_config(PLAIN).await;
    let status = client.send(hit("edge", &descriptors)).await.unwrap_err();
    let expected = "too many limits apply to the request: 33 checks in one plan; at most 32";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    assert!(client.summary(hit("edge", &descriptors[..32])).await.starts_with("OK:"));
}

#[tokio::test]
async fn a_message_over_the_maximum_is_rejected() {
    let mut client = EnvoyClient::with_config(PLAIN).await;
    let value = "v".repeat(64 * 1024);
    assert_eq!(client.summary(hit("edge", &[&[("k", &value)]])).await, "OK: OK 8/9 MINUTE 40s");
    let value = "v".repeat(1024 * 1024);
    assert_eq!(client.send(hit("edge", &[&[("k", &value)]])).await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn requests_fail_until_a_configuration_is_loaded() {
    let config = ConfigHandle::default();
    let mut client =
        EnvoyClient::connect(EnvoyService::from_config(handle(no_rules(), store(&clock())), config.clone())).await;
    let status = client.send(hit("edge", &[&[("k", "v")]])).await.unwrap_err();
    assert_eq!(status.message(), "no rate limit configuration loaded");
    config.replace(crate::envoy::config_files::parse(PLAIN).unwrap());
    assert_eq!(client.summary(hit("edge", &[&[("k", "v")]])).await, "OK: OK 8/9 MINUTE 40s");
    // The counters survive a new configuration.
    config.replace(crate::envoy::config_files::parse(&PLAIN.replace('9', "20")).unwrap());
    assert_eq!(client.summary(hit("edge", &[&[("k", "v")]])).await, "OK: OK 18/20 MINUTE 40s");
}
