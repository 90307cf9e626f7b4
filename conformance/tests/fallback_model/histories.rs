//! Histories that are drawn: rules, failures of the store, and requests.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::rules::OnOverload;
use tidegate::spi::Role;
use tidegate::{Limit, OnFailure, Rate, StoreError, StoreErrorKind};

/// A rule as drawn.
#[derive(Clone, Debug)]
pub(crate) struct RuleSpec {
    pub(crate) limits: Vec<Limit>,
    pub(crate) role: Role,
    pub(crate) on_failure: OnFailure,
    pub(crate) on_overload: OnOverload,
    pub(crate) static_limit: Limit,
    pub(crate) cost: u64,
    /// The rules with the same budget share their limits. Only of enforced rules.
    pub(crate) budget: Option<u8>,
}

/// How the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureSpec {
    Failed(StoreErrorKind),
    Overloaded,
    Crowded,
}

/// One request without the store.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) wait: Duration,
    pub(crate) subject: usize,
    pub(crate) failure: FailureSpec,
    /// Added to the cost of every rule.
    pub(crate) cost: u64,
    pub(crate) free: bool,
    pub(crate) max_units: u64,
    pub(crate) peek: bool,
}

pub(crate) fn limit() -> impl Strategy<Value = Limit> {
    let rate = || (1..5u64).prop_map(|amount| Rate::new(amount, Duration::from_secs(1)).unwrap());
    let window = || (1..4u64).prop_map(Duration::from_secs);
    prop_oneof![
        (0..6u64, rate()).prop_map(|(capacity, rate)| Limit::token_bucket(capacity, rate).unwrap()),
        (0..4u64, rate()).prop_map(|(queue, rate)| Limit::leaky_bucket(rate, queue).unwrap()),
        (0..6u64, window()).prop_map(|(limit, window)| Limit::fixed_window(limit, window).unwrap()),
        (0..6u64, window()).prop_map(|(limit, window)| Limit::sliding_log(limit, window).unwrap()),
        (0..6u64, window()).prop_map(|(limit, window)| Limit::sliding_window(limit, window, 4).unwrap()),
    ]
}

pub(crate) fn rule() -> impl Strategy<Value = RuleSpec> {
    let role = prop_oneof![4 => Just(Role::Enforced), 1 => Just(Role::Shadow), 2 => (0..2u8).prop_map(Role::AnyOf)];
    let on_failure = prop_oneof![
        4 => Just(OnFailure::Local),
        3 => Just(OnFailure::Share),
        3 => Just(OnFailure::Static),
        1 => Just(OnFailure::Open),
        1 => Just(OnFailure::Degraded),
        1 => Just(OnFailure::Closed),
    ];
    let on_overload =
        prop_oneof![4 => Just(OnOverload::Policy), 1 => Just(OnOverload::Local), 1 => Just(OnOverload::Open)];
    let static_limit =
        (0..5u64).prop_map(|static_limit| Limit::token_bucket(static_limit, Rate::per_second(1).unwrap()).unwrap());
    let budget = prop::option::weighted(0.3, 0..2u8);
    (prop::collection::vec(limit(), 1..3), role, on_failure, on_overload, static_limit, 0..3u64, budget).prop_map(
        |(limits, role, on_failure, on_overload, static_limit, cost, budget)| RuleSpec {
            limits,
            role,
            on_failure,
            // The limit of a key in memory must not change: the models have one each.
            on_overload: if on_failure == OnFailure::Share { OnOverload::Policy } else { on_overload },
            static_limit,
            cost,
            budget,
        },
    )
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kinds = [
        StoreErrorKind::Unavailable,
        StoreErrorKind::Refused,
        StoreErrorKind::Denied,
        StoreErrorKind::Unreadable,
        StoreErrorKind::Unsupported,
        StoreErrorKind::Unexpected,
    ];
    let failure = prop_oneof![
        3 => prop::sample::select(kinds.to_vec()).prop_map(FailureSpec::Failed),
        2 => Just(FailureSpec::Overloaded),
        1 => Just(FailureSpec::Crowded),
    ];
    let wait = prop_oneof![3 => Just(0u64), 2 => 1..400_000u64, 1 => 400_000..5_000_000u64];
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.15));
    let step = (wait, 0..2usize, failure, 0..2u64, prop_oneof![4 => Just(1u64), 1 => 2..4u64], flags).prop_map(
        |(wait, subject, failure, cost, max_units, (free, peek))| Step {
            wait: Duration::from_micros(wait),
            subject,
            failure,
            cost,
            free,
            max_units,
            peek,
        },
    );
    prop::collection::vec(step, 1..50)
}

impl RuleSpec {
    pub(crate) fn cost(&self, step: &Step) -> u64 {
        if step.free { 0 } else { self.cost + step.cost }
    }
}

impl Step {
    pub(crate) fn error(&self) -> StoreError {
        match self.failure {
            FailureSpec::Failed(kind) => StoreError::new(kind, "it fails"),
            FailureSpec::Overloaded => StoreError::new(StoreErrorKind::Overloaded, "too many wait"),
            FailureSpec::Crowded => StoreError::new(StoreErrorKind::Overloaded, "too many wait").with_crowded(),
        }
    }
}
