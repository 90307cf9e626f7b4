//! `Tally`: the counters of rules, found by the rule's name without building labels for every check. It counts nothing itself.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use prometheus_client::metrics::counter::Counter;

/// What can come of a check, by rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Rejected,
    ShadowAllowed,
    ShadowRejected,
}

/// What is counted beside the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// It passed, near the limit.
    Near,
    /// It was rejected for now.
    Limit,
    /// It was rejected, and will always be.
    Permanent,
    /// A rule in shadow would have rejected it.
    Shadow,
}

/// The counters that checks have needed so far. There are as many as rules. What was counted is kept by the
/// families that they come from.
#[derive(Debug, Default)]
pub(crate) struct Tally(RwLock<HashMap<Box<str>, Vec<Counters>>>);

/// The counters of a rule, for limits of one algorithm. Each comes to be when it first counts.
#[derive(Debug)]
pub(crate) struct Counters {
    algorithm: &'static str,
    outcomes: [OnceLock<Counter>; 4],
    besides: [OnceLock<Counter>; 4],
}

impl Tally {
    /// Lets `count` have the counters of a rule.
    pub(crate) fn of(&self, rule: &str, algorithm: &'static str, count: impl FnOnce(&Counters)) {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = find(known.get(rule), algorithm) {
            return count(counters);
        }
        drop(known);
        {
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            let of_rule = known.entry(rule.into()).or_default();
            // Another thread may have been here in between.
            if find(Some(of_rule), algorithm).is_none() {
                of_rule.push(Counters { algorithm, outcomes: Default::default(), besides: Default::default() });
            }
        }
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = find(known.get(rule), algorithm) {
            count(counters);
        }
    }
}

impl Tally {
    /// Forgets where counters are, for when their labels change. What they counted stays.
    pub(crate) fn clear(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Counters {
    /// The counter of an outcome; the first time, `make` brings it.
    pub(crate) fn outcome(&self, outcome: Outcome, make: impl FnOnce() -> Counter) -> &Counter {
        self.outcomes[outcome as usize].get_or_init(make)
    }

    /// The counter of something beside it; the first time, `make` brings it.
    pub(crate) fn beside(&self, beside: Beside, make: impl FnOnce() -> Counter) -> &Counter {
        self.besides[beside as usize].get_or_init(make)
    }
}

impl Outcome {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Rejected => "rejected",
            Self::ShadowAllowed => "shadow_allowed",
            Self::ShadowRejected => "shadow_rejected",
        }
    }
}

fn find<'c>(of_rule: Option<&'c Vec<Counters>>, algorithm: &str) -> Option<&'c Counters> {
    of_rule?.iter().find(|counters| counters.algorithm == algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_made_once_for_each_rule_algorithm_and_outcome() {
        let (tally, made) = (Tally::default(), std::cell::RefCell::new(Vec::new()));
        let count = |rule: &'static str, algorithm, outcome: Outcome| {
            tally.of(rule, algorithm, |counters| {
                counters.outcome(outcome, || {
                    made.borrow_mut().push((rule, algorithm, outcome.name()));
                    Counter::default()
                });
            });
        };
        for _ in 0..3 {
            count("a", "token_bucket", Outcome::Allowed);
            count("a", "sliding_log", Outcome::Allowed);
            count("b", "token_bucket", Outcome::Allowed);
            count("a", "token_bucket", Outcome::ShadowRejected);
        }
        let expected = [
            ("a", "token_bucket", "allowed"),
            ("a", "sliding_log", "allowed"),
            ("b", "token_bucket", "allowed"),
            ("a", "token_bucket", "shadow_rejected"),
        ];
        assert_eq!(*made.borrow(), expected);
    }
}
