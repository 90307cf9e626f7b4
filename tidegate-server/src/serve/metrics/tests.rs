//! Requests while the instance is overloaded.

use std::sync::Arc;

use tidegate::spi::{Adjustment, Key, Store, Verdict};
use tidegate::{Limiter, MemoryStore, Request};

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

/// A store for which too many requests wait.
struct OverloadedStore;

impl OverloadedStore {
    fn error() -> StoreError {
        StoreError::new(StoreErrorKind::Overloaded, "too many requests wait")
    }
}

impl Store for OverloadedStore {
    async fn decide(&self, _: &Plan<'_>) -> Result<Verdict, StoreError> {
        Err(Self::error())
    }
    async fn adjust(&self, _: &[Adjustment<'_>]) -> Result<(), StoreError> {
        Err(Self::error())
    }
    fn adjust_soon(&self, _: &[Adjustment<'_>]) {}
    async fn forget(&self, _: &[Key<'_>]) -> Result<(), StoreError> {
        Err(Self::error())
    }
    async fn ping(&self) -> Result<(), StoreError> {
        Err(Self::error())
    }
}

#[test]
fn requests_during_an_overload_are_counted_by_rule_and_outcome() {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    let metrics = Arc::new(Metrics::new(0.8, AnyStore::Memory(Arc::new(MemoryStore::new()))));
    let limiter = Limiter::new(file.rules().clone(), OverloadedStore).with_observer(Arc::clone(&metrics));
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
