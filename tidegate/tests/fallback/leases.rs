//! Slots of concurrency limits without the store: taken, renewed and given back in the memory of the instance.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::{Limit, Limiter, ManualClock, OnFailure, RenewError, Request, Rule, StoreError, StoreErrorKind};

use crate::store::{SwitchableStore, limiter, passed, poll_once};

const LEASE: Duration = Duration::from_secs(30);

fn exports(max: u64) -> Rule {
    Rule::new("exports", Limit::concurrency(max, LEASE).unwrap()).with_on_failure(OnFailure::Local)
}

fn left(limiter: &Limiter<SwitchableStore>) -> Option<u64> {
    poll_once(limiter.peek(&Request::new(""))).unwrap().remaining()
}

#[test]
fn slots_that_were_taken_without_the_store_are_given_back_in_memory() {
    let clock = ManualClock::default();
    let store = SwitchableStore::failing(&clock);
    let limiter = limiter(&store, &clock, [exports(2)]);
    let request = Request::new("");
    let (first, second) =
        (poll_once(limiter.check(&request)).unwrap(), poll_once(limiter.check(&request)).unwrap());
    assert_eq!((first.degraded(), passed(&limiter, &request, 3)), (Some(StoreErrorKind::Unavailable), Some(0)));
    // The store is back, and knows nothing of these slots.
    store.fails.store(false, Ordering::Relaxed);
    let (first, second) = (first.lease().unwrap(), second.lease().unwrap());
    clock.advance(LEASE / 2);
    poll_once(limiter.renew(&first)).unwrap();
    poll_once(limiter.release(second)).unwrap();
    assert_eq!(left(&limiter), Some(2), "nothing is released in the store");
    store.fails.store(true, Ordering::Relaxed);
    assert_eq!(left(&limiter), Some(1));
    clock.advance(LEASE);
    assert!(matches!(poll_once(limiter.renew(&first)), Err(RenewError::Lost)));
    assert_eq!(left(&limiter), Some(2));
}

#[test]
fn a_store_that_fails_leaves_slots_held_until_they_run_out() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [exports(1)]);
    let lease = poll_once(limiter.check(&Request::new(""))).unwrap().lease().unwrap();
    store.fails.store(true, Ordering::Relaxed);
    assert!(matches!(poll_once(limiter.renew(&lease)), Err(RenewError::Store(error)) if error.is_transient()));
    assert!(poll_once(limiter.release(lease)).is_err());
    store.fails.store(false, Ordering::Relaxed);
    assert_eq!(left(&limiter), Some(0));
    clock.advance(LEASE);
    assert_eq!(left(&limiter), Some(1));
}

/// The store has decided, but its reply was lost.
#[test]
fn slots_of_a_decision_that_may_have_been_applied_are_released() {
    let clock = ManualClock::default();
    let lost = StoreError::new(StoreErrorKind::Unavailable, "no reply").with_possibly_applied();
    let store = SwitchableStore::failing_with(&clock, lost);
    let limiter = limiter(&store, &clock, [exports(5)]);
    let plan = limiter.plan(&Request::new(""));
    store.memory.decide_now(&plan);
    let decision = poll_once(limiter.check_plan(&plan)).unwrap();
    assert!(decision.is_allowed() && decision.degraded().is_some());
    store.fails.store(false, Ordering::Relaxed);
    assert_eq!(left(&limiter), Some(5));
}

#[test]
fn slots_of_subjects_that_a_full_store_has_no_room_for_are_given_back_in_memory() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    store.full_for.lock().unwrap().push("exports");
    let tenant = Rule::new("tenant", Limit::concurrency(9, LEASE).unwrap());
    let limiter = limiter(&store, &clock, [tenant, exports(1)]);
    let request = Request::new("");
    for _ in 0..3 {
        let decision = poll_once(limiter.check(&request)).unwrap();
        assert_eq!(passed(&limiter, &request, 2), Some(0));
        poll_once(limiter.release(decision.lease().unwrap())).unwrap();
    }
    store.full_for.lock().unwrap().clear();
    let peek = poll_once(limiter.peek(&request)).unwrap();
    assert_eq!(peek.checks()[0].outcome().remaining, 9);
}
