//! Reservations without the store, and those whose callers go away.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::grants::GrantError;
use tidegate::spi::{LeaseOwner, ReservationTerms};
use tidegate::{
    Ending, Grant, Limit, Limiter, ManualClock, OnFailure, Rate, Request, Rule, StoreError, StoreErrorKind,
};

use crate::fallback::store::{SwitchableStore, bucket, limiter, poll_once};

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
    let mut decision = poll_once(limiter.reserve(&request(), Some("a"))).unwrap();
    assert_eq!((decision.degraded(), left(&limiter)), (Some(StoreErrorKind::Unavailable), Some(40)));
    let again = poll_once(limiter.reserve(&request(), Some("a"))).unwrap();
    assert!(again.is_allowed() && left(&limiter) == Some(40), "it is the same reservation");
    let other = poll_once(limiter.reserve(&Request::new("").with_cost(7), Some("a")));
    assert!(matches!(other, Err(GrantError::KeyReused)));
    // The store is back, and knows nothing of it.
    store.fails.store(false, Ordering::Relaxed);
    poll_once(limiter.end(&mut decision.take_grant(), &Ending::Commit(25.into()))).unwrap();
    assert_eq!(left(&limiter), Some(100), "nothing is charged in the store");
    store.fails.store(true, Ordering::Relaxed);
    assert_eq!(left(&limiter), Some(75));
}

/// 100 of 400 a minute, shared by four instances, are all that this one grants in a minute, whatever its reservations cost at last.
#[test]
fn a_commit_under_a_share_of_the_limit_is_charged_by_that_share() {
    let limit = Limit::token_bucket(400, Rate::per_minute(400).unwrap()).unwrap();
    let rule = || Rule::new("tokens", limit).with_on_failure(OnFailure::Share);
    for is_full in [false, true] {
        let clock = ManualClock::default();
        let store = if is_full { SwitchableStore::new(&clock) } else { SwitchableStore::failing(&clock) };
        let full_for: &[_] = if is_full { &["tokens"] } else { &[] };
        store.full_for.lock().unwrap().extend(full_for);
        store.instances.store(4, Ordering::Relaxed);
        let limiter = limiter(&store, &clock, [rule()]);
        let all = Request::new("").with_cost(100);
        let reservation = poll_once(limiter.reserve(&all, None)).unwrap().take_grant();
        // Another call, with the id that the first one got.
        let mut reservation = Grant::from_bytes(&reservation.to_bytes()).unwrap();
        poll_once(limiter.end(&mut reservation, &Ending::Commit(100.into()))).unwrap();
        store.full_for.lock().unwrap().clear();
        store.fails.store(true, Ordering::Relaxed);
        clock.advance(Duration::from_secs(15));
        assert_eq!(left(&limiter), Some(25), "is_full = {is_full}");
        clock.advance(Duration::from_secs(45));
        assert_eq!(left(&limiter), Some(100));
    }
}

/// Nothing could end a hold under a static limit, which has no place in the reservation: the limit would be full until they run out.
#[test]
fn reservations_under_a_static_limit_count_as_requests_that_begin() {
    let static_limit = Limit::token_bucket(3, Rate::per_minute(60).unwrap()).unwrap();
    let rule = Rule::new("tokens", bucket(100)).with_on_failure(OnFailure::Static).with_static_limit(static_limit);
    for key in [None, Some("a")] {
        let clock = ManualClock::default();
        let store = SwitchableStore::failing(&clock);
        let limiter = limiter(&store, &clock, [rule.clone(), Rule::new("local", bucket(1000))]);
        let reserve = |key: Option<&str>| poll_once(limiter.reserve(&request(), key)).unwrap();
        let mut first = reserve(key).take_grant();
        assert_eq!(first.rules().collect::<Vec<_>>(), ["local"]);
        assert!(reserve(None).is_allowed() && reserve(None).is_allowed() && !reserve(None).is_allowed());
        clock.advance(Duration::from_secs(1));
        assert!(
            reserve(None).is_allowed() && !reserve(None).is_allowed(),
            "the static limit refills as for other requests"
        );
        poll_once(limiter.end(&mut first, &Ending::Commit(1.into()))).unwrap();
        clock.advance(Duration::from_secs(1));
        assert!(reserve(None).is_allowed() && !reserve(None).is_allowed(), "a commit changes nothing there");
    }
}

