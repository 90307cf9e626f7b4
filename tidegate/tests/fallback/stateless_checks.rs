//! Subjects for which a full store has no room: the store decides what it knows, this instance the rest.

use tidegate::{Decision, Ending, Limiter, ManualClock, OnFailure, Request, Rule, StoreErrorKind};

use crate::fallback::store::{SwitchableStore, bucket, limiter, passed, poll_once};

/// A store that knows the tenant, and has no room for users.
fn full(clock: &ManualClock) -> SwitchableStore {
    let store = SwitchableStore::new(clock);
    store.full_for.lock().unwrap().push("user");
    store
}

fn rules(tenant: u64, user: u64, policy: OnFailure) -> [Rule; 2] {
    let user = Rule::new("user", bucket(user)).with_per(["user"]).with_on_failure(policy);
    [Rule::new("tenant", bucket(tenant)), user.with_static_limit(bucket(2))]
}

/// What the store has left for the tenant.
fn left(limiter: &Limiter<SwitchableStore>, store: &SwitchableStore) -> u64 {
    store.full_for.lock().unwrap().clear();
    let peeked = poll_once(limiter.peek(&Request::new("").with_attribute("user", "nobody"))).unwrap();
    store.full_for.lock().unwrap().push("user");
    peeked.checks()[0].outcome().remaining
}

#[test]
fn new_subjects_of_a_full_store_are_decided_by_their_failure_policy() {
    let clock = ManualClock::default();
    for (policy, expected) in [
        (OnFailure::Local, Some(8)),
        (OnFailure::Share, Some(2)),
        (OnFailure::Static, Some(2)),
        (OnFailure::Open, Some(20)),
        (OnFailure::Closed, None),
    ] {
        let store = full(&clock);
        let limiter = limiter(&store, &clock, rules(100, 8, policy)).with_instances(4);
        let ann = Request::new("").with_attribute("user", "ann");
        assert_eq!(passed(&limiter, &ann, 20), expected, "{policy:?}");
        let used = expected.unwrap_or(0) as u64;
        assert_eq!(left(&limiter, &store), 100 - used, "{policy:?}: a request that is refused consumes nothing");
    }
}

#[test]
fn the_decision_is_degraded_and_its_receipt_has_what_the_store_consumed() {
    let clock = ManualClock::default();
    let store = full(&clock);
    let limiter = limiter(&store, &clock, rules(5, 8, OnFailure::Local));
    let ann = Request::new("").with_attribute("user", "ann");
    let mut allowed = poll_once(limiter.check(&ann)).unwrap();
    assert_eq!((allowed.degraded(), allowed.checks().len()), (Some(StoreErrorKind::Refused), 2));
    assert_eq!(left(&limiter, &store), 4);
    poll_once(limiter.end(&mut allowed.take_grant(), &Ending::Refund)).unwrap();
    assert_eq!(left(&limiter, &store), 5);
}

#[test]
fn a_subject_that_a_full_store_knows_is_decided_by_it_alone() {
    let clock = ManualClock::default();
    let store = full(&clock);
    let limiter = limiter(&store, &clock, rules(3, 8, OnFailure::Local));
    let ann = Request::new("").with_attribute("user", "ann");
    assert_eq!(passed(&limiter, &ann, 9), Some(3));
    let denied = poll_once(limiter.check(&ann)).unwrap();
    assert_eq!((denied.rule(), denied.degraded()), (Some("tenant"), None), "the store denies by what it knows");
}

#[test]
fn a_cost_above_the_limit_of_a_new_subject_is_denied_by_the_store() {
    let clock = ManualClock::default();
    let limiter = limiter(&full(&clock), &clock, rules(100, 8, OnFailure::Open));
    let denied = poll_once(limiter.check(&Request::new("").with_attribute("user", "ann").with_cost(9))).unwrap();
    assert!(!denied.is_allowed() && denied.is_permanent());
}

#[test]
fn units_that_the_instance_does_not_grant_are_given_back() {
    let clock = ManualClock::default();
    let store = full(&clock);
    let limiter = limiter(&store, &clock, rules(100, 6, OnFailure::Local));
    let ann = Request::new("").with_attribute("user", "ann");
    let granted = |max| poll_once(limiter.take_up_to(&ann, max)).map(|decision: Decision| decision.granted()).unwrap();
    assert_eq!((granted(4), granted(4), granted(4)), (4, 2, 0));
    assert_eq!(left(&limiter, &store), 94);
}

#[test]
fn a_peek_at_a_new_subject_consumes_nothing() {
    let clock = ManualClock::default();
    let store = full(&clock);
    let limiter = limiter(&store, &clock, rules(100, 2, OnFailure::Local));
    let ann = Request::new("").with_attribute("user", "ann");
    for _ in 0..5 {
        assert!(poll_once(limiter.peek(&ann)).unwrap().is_allowed());
    }
    assert_eq!(passed(&limiter, &ann, 5), Some(2));
    assert!(!poll_once(limiter.peek(&ann)).unwrap().is_allowed());
    assert_eq!(left(&limiter, &store), 98);
}
