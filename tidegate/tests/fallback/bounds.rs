//! By how much all instances together exceed a limit, whenever and however the store fails: the bounds of docs/failure.md.

use proptest::prelude::*;
use tidegate::{Limiter, ManualClock, OnFailure, Request, Rule, RuleSet, StoreError, StoreErrorKind};

use crate::fallback::store::{SwitchableStore, bucket, poll_once};

/// What the store does at one request.
#[derive(Clone, Copy, Debug)]
enum StoreState {
    Answers,
    Fails(StoreErrorKind),
    IsOverloaded { crowded: bool },
    IsFull,
}

/// One request: by which subject, at which instance, and what the store does then.
#[derive(Clone, Debug)]
struct Step {
    user: usize,
    instance: usize,
    state: StoreState,
    cost: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kinds = [
        StoreErrorKind::Unavailable,
        StoreErrorKind::Refused,
        StoreErrorKind::Denied,
        StoreErrorKind::Unreadable,
        StoreErrorKind::Unexpected,
    ];
    let state = prop_oneof![
        Just(StoreState::Answers),
        prop::sample::select(kinds.to_vec()).prop_map(StoreState::Fails),
        any::<bool>().prop_map(|crowded| StoreState::IsOverloaded { crowded }),
        Just(StoreState::IsFull),
    ];
    let step = (0..2usize, 0..3usize, state, prop_oneof![6 => 1..3u64, 1 => Just(0u64), 1 => 3..20u64]);
    prop::collection::vec(step.prop_map(|(user, instance, state, cost)| Step { user, instance, state, cost }), 1..120)
}

/// The cost that passed, for each user, of a rule with this policy on three instances.
fn admitted(policy: OnFailure, limit: u64, static_limit: u64, steps: &[Step]) -> [u64; 2] {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let rule = Rule::new("api", bucket(limit))
        .with_per(["user"])
        .with_on_failure(policy)
        .with_static_limit(bucket(static_limit));
    let instances: Vec<_> = (0..3)
        .map(|_| {
            let memory = tidegate::MemoryStore::new().with_clock(clock.clone());
            let rules = RuleSet::new([rule.clone()]).unwrap();
            Limiter::new(rules, store.clone()).with_fallback_store(memory).with_instances(3)
        })
        .collect();
    let mut admitted = [0, 0];
    for Step { user, instance, state, cost } in steps {
        let error = match state {
            StoreState::Answers | StoreState::IsFull => None,
            StoreState::Fails(kind) => Some(StoreError::new(*kind, "it fails")),
            StoreState::IsOverloaded { crowded: false } => {
                Some(StoreError::new(StoreErrorKind::Overloaded, "it waits"))
            }
            StoreState::IsOverloaded { crowded: true } => {
                Some(StoreError::new(StoreErrorKind::Overloaded, "it waits").with_crowded())
            }
        };
        store.fails.store(error.is_some(), std::sync::atomic::Ordering::Relaxed);
        *store.error.lock().unwrap() = error;
        *store.full_for.lock().unwrap() = if matches!(state, StoreState::IsFull) { vec!["api"] } else { Vec::new() };
        let name = ["ann", "bob"][*user];
        let request = Request::new("").with_attribute("user", name).with_cost(*cost);
        if poll_once(instances[*instance].check(&request)).is_ok_and(|decision| decision.is_allowed()) {
            admitted[*user] += cost;
        }
    }
    admitted
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn instances_exceed_a_limit_at_most_by_the_bound_of_their_policy(steps in steps(), limit in 0..9u64, static_limit in 0..9u64) {
        // The share of three instances, at least one.
        let share = if limit == 0 { 0 } else { (limit / 3).max(1) };
        for (policy, bound) in [
            (OnFailure::Closed, limit),
            (OnFailure::Local, limit + 3 * limit),
            (OnFailure::Share, limit + 3 * share),
        ] {
            for passed in admitted(policy, limit, static_limit, &steps) {
                prop_assert!(passed <= bound, "{policy:?}: {passed} of at most {bound}");
            }
        }
        // A static limit counts requests, whatever they cost and whoever sends them.
        let unit = |step: &Step| Step { cost: step.cost.min(1), ..step.clone() };
        let units: Vec<Step> = steps.iter().map(unit).collect();
        for passed in admitted(OnFailure::Static, limit, static_limit, &units) {
            prop_assert!(passed <= limit + 3 * static_limit, "static: {passed} of at most {limit} and 3 times {static_limit}");
        }
    }

    /// No failure of a store that is only overloaded opens a rule, not even one that is open while the store fails.
    #[test]
    fn an_overload_opens_no_rule(steps in steps(), limit in 0..9u64) {
        let overloads = steps.into_iter().map(|step| match step.state {
            StoreState::Fails(_) => Step { state: StoreState::IsOverloaded { crowded: false }, ..step },
            StoreState::IsFull => Step { state: StoreState::Answers, ..step },
            _ => step,
        });
        let overloads: Vec<Step> = overloads.collect();
        for policy in [OnFailure::Open, OnFailure::Degraded, OnFailure::Local] {
            for passed in admitted(policy, limit, 0, &overloads) {
                prop_assert!(passed <= 4 * limit, "{policy:?}: {passed} of at most {}", 4 * limit);
            }
        }
    }
}