#[test]
fn a_rule_that_is_closed_refuses_reservations_while_the_store_fails() {
    let clock = ManualClock::default();
    let store = SwitchableStore::failing(&clock);
    let limiter = limiter(&store, &clock, [tokens().with_on_failure(OnFailure::Closed)]);
    let refused = poll_once(limiter.reserve(&request(), None));
    assert!(matches!(refused, Err(GrantError::Store(error)) if error.is_transient()));
}

#[test]
fn a_commit_that_the_store_failed_for_can_be_repeated() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [tokens()]);
    let mut reservation = poll_once(limiter.reserve(&request(), Some("a"))).unwrap().take_grant();
    store.fails.store(true, Ordering::Relaxed);
    assert!(matches!(poll_once(limiter.end(&mut reservation, &Ending::Commit(10.into()))), Err(GrantError::Store(_))));
    store.fails.store(false, Ordering::Relaxed);
    poll_once(limiter.end(&mut reservation, &Ending::Commit(10.into()))).unwrap();
    poll_once(limiter.end(&mut reservation, &Ending::Commit(10.into()))).unwrap();
    assert_eq!(left(&limiter), Some(90));
    clock.advance(Duration::from_secs(301));
    assert!(matches!(poll_once(limiter.end(&mut reservation, &Ending::Commit(10.into()))), Err(GrantError::NotHeld)));
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
        assert!(poll_once(limiter.plans().check(&plan)).unwrap().degraded().is_some());
        store.fails.store(false, Ordering::Relaxed);
        assert_eq!(left(&limiter), Some(if keyed { 40 } else { 100 }));
        assert_eq!(poll_once(limiter.plans().check(&plan)).unwrap().remaining(), Some(40));
    }
}

#[test]
fn what_a_full_store_has_no_room_for_is_reserved_in_memory() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    store.full_for.lock().unwrap().push("tokens");
    let limiter = limiter(&store, &clock, [Rule::new("tenant", bucket(500)), tokens()]);
    let mut decision = poll_once(limiter.reserve(&request(), None)).unwrap();
    assert!(decision.is_allowed());
    assert!(!poll_once(limiter.reserve(&request(), None)).unwrap().is_allowed(), "in memory, 40 are left");
    poll_once(limiter.end(&mut decision.take_grant(), &Ending::Commit(10.into()))).unwrap();
    store.full_for.lock().unwrap().clear();
    let peek = poll_once(limiter.peek(&Request::new(""))).unwrap();
    assert_eq!(peek.checks()[0].outcome().remaining, 490, "what memory denied was given back in the store");
}

/// Another instance has no room in its memory for a reservation that is repeated there. What the first has reserved in the store stays.
#[test]
fn a_repeated_reservation_that_memory_denies_keeps_what_the_first_call_reserved() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    store.full_for.lock().unwrap().push("tokens");
    let [first, other] = [(); 2].map(|()| limiter(&store, &clock, [Rule::new("tenant", bucket(500)), tokens()]));
    let mut reservation = poll_once(first.reserve(&request(), Some("a"))).unwrap().take_grant();
    assert!(poll_once(other.check(&request())).unwrap().is_allowed());
    assert!(!poll_once(other.reserve(&request(), Some("a"))).unwrap().is_allowed());
    poll_once(first.end(&mut reservation, &Ending::Commit(10.into()))).unwrap();
    let peek = poll_once(first.peek(&Request::new(""))).unwrap();
    assert_eq!(peek.checks()[0].outcome().remaining, 500 - 60 - 10);
}
