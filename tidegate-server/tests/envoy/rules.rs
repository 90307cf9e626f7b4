//! Descriptors with limits of the rule file.

use crate::envoy::{EnvoyClient, hit, with_hits};

const RULES: &str = "
version: 1
identify:
  client: [header:x-api-key, ip]
  authenticated: [x-api-key]
rules:
  - id: edge
    match: { action: edge }
    per: [client]
    fixed_window: { limit: 3, window: 1m }
    on_failure: open
  - id: login
    match: { action: edge, path: /login }
    per: [attr:account]
    fixed_window: { limit: 1, window: 1m }
    on_failure: open
    message: Slow down.
  - id: queue
    match: { action: jobs }
    per: []
    leaky_bucket: { rate: 1/m, queue: 5 }
    on_failure: open
  - id: guess
    match: { action: guess }
    per: [ip]
    sliding_log: { limit: 1, window: 10m }
    on_failure: closed
    security: true
";

#[tokio::test]
async fn descriptor_entries_are_matched_as_attributes() {
    let mut client = EnvoyClient::with_rules(RULES).await;
    let summary = client.summary(hit("edge", &[&[("remote_address", "203.0.113.9")]])).await;
    assert_eq!(summary, "OK: OK 2/3 MINUTE edge 40s");
    let summary =
        client.summary(hit("edge", &[&[("header:x-api-key", "k1"), ("remote_address", "203.0.113.9")]])).await;
    assert_eq!(summary, "OK: OK 2/3 MINUTE edge 40s");
    assert_eq!(client.summary(hit("elsewhere", &[&[("remote_address", "203.0.113.9")]])).await, "OK: OK 0");
}

/// An entry `tenant` is what the configuration of Envoy sets; a header is what the client sends.
#[tokio::test]
async fn spellings_and_tenants_that_nobody_authenticates_multiply_no_limit_of_a_descriptor() {
    let rules = "
version: 1
identify: { client: header:authorization, tenant: header:x-tenant-id, authenticated: [authorization] }
rules:
  - { id: edge, per: [client], fixed_window: { limit: 9, window: 1m }, on_failure: open }
";
    let mut client = EnvoyClient::with_rules(rules).await;
    let spellings = ["Basic emVkOnA=", "basic  emVkOnB=", "BASIC\temVkOnA"];
    for (index, (spelling, tenant)) in spellings.into_iter().zip(["acme", "blue", "red"]).enumerate() {
        let entries = [("header:authorization", spelling), ("header:x-tenant-id", tenant)];
        let summary = client.summary(hit("edge", &[&entries])).await;
        assert_eq!(summary, format!("OK: OK {}/9 MINUTE edge 40s", 8 - index), "{spelling}");
    }
    let set = [("header:authorization", spellings[0]), ("tenant", "acme")];
    assert_eq!(client.summary(hit("edge", &[&set])).await, "OK: OK 8/9 MINUTE edge 40s");
}

#[tokio::test]
async fn a_denied_request_consumes_nothing_and_has_headers_and_a_body() {
    let mut client = EnvoyClient::with_rules(RULES).await;
    let login = || hit("edge", &[&[("ip", "203.0.113.9"), (":path", "/login?x=1"), ("account", "a7")]]);
    let passed = client.send(login()).await.unwrap();
    assert_eq!(crate::envoy::summarize(&passed), "OK: OK 0/1 MINUTE login 40s");
    let names = |response: &crate::envoy::RateLimitResponse| -> Vec<String> {
        response.response_headers_to_add.iter().map(|field| field.key.clone()).collect()
    };
    assert!(names(&passed).contains(&"ratelimit".to_owned()) && passed.raw_body.is_empty());
    assert!(!names(&passed).contains(&"content-type".to_owned()), "it would replace that of the upstream");
    for _ in 0..3 {
        let denied = client.send(login()).await.unwrap();
        assert_eq!(crate::envoy::summarize(&denied), "OVER_LIMIT: OVER_LIMIT 0/1 MINUTE login 40s");
        for name in ["retry-after", "ratelimit", "content-type"] {
            assert!(names(&denied).contains(&name.to_owned()), "{name}");
        }
        let body = String::from_utf8(denied.raw_body).unwrap();
        assert!(body.contains("\"message\":\"Slow down.\"") && body.contains("\"rule_id\":\"login\""), "{body}");
    }
    let summary = client.summary(hit("edge", &[&[("ip", "203.0.113.9")]])).await;
    assert_eq!(summary, "OK: OK 1/3 MINUTE edge 40s");
}

