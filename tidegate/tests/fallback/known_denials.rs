//! Denials that a store knows without a call.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::spi::algorithm::TakePosition;
use tidegate::spi::{CheckResult, CheckVerdict, KnownDenial, Observer, Outcome, Plan};
use tidegate::{Decision, ManualClock, OnFailure, Request, Rule, RuleMode, StoreError, StoreErrorKind, Timestamp};

use crate::fallback::store::{SwitchableStore, bucket, limiter, poll_once};

fn denial(check: usize) -> KnownDenial {
    let outcome = Outcome {
        admitted: false,
        limit: 20,
        remaining: 0,
        retry_after: Some(Duration::from_secs(7)),
        reset_after: Duration::from_secs(90),
        delay: Duration::ZERO,
        in_grace: false,
    };
    let verdict = CheckVerdict::new(outcome, false, TakePosition::default());
    KnownDenial { check, verdict, decided_at: Timestamp::from_micros(42) }
}

fn rules() -> [Rule; 3] {
    [
        Rule::new("tenant", bucket(9)).with_on_failure(OnFailure::Closed),
        Rule::new("user", bucket(20)),
        Rule::new("trial", bucket(0)).with_mode(RuleMode::Shadow),
    ]
}

#[test]
fn a_known_denial_needs_no_call_and_names_its_rule() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    *store.known.lock().unwrap() = Some(denial(1));
    let limiter = limiter(&store, &clock, rules());
    let mut denied = poll_once(limiter.check(&Request::new(""))).unwrap();
    assert!(!denied.is_allowed() && denied.degraded().is_none());
    assert_eq!((denied.rule(), denied.retry_after()), (Some("user"), Some(Duration::from_secs(7))));
    assert_eq!(
        (denied.reset_after(), denied.decided_at()),
        (Some(Duration::from_secs(90)), Timestamp::from_micros(42))
    );
    assert_eq!((denied.checks().len(), denied.known_denial()), (1, Some(1)));
    assert_eq!(denied.check(1).map(CheckResult::rule), Some("user"));
    assert!(denied.check(0).is_none() && denied.check(2).is_none());
    assert_eq!(store.decisions.load(Ordering::Relaxed), 0);
    assert!(denied.take_grant().is_empty());
}

#[test]
fn a_peek_does_not_use_known_denials() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    *store.known.lock().unwrap() = Some(denial(1));
    let limiter = limiter(&store, &clock, rules());
    assert!(poll_once(limiter.peek(&Request::new(""))).unwrap().is_allowed());
}

/// One with an idempotency key may find what it has reserved before.
#[test]
fn only_reservations_without_a_key_use_known_denials() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    *store.known.lock().unwrap() = Some(denial(1));
    let limiter = limiter(&store, &clock, rules());
    let request = Request::new("");
    let mut denied = poll_once(limiter.reserve(&request, None)).unwrap();
    assert!(denied.take_grant().is_empty());
    assert_eq!(denied.rule(), Some("user"));
    let plan = limiter.plans().reserving_usage(limiter.plan(&request));
    let denied = poll_once(limiter.plans().check(&plan)).unwrap();
    assert_eq!((denied.rule(), store.decisions.load(Ordering::Relaxed)), (Some("user"), 0));
    assert!(poll_once(limiter.reserve(&request, Some("a"))).unwrap().is_allowed());
}

#[test]
fn a_known_denial_comes_before_every_failure_policy() {
    let clock = ManualClock::default();
    for policy in [OnFailure::Open, OnFailure::Closed, OnFailure::Local] {
        let store = SwitchableStore::failing(&clock);
        let limiter = limiter(&store, &clock, [Rule::new("user", bucket(20)).with_on_failure(policy)]);
        let plan = limiter.plan(&Request::new(""));
        let error = || StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait");
        assert_eq!(limiter.plans().fall_back(&plan, error()).is_ok(), policy != OnFailure::Closed);
        *store.known.lock().unwrap() = Some(denial(0));
        let denied = limiter.plans().fall_back(&plan, error()).unwrap();
        assert!(!denied.is_allowed() && denied.degraded().is_none(), "{policy:?}");
    }
}

#[test]
fn a_denial_of_a_check_that_the_plan_does_not_have_is_ignored() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    *store.known.lock().unwrap() = Some(denial(3));
    assert!(poll_once(limiter(&store, &clock, rules()).check(&Request::new(""))).unwrap().is_allowed());
}

#[test]
fn a_known_denial_reveals_nothing_if_a_security_rule_applies() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    *store.known.lock().unwrap() = Some(denial(1));
    let rules = [Rule::new("login", bucket(9)).with_security(), Rule::new("user", bucket(20))];
    assert!(poll_once(limiter(&store, &clock, rules).check(&Request::new(""))).unwrap().is_security());
}

#[test]
fn the_observer_sees_a_known_denial_and_the_shadow_checks_that_it_skips() {
    #[derive(Clone, Default)]
    struct EventLog(Arc<Mutex<Vec<String>>>);
    impl Observer for EventLog {
        fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
            let skipped: Vec<_> = decision.skipped_shadow(plan).map(|gate| gate.rule().id.as_str()).collect();
            self.0.lock().unwrap().push(format!("{:?} skips {skipped:?}", decision.known_denial()));
        }
        fn undecided(&self, _: &Plan<'_>, _: &StoreError) {
            self.0.lock().unwrap().push("undecided".to_owned());
        }
    }
    let (clock, events) = (ManualClock::default(), EventLog::default());
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, rules()).with_observer(events.clone());
    let request = Request::new("");
    assert!(poll_once(limiter.check(&request)).unwrap().is_allowed());
    *store.known.lock().unwrap() = Some(denial(1));
    assert!(!poll_once(limiter.check(&request)).unwrap().is_allowed());
    store.fails.store(true, Ordering::Relaxed);
    let error = StoreError::new(StoreErrorKind::Unavailable, "it is down");
    assert!(!limiter.plans().fall_back(&limiter.plan(&request), error).unwrap().is_allowed());
    assert_eq!(
        *events.0.lock().unwrap(),
        ["None skips []", r#"Some(1) skips ["trial"]"#, r#"Some(1) skips ["trial"]"#],
        "a known denial is decided, so no policy applies"
    );
}
