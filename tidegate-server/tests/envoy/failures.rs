//! When the store fails: what Envoy is told.

use std::sync::Arc;

use tidegate::spi::{Adjustment, Key, Plan, Store, Verdict};
use tidegate::{StoreError, StoreErrorKind};
use tidegate_rules::RuleFile;
use tidegate_server::envoy::{ConfigHandle, RateLimits};
use tonic::Code;

use crate::{Envoy, configs, handle, hit, no_rules, with_hits};

/// A store whose server went away; one that hangs does not even say so.
#[derive(Default)]
pub(crate) struct Gone {
    hangs: bool,
}

impl Gone {
    async fn error<T>(&self) -> Result<T, StoreError> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Err(StoreError::new(StoreErrorKind::Unavailable, "10.0.0.7 went away"))
    }
}

impl Store for Gone {
    async fn decide(&self, _: &Plan<'_>) -> Result<Verdict, StoreError> {
        self.error().await
    }

    async fn adjust(&self, _: &[Adjustment<'_>]) -> Result<(), StoreError> {
        self.error().await
    }

    fn adjust_soon(&self, _: &[Adjustment<'_>]) {}

    async fn forget(&self, _: &[Key<'_>]) -> Result<(), StoreError> {
        self.error().await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.error().await
    }
}

const RULES: &str = "
version: 1
rules:
  - id: open
    match: { action: open }
    fixed_window: { limit: 3, window: 1m }
    per: []
    on_failure: open
  - id: closed
    match: { action: closed }
    per: []
    fixed_window: { limit: 3, window: 1m }
    on_failure: closed
  - id: local
    match: { action: local }
    per: []
    token_bucket: { capacity: 2, refill: 1/h }
    on_failure: local
";

pub(crate) fn by_rules() -> RateLimits<Arc<Gone>> {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    RateLimits::of_rules(handle(file.rules().clone(), Arc::new(Gone::default())))
}

/// Envoy waits 20 ms, and is told before by what the rules say.
#[tokio::test]
async fn a_store_that_hangs_is_not_waited_for_longer_than_envoy_waits() {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    let hanging = RateLimits::of_rules(handle(file.rules().clone(), Arc::new(Gone { hangs: true })));
    let mut envoy = Envoy::of(hanging).await;
    for hits in [0, 1] {
        let response = envoy.ask(with_hits(hit("open", &[&[("k", "v")]]), 0, hits)).await.unwrap();
        assert_eq!(response.request_headers_to_add[0].key, "x-tidegate-degraded");
    }
    assert_eq!(envoy.ask(hit("closed", &[&[("k", "v")]])).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_local_rule_is_judged_here_and_tells_no_numbers() {
    let mut envoy = Envoy::of(by_rules()).await;
    let local = || hit("local", &[&[("k", "v")]]);
    for _ in 0..2 {
        let response = envoy.ask(local()).await.unwrap();
        assert_eq!(crate::words(&response), "OK: OK 0");
        assert_eq!(response.request_headers_to_add[0].key, "x-tidegate-degraded");
    }
    let denied = envoy.ask(local()).await.unwrap();
    assert_eq!(crate::words(&denied), "OVER_LIMIT: OVER_LIMIT 0");
    // A look finds the same, and takes nothing.
    let looked = envoy.ask(with_hits(local(), 0, 0)).await.unwrap();
    assert_eq!(crate::words(&looked), "OVER_LIMIT: OVER_LIMIT 0");
    assert!(denied.statuses[0].current_limit.is_none() && denied.request_headers_to_add.is_empty());
    let names: Vec<&str> = denied.response_headers_to_add.iter().map(|header| header.key.as_str()).collect();
    assert_eq!(names, ["retry-after", "content-type", "cache-control"]);
}

#[tokio::test]
async fn an_open_rule_lets_pass_and_the_upstream_is_told() {
    let mut envoy = Envoy::of(by_rules()).await;
    for hits in [0, 1] {
        let response = envoy.ask(with_hits(hit("open", &[&[("k", "v")]]), 0, hits)).await.unwrap();
        assert_eq!(crate::words(&response), "OK: OK 0");
        let told = &response.request_headers_to_add[0];
        assert_eq!((told.key.as_str(), told.value.as_str()), ("x-tidegate-degraded", "true"));
        assert!(response.response_headers_to_add.is_empty());
    }
}

#[tokio::test]
async fn a_closed_rule_leaves_it_to_the_failure_mode_of_envoy() {
    let expected = "the limits cannot be checked at the moment; retry later";
    let mut envoy = Envoy::of(by_rules()).await;
    let status = envoy.ask(hit("closed", &[&[("k", "v")]])).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, expected));
    // What no rule is about needs no store.
    assert_eq!(envoy.says(hit("free", &[&[("k", "v")]])).await, "OK: OK 0");
}

#[tokio::test]
async fn so_does_every_limit_of_an_envoy_configuration() {
    let config = || {
        let text = "domain: edge\ndescriptors:\n  - { key: k, rate_limit: { unit: day, requests_per_unit: 1 } }\n";
        ConfigHandle::new(configs::parse(text).unwrap())
    };
    for (strict, code) in [(false, Code::Unavailable), (true, Code::Unknown)] {
        let service = RateLimits::of_config(handle(no_rules(), Arc::new(Gone::default())), config()).strict(strict);
        let mut envoy = Envoy::of(service).await;
        assert_eq!(envoy.ask(hit("edge", &[&[("k", "v")]])).await.unwrap_err().code(), code);
        assert_eq!(envoy.says(hit("edge", &[&[("other", "v")]])).await, "OK: OK 0");
    }
}
