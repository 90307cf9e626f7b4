//! `dynamic_metadata` of responses.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use tidegate_server::envoy::messages::{RateLimitOverride, RateLimitUnit, Struct, Value, ValueKind};
use tidegate_server::envoy::{EnvoyOptions, router};
use tower::ServiceExt;

use crate::envoy::{EnvoyClient, hit, service, with_hits};

const LIMITS: &str = "
domain: edge
descriptors:
  - key: model
    value: large
    quota_mode: true
    metadata: { route: { to: large, weight: 2.5 }, tags: [a, 1, true, ~], only: large }
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: model
    value: small
    quota_mode: true
    metadata: { route: { to: small, from: here }, tags: [b] }
    rate_limit: { unit: minute, requests_per_unit: 9 }
  - key: plain
    rate_limit: { unit: minute, requests_per_unit: 9 }
  - key: free
    metadata: { never: sent }
    rate_limit: { unlimited: true }
";

fn json_of(metadata: &Struct) -> serde_json::Value {
    let value = |value: &Value| match value.kind.as_ref().unwrap() {
        ValueKind::StructValue(fields) => json_of(fields),
        ValueKind::ListValue(list) => list.values.iter().map(|value| json_of(&wrapped(value))["v"].clone()).collect(),
        ValueKind::StringValue(text) => json!(text),
        ValueKind::NumberValue(number) => json!(number),
        ValueKind::BoolValue(flag) => json!(flag),
        ValueKind::NullValue(_) => serde_json::Value::Null,
    };
    metadata.fields.iter().map(|(name, field)| (name.clone(), value(field))).collect::<serde_json::Map<_, _>>().into()
}

fn wrapped(value: &Value) -> Struct {
    Struct { fields: [("v".to_owned(), value.clone())].into() }
}

#[tokio::test]
async fn dynamic_metadata_contains_the_request_and_the_metadata_of_passed_limits() {
    let mut client = EnvoyClient::connect(service(LIMITS, &EnvoyOptions::default()).with_metadata(true)).await;
    let models = || hit("edge", &[&[("model", "large")][..], &[("model", "small")], &[("free", "v")]]);
    let descriptors = json!([
        { "entries": ["model=large"] }, { "entries": ["model=small"] }, { "entries": ["free=v"] },
    ]);
    let first = json_of(&client.send(models()).await.unwrap().dynamic_metadata.unwrap());
    let metadata = json!({
        "route": { "to": "large", "weight": 2.5, "from": "here" }, "tags": ["a", 1.0, true, null], "only": "large",
    });
    assert_eq!(first, json!({ "domain": "edge", "descriptors": descriptors, "metadata": metadata }));
    // The large model is exhausted; only the metadata of the other is sent.
    let second = json_of(&client.send(models()).await.unwrap().dynamic_metadata.unwrap());
    assert_eq!(second["metadata"], json!({ "route": { "to": "small", "from": "here" }, "tags": ["b"] }));
}

#[tokio::test]
async fn dynamic_metadata_contains_the_hits_and_limits_of_the_request() {
    let mut client = EnvoyClient::connect(service(LIMITS, &EnvoyOptions::default()).with_metadata(true)).await;
    let mut request = with_hits(hit("edge", &[&[("plain", "v"), ("user", "ann")]]), 0, 3);
    request.hits_addend = 2;
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 7, unit: RateLimitUnit::Hour.into() });
    let metadata = json_of(&client.send(request).await.unwrap().dynamic_metadata.unwrap());
    let descriptor = json!({
        "entries": ["plain=v", "user=ann"], "limit": "requests_per_unit:7 unit:HOUR", "hitsAddend": 3.0,
    });
    assert_eq!(metadata, json!({ "domain": "edge", "descriptors": [descriptor], "hitsAddend": 2.0 }));
}

#[tokio::test]
async fn dynamic_metadata_is_off_by_default() {
    let mut client = EnvoyClient::with_config(LIMITS).await;
    assert!(client.send(hit("edge", &[&[("model", "small")]])).await.unwrap().dynamic_metadata.is_none());
}

#[tokio::test]
async fn dynamic_metadata_is_an_object_in_json() {
    let router = router(service(LIMITS, &EnvoyOptions::default()).with_metadata(true));
    let body = r#"{"domain":"edge","hitsAddend":1,"descriptors":[{"entries":[{"key":"model","value":"small"}]}]}"#;
    let response = router.oneshot(Request::post("/json").body(Body::from(body)).unwrap()).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let response: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let expected = json!({
        "domain": "edge",
        "hitsAddend": 1,
        "descriptors": [{ "entries": ["model=small"] }],
        "metadata": { "route": { "to": "small", "from": "here" }, "tags": ["b"] },
    });
    assert_eq!(response["dynamicMetadata"], expected);
}