#[tokio::test]
async fn a_denial_has_the_format_of_its_rule() {
    let rules = RULES.replace("    message: Slow down.\n", "    message: Slow down.\n    error_format: openai\n");
    let mut client = EnvoyClient::with_rules(&rules).await;
    let login = || hit("edge", &[&[("ip", "203.0.113.9"), (":path", "/login"), ("account", "a7")]]);
    client.send(login()).await.unwrap();
    let denied = client.send(login()).await.unwrap();
    let error = r#"{"message":"Slow down.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}"#;
    assert_eq!(String::from_utf8(denied.raw_body).unwrap(), format!(r#"{{"type":"error","error":{error}}}"#));
}

#[tokio::test]
async fn a_path_counts_under_every_reading() {
    let mut client = EnvoyClient::with_rules(RULES).await;
    let login = |path: &str| hit("edge", &[&[("ip", "203.0.113.9"), (":path", path), ("account", "a7")]]);
    assert_eq!(client.summary(login("/login")).await, "OK: OK 0/1 MINUTE login 40s");
    for path in ["//login", "/x%2F..%2Flogin?x", "/x/../login", "/login;x", "/x\\..\\login"] {
        let summary = client.summary(login(path)).await;
        assert_eq!(summary, "OVER_LIMIT: OVER_LIMIT 0/1 MINUTE login 40s", "{path}");
    }
    // More than four readings. An error would let the request pass where Envoy is configured so.
    let both = hit("edge", &[&[("ip", "203.0.113.9")], &[("ip", "203.0.113.9"), (":path", "/a;b%2Fc\\d")]]);
    assert_eq!(client.summary(both).await, "OVER_LIMIT: OK 0, OK 0");
}

/// An error would let the request pass where Envoy is configured so.
#[tokio::test]
async fn a_descriptor_without_what_a_rule_must_count_by_is_over_the_limit_and_counts_nobody() {
    let rules = RULES.replace("per: [attr:account]", "per: [attr:account]\n    on_missing: error");
    let mut client = EnvoyClient::with_rules(&rules).await;
    let login =
        |entries: &[(&str, &str)]| hit("edge", &[&[&[("ip", "203.0.113.9"), (":path", "/login")], entries].concat()]);
    assert_eq!(client.summary(login(&[])).await, "OVER_LIMIT: OK 0");
    assert_eq!(client.summary(login(&[("account", "")])).await, "OVER_LIMIT: OK 0");
    assert_eq!(client.summary(login(&[("account", "a7")])).await, "OK: OK 0/1 MINUTE login 40s");
    let other = hit("edge", &[&[("ip", "203.0.113.9")]]);
    assert_eq!(client.summary(other).await, "OK: OK 1/3 MINUTE edge 40s", "what was refused counted nowhere");
}

#[tokio::test]
async fn a_rule_for_several_descriptors_counts_the_hits_of_each() {
    let mut client = EnvoyClient::with_rules(RULES).await;
    let ann: &[(&str, &str)] = &[("ip", "203.0.113.9"), ("user", "ann")];
    let both = |hits| with_hits(hit("edge", &[ann, &[("ip", "203.0.113.9")]]), 1, hits);
    let expected = "OVER_LIMIT: OVER_LIMIT 3/3 MINUTE edge 40s, OVER_LIMIT 3/3 MINUTE edge 40s";
    assert_eq!(client.summary(both(3)).await, expected);
    assert_eq!(client.summary(both(2)).await, "OK: OK 0/3 MINUTE edge 40s, OK 0/3 MINUTE edge 40s");
}

#[tokio::test]
async fn a_rule_can_match_one_descriptor_by_an_entry() {
    let rules = "
version: 1
rules:
  - id: per-address
    match: { action: edge, header: { x-limit: address } }
    per: [ip]
    fixed_window: { limit: 3, window: 1m }
    on_failure: open
";
    let mut client = EnvoyClient::with_rules(rules).await;
    let address: &[(&str, &str)] = &[("header:x-limit", "address"), ("remote_address", "203.0.113.9")];
    let both = hit("edge", &[address, &[("remote_address", "203.0.113.9"), ("user", "ann")]]);
    assert_eq!(client.summary(both).await, "OK: OK 2/3 MINUTE per-address 40s, OK 0");
}

#[tokio::test]
async fn a_peek_at_a_rule_consumes_nothing() {
    let mut client = EnvoyClient::with_rules(RULES).await;
    let peek = || with_hits(hit("edge", &[&[("ip", "203.0.113.9")]]), 0, 0);
    for _ in 0..5 {
        assert_eq!(client.summary(peek()).await, "OK: OK 3/3 MINUTE edge 40s");
    }
    assert!(client.summary(with_hits(hit("edge", &[&[("ip", "203.0.113.9")]]), 0, 3)).await.starts_with("OK:"));
    let denied = client.send(peek()).await.unwrap();
    assert_eq!(crate::envoy::summarize(&denied), "OVER_LIMIT: OVER_LIMIT 0/3 MINUTE edge 40s");
    assert!(!denied.raw_body.is_empty());
    // A denied peek keeps the other descriptors from consuming.
    let beside = || with_hits(hit("edge", &[&[("ip", "203.0.113.9")], &[("ip", "203.0.113.10")]]), 0, 0);
    for _ in 0..4 {
        let expected = "OVER_LIMIT: OVER_LIMIT 0/3 MINUTE edge 40s, OK 3/3 MINUTE edge 40s";
        assert_eq!(client.summary(beside()).await, expected);
    }
}

/// The service cannot delay a request, so queued requests are denied.
#[tokio::test]
async fn a_leaky_bucket_admits_only_requests_without_delay() {
    let mut client = EnvoyClient::with_rules(RULES).await;
    assert!(client.summary(hit("jobs", &[&[("k", "v")]])).await.starts_with("OK:"));
    assert!(client.summary(hit("jobs", &[&[("k", "v")]])).await.starts_with("OVER_LIMIT:"));
}

#[tokio::test]
async fn a_security_rule_shows_no_numbers() {
    let mut client = EnvoyClient::with_rules(RULES).await;
    let guess = || hit("guess", &[&[("ip", "203.0.113.9")]]);
    assert_eq!(client.summary(guess()).await, "OK: OK 0");
    let denied = client.send(guess()).await.unwrap();
    assert_eq!(crate::envoy::summarize(&denied), "OVER_LIMIT: OVER_LIMIT 0 600s");
    assert!(!String::from_utf8(denied.raw_body).unwrap().contains("rule_id"));
}

/// Even if nothing was counted in the window.
#[tokio::test]
async fn a_calendar_window_shows_its_unit_and_its_end() {
    let rules = "
version: 1
rules:
  - { id: monthly, match: { action: m }, per: [], fixed_window: { limit: 3, window: month }, on_failure: open }
  - { id: yearly, match: { action: y }, per: [], fixed_window: { limit: 3, window: year }, on_failure: open }
";
    let mut client = EnvoyClient::with_rules(rules).await;
    for (action, end) in [("m", "MONTH monthly 1388800s"), ("y", "YEAR yearly 4067200s")] {
        let hit = || hit(action, &[&[("k", "v")]]);
        assert_eq!(client.summary(with_hits(hit(), 0, 0)).await, format!("OK: OK 3/3 {end}"));
        assert_eq!(client.summary(with_hits(hit(), 0, 3)).await, format!("OK: OK 0/3 {end}"));
        assert_eq!(client.summary(hit()).await, format!("OVER_LIMIT: OVER_LIMIT 0/3 {end}"));
    }
}

/// Envoy does not say when a request ends.
#[tokio::test]
async fn a_slot_of_a_concurrency_limit_is_not_released_with_the_response() {
    let rules = "
version: 1
rules:
  - { id: exports, match: { action: edge }, per: [], concurrency: { max: 2, lease: 30s }, on_failure: open }
";
    let mut client = EnvoyClient::with_rules(rules).await;
    for code in ["OK", "OK", "OVER_LIMIT", "OVER_LIMIT"] {
        let summary = client.summary(hit("edge", &[&[("remote_address", "203.0.113.9")]])).await;
        assert!(summary.starts_with(&format!("{code}: ")), "{summary}");
    }
}
