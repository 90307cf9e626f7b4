//! Descriptors against our own rule file.

use crate::{Envoy, hit, with_hits};

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
async fn descriptors_meet_the_rules_by_their_attributes() {
    let mut envoy = Envoy::of_rules(RULES).await;
    let said = envoy.says(hit("edge", &[&[("remote_address", "203.0.113.9")]])).await;
    assert_eq!(said, "OK: OK 2/3 MINUTE edge 40s");
    let said = envoy.says(hit("edge", &[&[("header:x-api-key", "k1"), ("remote_address", "203.0.113.9")]])).await;
    assert_eq!(said, "OK: OK 2/3 MINUTE edge 40s");
    assert_eq!(envoy.says(hit("elsewhere", &[&[("remote_address", "203.0.113.9")]])).await, "OK: OK 0");
}

#[tokio::test]
async fn a_refused_request_consumes_nothing_and_brings_fields_and_a_body() {
    let mut envoy = Envoy::of_rules(RULES).await;
    let login = || hit("edge", &[&[("ip", "203.0.113.9"), (":path", "/login?x=1"), ("account", "a7")]]);
    let passed = envoy.ask(login()).await.unwrap();
    assert_eq!(crate::words(&passed), "OK: OK 0/1 MINUTE login 40s");
    let names = |response: &crate::RateLimitResponse| -> Vec<String> {
        response.response_headers_to_add.iter().map(|field| field.key.clone()).collect()
    };
    assert!(names(&passed).contains(&"ratelimit".to_owned()) && passed.raw_body.is_empty());
    assert!(!names(&passed).contains(&"content-type".to_owned()), "it would replace that of the upstream");
    for _ in 0..3 {
        let refused = envoy.ask(login()).await.unwrap();
        assert_eq!(crate::words(&refused), "OVER_LIMIT: OVER_LIMIT 0/1 MINUTE login 40s");
        for name in ["retry-after", "ratelimit", "content-type"] {
            assert!(names(&refused).contains(&name.to_owned()), "{name}");
        }
        let body = String::from_utf8(refused.raw_body).unwrap();
        assert!(body.contains("\"message\":\"Slow down.\"") && body.contains("\"rule_id\":\"login\""), "{body}");
    }
    let said = envoy.says(hit("edge", &[&[("ip", "203.0.113.9")]])).await;
    assert_eq!(said, "OK: OK 1/3 MINUTE edge 40s");
}

#[tokio::test]
async fn a_rule_that_several_descriptors_meet_counts_the_hits_of_each() {
    let mut envoy = Envoy::of_rules(RULES).await;
    let ann: &[(&str, &str)] = &[("ip", "203.0.113.9"), ("user", "ann")];
    let both = |hits| with_hits(hit("edge", &[ann, &[("ip", "203.0.113.9")]]), 1, hits);
    let expected = "OVER_LIMIT: OVER_LIMIT 3/3 MINUTE edge 40s, OVER_LIMIT 3/3 MINUTE edge 40s";
    assert_eq!(envoy.says(both(3)).await, expected);
    assert_eq!(envoy.says(both(2)).await, "OK: OK 0/3 MINUTE edge 40s, OK 0/3 MINUTE edge 40s");
}

#[tokio::test]
async fn an_entry_can_tell_which_descriptor_a_rule_is_about() {
    let rules = "
version: 1
rules:
  - id: per-address
    match: { action: edge, header: { x-limit: address } }
    per: [ip]
    fixed_window: { limit: 3, window: 1m }
    on_failure: open
";
    let mut envoy = Envoy::of_rules(rules).await;
    let address: &[(&str, &str)] = &[("header:x-limit", "address"), ("remote_address", "203.0.113.9")];
    let both = hit("edge", &[address, &[("remote_address", "203.0.113.9"), ("user", "ann")]]);
    assert_eq!(envoy.says(both).await, "OK: OK 2/3 MINUTE per-address 40s, OK 0");
}

#[tokio::test]
async fn looking_consumes_nothing_by_rules_either() {
    let mut envoy = Envoy::of_rules(RULES).await;
    let look = || with_hits(hit("edge", &[&[("ip", "203.0.113.9")]]), 0, 0);
    for _ in 0..5 {
        assert_eq!(envoy.says(look()).await, "OK: OK 3/3 MINUTE edge 40s");
    }
    assert!(envoy.says(with_hits(hit("edge", &[&[("ip", "203.0.113.9")]]), 0, 3)).await.starts_with("OK:"));
    let refused = envoy.ask(look()).await.unwrap();
    assert_eq!(crate::words(&refused), "OVER_LIMIT: OVER_LIMIT 0/3 MINUTE edge 40s");
    assert!(!refused.raw_body.is_empty());
    // Nor does what stands beside a look that fails.
    let beside = || with_hits(hit("edge", &[&[("ip", "203.0.113.9")], &[("ip", "203.0.113.10")]]), 0, 0);
    for _ in 0..4 {
        let expected = "OVER_LIMIT: OVER_LIMIT 0/3 MINUTE edge 40s, OK 3/3 MINUTE edge 40s";
        assert_eq!(envoy.says(beside()).await, expected);
    }
}

/// Envoy asks and goes on: nobody could hold the request.
#[tokio::test]
async fn a_queue_lets_only_the_first_one_pass() {
    let mut envoy = Envoy::of_rules(RULES).await;
    assert!(envoy.says(hit("jobs", &[&[("k", "v")]])).await.starts_with("OK:"));
    assert!(envoy.says(hit("jobs", &[&[("k", "v")]])).await.starts_with("OVER_LIMIT:"));
}

#[tokio::test]
async fn a_rule_against_guessing_gives_no_numbers_away() {
    let mut envoy = Envoy::of_rules(RULES).await;
    let guess = || hit("guess", &[&[("ip", "203.0.113.9")]]);
    assert_eq!(envoy.says(guess()).await, "OK: OK 0");
    let refused = envoy.ask(guess()).await.unwrap();
    assert_eq!(crate::words(&refused), "OVER_LIMIT: OVER_LIMIT 0 600s");
    assert!(!String::from_utf8(refused.raw_body).unwrap().contains("rule_id"));
}

/// Even of a window in which nothing was counted.
#[tokio::test]
async fn a_window_of_the_calendar_tells_its_unit_and_its_end() {
    let rules = "
version: 1
rules:
  - { id: monthly, match: { action: m }, per: [], fixed_window: { limit: 3, window: month }, on_failure: open }
  - { id: yearly, match: { action: y }, per: [], fixed_window: { limit: 3, window: year }, on_failure: open }
";
    let mut envoy = Envoy::of_rules(rules).await;
    for (action, end) in [("m", "MONTH monthly 1388800s"), ("y", "YEAR yearly 4067200s")] {
        let hit = || hit(action, &[&[("k", "v")]]);
        assert_eq!(envoy.says(with_hits(hit(), 0, 0)).await, format!("OK: OK 3/3 {end}"));
        assert_eq!(envoy.says(with_hits(hit(), 0, 3)).await, format!("OK: OK 0/3 {end}"));
        assert_eq!(envoy.says(hit()).await, format!("OVER_LIMIT: OVER_LIMIT 0/3 {end}"));
    }
}
