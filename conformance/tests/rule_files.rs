//! A rule file on every store: the same decisions from memory, from Redis and from Valkey, before and after it changes.

use std::time::Duration;

use conformance::suite::{AnyStore, StoreFixture, limits_with_window, on_every_store};
use tidegate::grants::Costs;
use tidegate::{Ending, Limiter, OnFailure, Request, Secret, StoreError, StoreErrorKind};
use tidegate_rules::RuleFile;

const FILE: &str = "
version: 1
identify:
  client: [header:x-api-key, ip]
  tenant: header:x-tenant-id
  authenticated: [x-api-key, x-tenant-id]
plans:
  pro: { api: { token_bucket: { capacity: 10, refill: 5/s } } }
tenants: { acme: pro }
rules:
  - { id: api, match: { path: '/api/*' }, per: [client], token_bucket: { capacity: 4, refill: 2/s }, on_failure: open }
  - { id: reads, match: { method: GET }, per: [tenant], budget: units, fixed_window: { limit: 12, window: 1h } }
  - { id: writes, match: { method: POST }, per: [tenant], budget: units, cost: 3, on_failure: closed, fixed_window: { limit: 12, window: 1h } }
  - id: export
    match: { path: /api/exports }
    per: [tenant, client]
    cost: 1 + request.size / 1000
    limits:
      minute: { sliding_window: { limit: 5, window: 1m } }
      day: { sliding_log: { limit: 6, window: 1d } }
";

fn file(text: &str) -> RuleFile {
    RuleFile::parse("rules.yaml", text).unwrap()
}

fn limiter(fixture: &StoreFixture, text: &str) -> Limiter<AnyStore> {
    Limiter::new(file(text).rules().clone(), fixture.store.clone()).with_secret(&Secret::new("of the fleet"))
}

fn request<'a>(method: &'a str, path: &'a str, tenant: &'a str) -> Request<'a> {
    let request = Request::new("").with_attribute("method", method).with_attribute("path", path);
    request
        .with_attribute("header:x-api-key", "k1")
        .with_attribute("header:x-tenant-id", tenant)
        .with_attribute("ip", "192.0.2.1")
}

/// `+` and the remaining units for each allowed request, `-` and the rule for each denied one.
async fn decisions(limiter: &Limiter<AnyStore>, request: &Request<'_>, times: usize) -> String {
    let mut story = Vec::new();
    for _ in 0..times {
        let decision = limiter.check(request).await.unwrap();
        let (rule, left) = (decision.rule().unwrap_or("none"), decision.remaining().unwrap_or_default());
        story.push(if decision.is_allowed() { format!("+{left}") } else { format!("-{rule}") });
    }
    story.join(" ")
}

#[tokio::test]
async fn a_rule_file_decides_the_same_on_every_store() {
    on_every_store(async |fixture| {
        let limiter = limiter(fixture, FILE);
        let (read, write) = (request("GET", "/api/rides", "blue"), request("POST", "/api/rides", "blue"));
        assert_eq!(decisions(&limiter, &write, 3).await, "+3 +2 +1", "of four requests at once");
        assert_eq!(decisions(&limiter, &read, 2).await, "+0 -api");
        fixture.clock.advance(Duration::from_secs(2));
        assert_eq!(
            decisions(&limiter, &write, 2).await,
            "-writes -writes",
            "of twelve units two are left, and a write takes three"
        );
        assert_eq!(decisions(&limiter, &read, 3).await, "+1 +0 -reads", "denied writes consumed nothing");
        let other = request("GET", "/api/rides", "acme");
        assert_eq!(
            decisions(&limiter, &other, 11).await,
            "+9 +8 +7 +6 +5 +4 +3 +2 +1 +0 -api",
            "another tenant, on a plan"
        );
        assert_eq!(decisions(&limiter, &request("PUT", "/other", "acme"), 1).await, "+0", "no rule");
    })
    .await;
}

#[tokio::test]
async fn costs_and_several_limits_decide_the_same_on_every_store() {
    on_every_store(async |fixture| {
        let limiter = limiter(fixture, FILE);
        let export = request("PUT", "/api/exports", "acme").with_attribute("request:size", "1500");
        assert_eq!(decisions(&limiter, &export, 3).await, "+3 +1 -export", "five a minute, two units each");
        fixture.clock.advance(Duration::from_secs(70));
        assert_eq!(decisions(&limiter, &export, 2).await, "+0 -export", "and six a day");
    })
    .await;
}

#[tokio::test]
async fn a_changed_file_keeps_the_consumption_and_an_invalid_one_changes_nothing() {
    on_every_store(async |fixture| {
        let limiter = limiter(fixture, FILE);
        let read = request("GET", "/api/rides", "blue");
        assert_eq!(decisions(&limiter, &read, 5).await, "+3 +2 +1 +0 -api");
        let raised = FILE.replace("capacity: 4, refill: 2/s", "capacity: 6, refill: 2/s");
        let after = limiter.with_rules(file(&raised).rules().clone());
        assert_eq!(decisions(&after, &read, 3).await, "+1 +0 -api", "raising helps at once");
        assert!(RuleFile::parse("rules.yaml", &raised.replace("2/s", "2 apples")).is_err());
        assert_eq!(decisions(&after, &read, 1).await, "-api", "and the file before it goes on");
    })
    .await;
}

#[tokio::test]
async fn a_plan_has_the_failure_policies_of_its_rule_file() {
    let fixture = StoreFixture::in_memory();
    let (limiter, failure) = (limiter(&fixture, FILE), StoreError::new(StoreErrorKind::Unavailable, "it is down"));
    assert!(!limiter.plan(&request("GET", "/api/rides", "blue")).fails_closed(&failure));
    assert!(limiter.plan(&request("POST", "/api/rides", "blue")).fails_closed(&failure));
    assert!(OnFailure::Degraded.lets_pass() && !OnFailure::Local.lets_pass());
}

/// The actual cost replaces the estimated one, on every kind of limit.
#[tokio::test]
async fn settling_charges_the_actual_cost() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(100, Duration::from_secs(3600)) {
            for (actual, left) in [(0, 100), (4, 96), (10, 90), (35, 65), (1_000, 0)] {
                let limiter = fixture.limiter(limit);
                let mut taken = limiter.check(&Request::new("").with_cost(10)).await.unwrap();
                let rule = taken.rule().unwrap().to_owned();
                let settle = Ending::Settle(Costs::default().with(rule, actual));
                limiter.end(&mut taken.take_grant(), &settle).await.unwrap();
                let now = limiter.peek(&Request::new("")).await.unwrap();
                assert_eq!(now.remaining(), Some(left), "{actual} on {limit:?}");
            }
            let limiter = fixture.limiter(limit);
            let mut taken = limiter.check(&Request::new("").with_cost(10)).await.unwrap();
            limiter.end(&mut taken.take_grant(), &Ending::Settle(Costs::default())).await.unwrap();
            assert_eq!(
                limiter.peek(&Request::new("")).await.unwrap().remaining(),
                Some(90),
                "no actual cost changes nothing"
            );
        }
    })
    .await;
}
