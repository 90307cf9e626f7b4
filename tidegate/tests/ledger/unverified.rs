//! A ledger that was not reached since the start, or that does not fit: the store is not asked, even if it could decide.

use std::sync::atomic::Ordering;

use tidegate::rules::LedgerMode;
use tidegate::spi::EntryKind;
use tidegate::{Limit, Limiter, OnFailure, Rate, Rule, RuleSet, StoreError, StoreErrorKind};

use super::{Setup, request, setup, units, wait};

impl Setup {
    fn set_unverified(&self, kind: Option<StoreErrorKind>) {
        *self.stage.unverified.lock().unwrap() = kind;
    }
}

/// An entry that another instance posts would be billed to a hash by an unknown secret, and the store may have lost what the ledger has.
#[test]
fn no_plan_with_a_ledger_is_sent_to_the_store_before_the_ledger_was_reached() {
    for mode in [LedgerMode::Async, LedgerMode::Sync] {
        let closed = setup(units(mode));
        closed.set_unverified(Some(StoreErrorKind::Unavailable));
        assert_eq!(wait(closed.limiter.check(&request(4))).unwrap_err().kind(), StoreErrorKind::Unavailable);
        assert!(wait(closed.limiter.peek(&request(4))).is_err());
        assert!(wait(closed.limiter.charge(&request(4))).is_err());

        let open = setup(units(mode).with_on_failure(OnFailure::Local));
        open.set_unverified(Some(StoreErrorKind::Unavailable));
        let decision = wait(open.limiter.check(&request(4))).unwrap();
        assert_eq!((decision.is_allowed(), decision.degraded()), (true, Some(StoreErrorKind::Unavailable)));
        assert!(!wait(open.limiter.check(&request(7))).unwrap().is_allowed(), "decided in memory, by the whole limit");
        let journaled: Vec<_> =
            open.stage.journaled.lock().unwrap().iter().map(|entry| (entry.kind, entry.amount)).collect();
        assert_eq!(journaled, [(EntryKind::Consume, 4)]);

        for setup in [closed, open] {
            assert_eq!(setup.entries(), []);
            setup.set_unverified(None);
            assert_eq!(setup.remaining(), Some(10));
        }
    }
}

#[test]
fn rules_whose_ledger_does_not_fit_are_closed_whatever_their_policy() {
    for policy in [OnFailure::Open, OnFailure::Degraded, OnFailure::Local, OnFailure::Share] {
        let setup = setup(units(LedgerMode::Async).with_on_failure(policy));
        setup.set_unverified(Some(StoreErrorKind::Mismatch));
        for error in [
            wait(setup.limiter.check(&request(1))).unwrap_err(),
            wait(setup.limiter.check(&request(0))).unwrap_err(),
            wait(setup.limiter.peek(&request(1))).unwrap_err(),
            wait(setup.limiter.charge(&request(1))).unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.is_transient()), (StoreErrorKind::Mismatch, false), "{policy:?}");
        }
        // A front end that has waited long enough gets no other decision.
        let plan = setup.limiter.plan(&request(1));
        let late = setup.limiter.plans().fall_back(&plan, StoreError::new(StoreErrorKind::Unavailable, "too slow"));
        assert_eq!(late.unwrap_err().kind(), StoreErrorKind::Mismatch, "{policy:?}");
        assert_eq!((setup.stage.journaled.lock().unwrap().len(), setup.entries().len()), (0, 0));
    }
}

#[test]
fn rules_without_a_ledger_are_decided_by_the_store_whatever_is_the_matter_with_the_ledger() {
    let setup = setup(units(LedgerMode::Sync));
    let limit = Limit::token_bucket(1, Rate::per_second(1).unwrap()).unwrap();
    let rules = RuleSet::new([Rule::new("pages", limit).with_per(["tenant"])]).unwrap();
    let limiter = Limiter::new(rules, setup.store.clone()).with_ledger(setup.stage.clone());
    setup.stage.is_down.store(true, Ordering::Relaxed);
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Mismatch] {
        setup.set_unverified(Some(kind));
        assert_eq!(wait(limiter.check(&request(0))).unwrap().degraded(), None);
    }
    assert!(wait(limiter.check(&request(1))).unwrap().is_allowed());
    assert!(!wait(limiter.check(&request(1))).unwrap().is_allowed());
}
