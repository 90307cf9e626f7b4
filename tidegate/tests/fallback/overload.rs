//! Overload of the instance is no failure of the store: no rule is open then, unless it says so.

use tidegate::http::HeaderPolicy;
use tidegate::rules::OnOverload;
use tidegate::{ManualClock, OnFailure, Request, Rule, RuleMode, StoreError, StoreErrorKind};

use crate::fallback::store::{SwitchableStore, bucket, limiter, passed, poll_once};

const POLICIES: [OnFailure; 6] =
    [OnFailure::Local, OnFailure::Share, OnFailure::Open, OnFailure::Closed, OnFailure::Static, OnFailure::Degraded];

fn overloaded() -> StoreError {
    StoreError::new(StoreErrorKind::Overloaded, "4096 plans wait")
}

fn rule(policy: OnFailure) -> Rule {
    Rule::new("api", bucket(20)).with_per(["user"]).with_on_failure(policy).with_static_limit(bucket(7))
}

#[test]
fn an_overloaded_instance_applies_the_whole_limit_in_place_of_open_and_degraded() {
    let clock = ManualClock::default();
    let ann = Request::new("").with_attribute("user", "ann");
    for (policy, expected) in POLICIES.into_iter().zip([Some(20), Some(5), Some(20), None, Some(7), Some(20)]) {
        let store = SwitchableStore::failing_with(&clock, overloaded());
        let limiter = limiter(&store, &clock, [rule(policy)]).with_instances(4);
        assert_eq!(passed(&limiter, &ann, 30), expected, "{policy:?}");
        if expected.is_some() {
            let decision = poll_once(limiter.check(&ann)).unwrap();
            assert_eq!(decision.degraded(), Some(StoreErrorKind::Overloaded), "{policy:?}");
        }
    }
}

#[test]
fn a_subject_with_other_requests_waiting_is_refused_whatever_the_policy() {
    let clock = ManualClock::default();
    let ann = Request::new("").with_attribute("user", "ann");
    for policy in POLICIES {
        let store = SwitchableStore::failing_with(&clock, overloaded().with_crowded());
        let error = poll_once(limiter(&store, &clock, [rule(policy)]).check(&ann)).unwrap_err();
        assert!(error.is_crowded() && error.is_transient(), "{policy:?}");
        let response = HeaderPolicy::new().reject_unavailable(&error, None, None);
        assert_eq!((response.status, &response.headers[0]), (503, &("retry-after", "1".to_owned())));
        assert!(response.body.starts_with(r#"{"error":"overloaded","#), "{}", response.body);
    }
}

#[test]
fn only_a_rule_that_is_open_on_overload_lets_requests_pass_then() {
    let clock = ManualClock::default();
    for error in [overloaded(), overloaded().with_crowded()] {
        for policy in POLICIES {
            let open = rule(policy).with_on_overload(OnOverload::Open);
            let store = SwitchableStore::failing_with(&clock, error.clone());
            let ann = Request::new("").with_attribute("user", "ann");
            assert_eq!(passed(&limiter(&store, &clock, [open.clone()]), &ann, 50), Some(50), "{policy:?}");
            let with_another = limiter(&store, &clock, [open, Rule::new("all", bucket(3))]);
            let expected = if error.is_crowded() { None } else { Some(3) };
            assert_eq!(passed(&with_another, &ann, 50), expected, "{policy:?}: the other rule is not open");
        }
    }
}

#[test]
fn a_rule_that_is_local_on_overload_is_decided_by_the_whole_limit_whatever_its_policy() {
    let clock = ManualClock::default();
    let ann = Request::new("").with_attribute("user", "ann");
    for policy in POLICIES {
        let local = rule(policy).with_on_overload(OnOverload::Local);
        let store = SwitchableStore::failing_with(&clock, overloaded());
        let limiter = limiter(&store, &clock, [local]).with_instances(4);
        assert_eq!(passed(&limiter, &ann, 30), Some(20), "{policy:?}");
        *store.error.lock().unwrap() = Some(overloaded().with_crowded());
        assert_eq!(passed(&limiter, &ann, 1), None, "{policy:?}");
    }
}

#[test]
fn on_overload_says_nothing_about_a_failure_of_the_store() {
    let clock = ManualClock::default();
    let rule = rule(OnFailure::Local).with_on_overload(OnOverload::Open);
    let limiter = limiter(&SwitchableStore::failing(&clock), &clock, [rule]);
    assert_eq!(passed(&limiter, &Request::new("").with_attribute("user", "ann"), 50), Some(20));
}

#[test]
fn rules_that_share_a_budget_are_open_on_overload_only_if_all_are() {
    let clock = ManualClock::default();
    let shared = |id, on_overload| Rule::new(id, bucket(6)).with_budget("b").with_on_overload(on_overload);
    for (first, second, expected) in [
        (OnOverload::Open, OnOverload::Open, 9),
        (OnOverload::Open, OnOverload::Policy, 3),
        (OnOverload::Open, OnOverload::Local, 3),
        (OnOverload::Policy, OnOverload::Open, 3),
    ] {
        let store = SwitchableStore::failing_with(&clock, overloaded());
        let limiter = limiter(&store, &clock, [shared("one", first), shared("two", second)]);
        assert_eq!(passed(&limiter, &Request::new(""), 9), Some(expected), "{first:?} {second:?}");
    }
}

#[test]
fn a_plan_with_its_own_policy_ignores_on_overload() {
    let clock = ManualClock::default();
    let store = SwitchableStore::failing_with(&clock, overloaded());
    let limiter = limiter(&store, &clock, [rule(OnFailure::Open).with_on_overload(OnOverload::Open)]);
    let plan = limiter.plan(&Request::new("")).with_on_failure(OnFailure::Closed);
    assert!(poll_once(limiter.plans().check(&plan)).is_err());
}

#[test]
fn shadow_rules_refuse_nothing_on_overload() {
    let clock = ManualClock::default();
    let store = SwitchableStore::failing_with(&clock, overloaded().with_crowded());
    let limiter = limiter(&store, &clock, [rule(OnFailure::Closed).with_mode(RuleMode::Shadow)]);
    assert_eq!(passed(&limiter, &Request::new(""), 9), Some(9));
}
