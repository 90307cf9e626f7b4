//! Slots of concurrency limits without the store: taken, renewed and given back in the memory of the instance.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::grants::{GrantError, Retake};
use tidegate::{Ending, Limit, Limiter, ManualClock, OnFailure, Request, Rule, StoreError, StoreErrorKind};

use crate::fallback::store::{SwitchableStore, limiter, passed, poll_once};

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
    let (mut first, mut second) =
        (poll_once(limiter.check(&request)).unwrap(), poll_once(limiter.check(&request)).unwrap());
    assert_eq!((first.degraded(), passed(&limiter, &request, 3)), (Some(StoreErrorKind::Unavailable), Some(0)));
    // The store is back, and knows nothing of these slots.
    store.fails.store(false, Ordering::Relaxed);
    let (first, mut second) = (first.take_grant(), second.take_grant());
    clock.advance(LEASE / 2);
    poll_once(limiter.renew(&first, Retake::No)).unwrap();
    poll_once(limiter.end(&mut second, &Ending::Release)).unwrap();
    assert_eq!(left(&limiter), Some(2), "nothing is released in the store");
    store.fails.store(true, Ordering::Relaxed);
    assert_eq!(left(&limiter), Some(1));
    clock.advance(LEASE);
    assert!(matches!(poll_once(limiter.renew(&first, Retake::No)), Err(GrantError::NotHeld)));
    assert_eq!(left(&limiter), Some(2));
}

#[test]
fn a_store_that_fails_leaves_slots_held_until_they_run_out() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [exports(1)]);
    let mut lease = poll_once(limiter.check(&Request::new(""))).unwrap().take_grant();
    store.fails.store(true, Ordering::Relaxed);
    assert!(
        matches!(poll_once(limiter.renew(&lease, Retake::No)), Err(GrantError::Store(error)) if error.is_transient())
    );
    assert!(poll_once(limiter.end(&mut lease, &Ending::Release)).is_err());
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
    let decision = poll_once(limiter.plans().check(&plan)).unwrap();
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
        let mut decision = poll_once(limiter.check(&request)).unwrap();
        assert_eq!(passed(&limiter, &request, 2), Some(0));
        poll_once(limiter.end(&mut decision.take_grant(), &Ending::Release)).unwrap();
    }
    store.full_for.lock().unwrap().clear();
    let peek = poll_once(limiter.peek(&request)).unwrap();
    assert_eq!(peek.checks()[0].outcome().remaining, 9);
}

/// Nothing was taken in memory, so nothing can be lost there.
#[test]
fn a_rule_that_lets_requests_pass_without_room_in_a_full_store_holds_no_slot() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    store.full_for.lock().unwrap().push("exports");
    let tenant = Rule::new("tenant", Limit::concurrency(9, LEASE).unwrap());
    let open = exports(1).with_on_failure(OnFailure::Open);
    let limiter = limiter(&store, &clock, [tenant.clone(), open.clone()]);
    let mut lease = poll_once(limiter.check(&Request::new(""))).unwrap().take_grant();
    poll_once(limiter.renew(&lease, Retake::No)).unwrap();
    poll_once(limiter.end(&mut lease, &Ending::Release)).unwrap();
    let alone = crate::fallback::store::limiter(&store, &clock, [open]);
    assert!(poll_once(alone.check(&Request::new(""))).unwrap().take_grant().is_empty());
}

/// A worker whose store fails for `outage`, and has lost its state then, if `emptied`. Whether it still works afterwards.
fn works_after(outage: Duration, emptied: bool, others: u64) -> bool {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [exports(2)]);
    let request = Request::new("");
    let lease = poll_once(limiter.check(&request)).unwrap().take_grant();
    let mut working = pin!(limiter.hold(lease, &clock, pending::<()>()));
    let mut poll = || working.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    store.fails.store(true, Ordering::Relaxed);
    let mut left = outage;
    while !left.is_zero() {
        let step = left.min(LEASE / 3);
        clock.advance(step);
        assert!(poll().is_pending(), "a store that fails ends nothing");
        left -= step;
    }
    store.fails.store(false, Ordering::Relaxed);
    if emptied {
        poll_once(limiter.forget(&request)).unwrap();
    }
    assert_eq!(passed(&limiter, &request, others as usize), Some(others as usize));
    clock.advance(LEASE / 3);
    match poll() {
        Poll::Pending => {
            assert!(store.memory.keys() == 1 && passed(&limiter, &request, 2) == Some(1 - others as usize));
            true
        }
        Poll::Ready(Err(GrantError::NotHeld)) => false,
        Poll::Ready(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_outlives_a_store_that_fails_or_is_emptied_within_the_lease_if_there_is_room() {
    let short = LEASE / 2;
    assert!(works_after(short, false, 0) && works_after(short, false, 1));
    assert!(works_after(short, true, 0) && works_after(short, true, 1));
    assert!(!works_after(short, true, 2), "others have all the slots");
}

/// Its slot may have run out, and others may have worked in its place.
#[test]
fn a_worker_whose_store_fails_for_longer_than_the_lease_works_until_the_store_is_back_and_takes_no_slot_again() {
    for emptied in [false, true] {
        assert!(!works_after(LEASE, emptied, 0) && !works_after(10 * LEASE, emptied, 1));
    }
}

#[test]
fn a_static_limit_cannot_hold_slots() {
    let static_limit = Limit::concurrency(5, LEASE).unwrap();
    let rule = exports(1).with_on_failure(OnFailure::Static).with_static_limit(static_limit);
    assert!(tidegate::RuleSet::new([rule]).unwrap_err().to_string().contains("concurrency limit"));
}
