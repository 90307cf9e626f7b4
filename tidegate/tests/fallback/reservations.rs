//! Reservations without the store, and those whose callers go away.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::spi::{LeaseOwner, ReservationTerms};
use tidegate::{Limiter, ManualClock, OnFailure, Request, ReservationError, Rule, StoreError, StoreErrorKind};

use crate::store::{SwitchableStore, bucket, limiter, poll_once};

fn tokens() -> Rule {
    Rule::new("tokens", bucket(100)).with_on_failure(OnFailure::Local)
}

fn left(limiter: &Limiter<SwitchableStore>) -> Option<u64> {
    poll_once(limiter.peek(&Request::new(""))).unwrap().remaining()
}

fn request() -> Request<'static> {
    Request::new("").with_cost(60)
}

#[test]
fn what_was_reserved_without_the_store_is_committed_in_memory() {
    let clock = ManualClock::default();
    let store = SwitchableStore::failing(&clock);
    let limiter = limiter(&store, &clock, [tokens()]);
    let decision = poll_once(limiter.reserve(&request(), Some("a"))).unwrap();
    assert_eq!((decision.degraded(), left(&limiter)), (Some(StoreErrorKind::Unavailable), Some(40)));
    let again = poll_once(limiter.reserve(&request(), Some("a"))).unwrap();
    assert!(again.is_allowed() && left(&limiter) == Some(40), "it is the same reservation");
    let other = poll_once(limiter.reserve(&Request::new("").with_cost(7), Some("a")));
    assert!(matches!(other, Err(ReservationError::KeyReused)));
    // The store is back, and knows nothing of it.
    store.fails.store(false, Ordering::Relaxed);
    poll_once(limiter.commit(&decision.reservation().unwrap(), 25)).unwrap();
    assert_eq!(left(&limiter), Some(100), "nothing is charged in the store");
    store.fails.store(true, Ordering::Relaxed);
    assert_eq!(left(&limiter), Some(75));
}

#[test]
fn a_rule_that_is_closed_refuses_reservations_while_the_store_fails() {
    let clock = ManualClock::default();
    let store = SwitchableStore::failing(&clock);
    let limiter = limiter(&store, &clock, [tokens().with_on_failure(OnFailure::Closed)]);
    let refused = poll_once(limiter.reserve(&request(), None));
    assert!(matches!(refused, Err(ReservationError::Store(error)) if error.is_transient()));
}

#[test]
fn a_commit_that_the_store_failed_for_can_be_repeated() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [tokens()]);
    let reservation = poll_once(limiter.reserve(&request(), Some("a"))).unwrap().reservation().unwrap();
    store.fails.store(true, Ordering::Relaxed);
    assert!(matches!(poll_once(limiter.commit(&reservation, 10)), Err(ReservationError::Store(_))));
    store.fails.store(false, Ordering::Relaxed);
    poll_once(limiter.commit(&reservation, 10)).unwrap();
    poll_once(limiter.commit(&reservation, 10)).unwrap();
    assert_eq!(left(&limiter), Some(90));
    clock.advance(Duration::from_secs(301));
    assert!(matches!(poll_once(limiter.commit(&reservation, 10)), Err(ReservationError::NotFound)));
}

#[test]
fn a_request_that_another_limit_denies_holds_nothing() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let small = Rule::new("small", bucket(50));
    let limiter = limiter(&store, &clock, [tokens(), small]);
    let denied = poll_once(limiter.reserve(&request(), Some("a"))).unwrap();
    assert!(!denied.is_allowed() && denied.reservation().is_none());
    let outstanding = poll_once(limiter.outstanding(&Request::new(""))).unwrap();
    assert!(outstanding.len() == 2 && outstanding.iter().all(|one| one.reservations == 0), "{outstanding:?}");
}

/// The store has decided, but its reply was lost. A caller with an idempotency key may repeat the call, and a late release would end the
/// repeated reservation.
#[test]
fn what_a_lost_reply_may_have_reserved_is_released_unless_the_call_can_be_repeated() {
    for keyed in [false, true] {
        let clock = ManualClock::default();
        let lost = StoreError::new(StoreErrorKind::Unavailable, "no reply").with_possibly_applied();
        let store = SwitchableStore::failing_with(&clock, lost);
        let limiter = limiter(&store, &clock, [tokens()]);
        let terms = ReservationTerms::new(LeaseOwner::random(), Duration::from_secs(300), keyed);
        let plan = limiter.plan(&request()).with_reservation(terms);
        assert_eq!(store.memory.decide_now(&plan).granted(), 1);
        assert!(poll_once(limiter.check_plan(&plan)).unwrap().degraded().is_some());
        store.fails.store(false, Ordering::Relaxed);
        assert_eq!(left(&limiter), Some(if keyed { 40 } else { 100 }));
        assert_eq!(poll_once(limiter.check_plan(&plan)).unwrap().remaining(), Some(40));
    }
}

#[test]
fn what_a_full_store_has_no_room_for_is_reserved_in_memory() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    store.full_for.lock().unwrap().push("tokens");
    let limiter = limiter(&store, &clock, [Rule::new("tenant", bucket(500)), tokens()]);
    let decision = poll_once(limiter.reserve(&request(), None)).unwrap();
    assert!(decision.is_allowed());
    assert!(!poll_once(limiter.reserve(&request(), None)).unwrap().is_allowed(), "in memory, 40 are left");
    poll_once(limiter.commit(&decision.reservation().unwrap(), 10)).unwrap();
    store.full_for.lock().unwrap().clear();
    let peek = poll_once(limiter.peek(&Request::new(""))).unwrap();
    assert_eq!(peek.checks()[0].outcome().remaining, 490, "what memory denied was given back in the store");
}
