//! Penalties without the store: strikes are counted in the memory of the instance.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::limits::Penalty;
use tidegate::{Decision, Limiter, ManualClock, MemoryStore, OnFailure, Request, Rule, RuleSet};

use crate::fallback::store::{SwitchableStore, bucket, poll_once};

const HOUR: Duration = Duration::from_secs(3600);

/// Two attempts, then a block of an hour at the second strike.
fn limiter(policy: OnFailure, clock: &ManualClock) -> (Limiter<SwitchableStore>, SwitchableStore) {
    let store = SwitchableStore::new(clock);
    let penalty = Penalty::new(2, HOUR, 2, 2 * HOUR).unwrap();
    let rule = Rule::new("login", bucket(2)).with_per(["ip"]).with_security().with_penalty(penalty);
    let rules = RuleSet::new([rule.with_on_failure(policy).with_static_limit(bucket(2))]).unwrap();
    let memory = MemoryStore::new().with_clock(clock.clone());
    (Limiter::new(rules, store.clone()).with_fallback_store(memory), store)
}

fn attempt(limiter: &Limiter<SwitchableStore>) -> Decision {
    poll_once(limiter.check(&Request::new("").with_attribute("ip", "192.0.2.7"))).unwrap()
}

/// Whether the fourth attempt, after two denials, is denied by a block.
fn is_blocked_without_the_store(policy: OnFailure) -> bool {
    let clock = ManualClock::default();
    let (limiter, store) = limiter(policy, &clock);
    store.fails.store(true, Ordering::Relaxed);
    let decisions = [(); 4].map(|()| attempt(&limiter));
    assert!(decisions[..2].iter().all(Decision::is_allowed));
    let denials = decisions.iter().flat_map(Decision::checks).filter(|check| check.limit_name() == "penalty");
    denials.filter(|check| !check.outcome().admitted).count() > 0
}

#[test]
fn without_the_store_an_instance_counts_strikes_in_its_memory() {
    assert!(is_blocked_without_the_store(OnFailure::Local));
    assert!(is_blocked_without_the_store(OnFailure::Share));
}

#[test]
fn a_static_cap_for_all_subjects_blames_none() {
    assert!(!is_blocked_without_the_store(OnFailure::Static));
}

/// The block is in the store, which cannot be asked.
#[test]
fn a_block_of_the_store_does_not_hold_without_it_and_holds_again_with_it() {
    let clock = ManualClock::default();
    let (limiter, store) = limiter(OnFailure::Local, &clock);
    assert!((0..4).filter(|_| attempt(&limiter).is_allowed()).count() == 2);
    store.fails.store(true, Ordering::Relaxed);
    assert!(attempt(&limiter).is_allowed());
    store.fails.store(false, Ordering::Relaxed);
    assert_eq!(attempt(&limiter).retry_after(), Some(HOUR));
}
