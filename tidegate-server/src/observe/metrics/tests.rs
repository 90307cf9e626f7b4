//! Requests while the instance is overloaded and in the grace of a quota, and lost holds.

use std::sync::Arc;

use tidegate::limits::{Period, Periods};
use tidegate::rules::UsageKind;
use tidegate::spi::FailingStore;
use tidegate::{Ending, Limit, Limiter, MemoryStore, Request, Rule, RuleMode, RuleSet};

use super::*;

const RULES: &str = "
version: 1
rules:
  - id: writes
    match: { action: [write, pay] }
    per: [attr:user]
    fixed_window: { limit: 1, window: 1h }
  - id: payments
    match: { action: pay }
    per: [attr:user]
    fixed_window: { limit: 1, window: 1h }
    on_failure: closed
  - id: trial
    match: { action: [write, pay] }
    per: []
    mode: shadow
    fixed_window: { limit: 1, window: 1h }
";

#[test]
fn requests_during_an_overload_are_counted_by_rule_and_outcome() {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    let metrics = Arc::new(Metrics::new(0.8));
    let store = FailingStore::failing_with(StoreError::new(StoreErrorKind::Overloaded, "too many requests wait"));
    let limiter = Limiter::new(file.rules().clone(), store).with_observer(Arc::clone(&metrics));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for action in ["write", "write", "write", "pay"] {
        let request = Request::new(action).with_attribute("user", "ann");
        let _ = runtime.block_on(limiter.check(&request));
    }
    let page = metrics.open_metrics();
    let mut lines: Vec<&str> = page.lines().filter(|line| line.starts_with("rate_limit_overloaded_total")).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            r#"rate_limit_overloaded_total{rule="payments",outcome="refused"} 1"#,
            r#"rate_limit_overloaded_total{rule="writes",outcome="allowed"} 1"#,
            r#"rate_limit_overloaded_total{rule="writes",outcome="refused"} 1"#,
            r#"rate_limit_overloaded_total{rule="writes",outcome="rejected"} 2"#,
        ]
    );
}

#[test]
fn requests_in_the_grace_of_a_quota_are_counted_by_rule() {
    let limit = |amount, grace| Limit::quota_with_grace(amount, grace, Periods::utc(Period::Year)).unwrap();
    let rules = [
        Rule::new("year", limit(2, 2)),
        Rule::new("wide", limit(100, 0)),
        Rule::new("trial", limit(0, 9)).with_mode(RuleMode::Shadow),
    ];
    let metrics = Arc::new(Metrics::new(0.8));
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), MemoryStore::new()).with_observer(Arc::clone(&metrics));
    let allowed = [1, 1, 1, 1, 1].map(|cost| limiter.check_now(&Request::new("").with_cost(cost)).is_allowed());
    assert_eq!(allowed, [true, true, true, true, false]);
    let text = metrics.open_metrics();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("rate_limit_grace_total")).collect();
    assert_eq!(lines, ["rate_limit_grace_total{rule=\"year\"} 2"]);
}

#[test]
fn holds_that_the_store_has_lost_are_counted_by_rule() {
    let window = || Limit::fixed_window(10, Duration::from_mins(1)).unwrap();
    let rules = [Rule::new("tokens", window()).with_usage(UsageKind::Total), Rule::new("requests", window())];
    let metrics = Arc::new(Metrics::new(0.8));
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), MemoryStore::new()).with_observer(Arc::clone(&metrics));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for is_lost in [false, true] {
        let plan = limiter.plans().reserving_usage(limiter.plan(&Request::new("")));
        let mut grant = limiter.plans().check_now(&plan).take_grant();
        if is_lost {
            runtime.block_on(limiter.forget(&Request::new(""))).unwrap();
        }
        runtime.block_on(limiter.end(&mut grant, &Ending::Settle(3.into()))).unwrap();
    }
    let text = metrics.open_metrics();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("rate_limit_lost_holds_total")).collect();
    assert_eq!(lines, ["rate_limit_lost_holds_total{rule=\"tokens\"} 1"]);
}
