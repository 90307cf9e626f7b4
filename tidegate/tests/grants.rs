//! What a decision took ends once, whatever happens to the call that ends it.

use std::sync::Arc;
use std::time::Duration;

use tidegate::grants::Costs;
use tidegate::spi::{FailingCall, FailingStore, Fault};
use tidegate::{
    Ending, Grant, GrantGuard, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, StoreError,
    StoreErrorKind,
};

use crate::fallback::store::poll_once;

fn limiter(rules: impl IntoIterator<Item = Rule>) -> (FailingStore, Arc<Limiter<FailingStore>>) {
    let store = FailingStore::new(MemoryStore::new().with_clock(ManualClock::default()));
    (store.clone(), Arc::new(Limiter::new(RuleSet::new(rules).unwrap(), store)))
}

fn units() -> Rule {
    Rule::new("units", Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap())
}

fn take(limiter: &Limiter<FailingStore>) -> Grant {
    poll_once(limiter.check(&Request::new("").with_cost(10))).unwrap().take_grant()
}

fn left(limiter: &Limiter<FailingStore>) -> u64 {
    poll_once(limiter.peek(&Request::new(""))).unwrap().remaining().unwrap()
}

#[test]
fn a_decision_gives_its_grant_once() {
    let (_, limiter) = limiter([units()]);
    let mut decision = poll_once(limiter.check(&Request::new(""))).unwrap();
    assert!(!decision.take_grant().is_empty());
    assert!(decision.take_grant().is_empty());
}

#[test]
fn what_was_given_back_is_not_given_back_again() {
    let (_, limiter) = limiter([units()]);
    let (mut grant, _other) = (take(&limiter), take(&limiter));
    for _ in 0..2 {
        poll_once(limiter.end(&mut grant, &Ending::Refund)).unwrap();
        assert_eq!(left(&limiter), 90);
    }
}

/// A refund that may have been applied must not be repeated; one that was not sent can be.
#[test]
fn a_failed_refund_is_repeated_only_if_it_was_not_applied() {
    for possibly_applied in [false, true] {
        let (store, limiter) = limiter([units()]);
        let mut grant = take(&limiter);
        let error = StoreError::new(StoreErrorKind::Unavailable, "the server went away");
        store.fail_with(if possibly_applied { error.with_possibly_applied() } else { error });
        poll_once(limiter.end(&mut grant, &Ending::Refund)).unwrap_err();
        store.recover();
        poll_once(limiter.end(&mut grant, &Ending::Refund)).unwrap();
        assert_eq!(left(&limiter), if possibly_applied { 90 } else { 100 });
    }
}

/// The server has given the units back, and its caller went away before it read the reply.
#[test]
fn a_refund_whose_caller_goes_away_is_not_made_twice() {
    let (store, limiter) = limiter([units()]);
    let (grant, _other) = (take(&limiter), take(&limiter));
    store.fail_if(|call| matches!(call, FailingCall::Apply(_)).then_some(Fault::Silence));
    {
        let guard = GrantGuard::new(Arc::clone(&limiter), grant, Ending::Refund);
        let mut ending = std::pin::pin!(guard.end(Ending::Refund));
        assert!(ending.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending());
    }
    assert_eq!(left(&limiter), 90);
}

#[test]
fn a_settlement_that_was_not_sent_can_be_repeated_with_the_same_cost() {
    let (store, limiter) = limiter([units()]);
    let mut grant = take(&limiter);
    store.fail();
    poll_once(limiter.end(&mut grant, &Ending::Settle(3.into()))).unwrap_err();
    store.recover();
    for _ in 0..2 {
        poll_once(limiter.end(&mut grant, &Ending::Settle(3.into()))).unwrap();
        assert_eq!(left(&limiter), 97);
    }
}

/// Such as the tokens of an answer that is still being sent.
#[test]
fn what_a_reservation_holds_is_settled_again_as_far_as_the_cost_has_grown() {
    let (_, limiter) = limiter([units()]);
    let mut decision = poll_once(limiter.reserve(&Request::new("").with_cost(10), None)).unwrap();
    let mut grant = decision.take_grant();
    for (cost, expected) in [(20, 80), (35, 65), (5, 65), (40, 60)] {
        poll_once(limiter.end(&mut grant, &Ending::Settle(Costs::from(cost)))).unwrap();
        assert_eq!(left(&limiter), expected, "{cost}");
    }
}

#[test]
fn a_guard_that_is_dropped_ends_its_grant_in_its_own_way_and_one_that_is_kept_does_not() {
    let slots = || Rule::new("slots", Limit::concurrency(5, Duration::from_secs(30)).unwrap());
    let (_, limiter) = limiter([units(), slots()]);
    let free = || -> Vec<u64> {
        let peek = poll_once(limiter.peek(&Request::new(""))).unwrap();
        peek.checks().iter().map(|check| check.outcome().remaining).collect()
    };
    let take = || poll_once(limiter.check(&Request::new(""))).unwrap().take_grant();
    drop(GrantGuard::new(Arc::clone(&limiter), take(), Ending::Release));
    assert_eq!(free(), [99, 5], "what was consumed stays so");
    drop(GrantGuard::new(Arc::clone(&limiter), take(), Ending::Refund));
    assert_eq!(free(), [99, 5]);
    let kept = GrantGuard::new(Arc::clone(&limiter), take(), Ending::Refund).keep();
    assert_eq!((free(), kept.is_empty()), (vec![98, 4], false));
}
