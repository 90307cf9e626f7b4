//! `RuleCounters`: finds the counters of a rule by its name, without building a label set for every check.

use std::collections::HashMap;
use std::sync::OnceLock;

use prometheus_client::metrics::counter::Counter;
use tidegate::sync::RwLock;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    Allowed,
    Rejected,
    ShadowAllowed,
    ShadowRejected,
}

/// A counter beside that of the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtraCounter {
    /// Passed near the limit.
    NearLimit,
    /// Rejected, and may pass later.
    Limit,
    /// Rejected, and never passes.
    Permanent,
    /// Rejected by a shadow rule.
    Shadow,
    /// Rejected without a call to the store, which had denied it a moment ago.
    KnownDenial,
    /// Passed in the grace of a quota.
    Grace,
}

/// The counters that checks have used so far, one entry for each rule. The values belong to the metric families.
#[derive(Debug, Default)]
pub(crate) struct RuleCounters(RwLock<HashMap<Box<str>, Vec<CounterSet>>>);

/// The counters of a rule for limits of one algorithm. Each is created when it is first used.
#[derive(Debug)]
pub(crate) struct CounterSet {
    algorithm: &'static str,
    outcomes: [OnceLock<Counter>; 4],
    extras: [OnceLock<Counter>; 6],
}

impl RuleCounters {
    /// Calls `count` with the counters of a rule.
    pub(crate) fn with(&self, rule: &str, algorithm: &'static str, count: impl FnOnce(&CounterSet)) {
        let by_rule = self.0.read();
        if let Some(counters) = find(by_rule.get(rule), algorithm) {
            return count(counters);
        }
        drop(by_rule);
        {
            let mut by_rule = self.0.write();
            let of_rule = by_rule.entry(rule.into()).or_default();
            // Another thread may have added it in between.
            if find(Some(of_rule), algorithm).is_none() {
                of_rule.push(CounterSet { algorithm, outcomes: Default::default(), extras: Default::default() });
            }
        }
        let by_rule = self.0.read();
        if let Some(counters) = find(by_rule.get(rule), algorithm) {
            count(counters);
        }
    }

    /// Empties the index, for when labels change. The families keep the values.
    pub(crate) fn clear(&self) {
        self.0.write().clear();
    }
}

impl CounterSet {
    /// The counter of an outcome; `make` creates it on first use.
    pub(crate) fn outcome(&self, outcome: CheckOutcome, make: impl FnOnce() -> Counter) -> &Counter {
        self.outcomes[outcome as usize].get_or_init(make)
    }

    /// A counter beside it; `make` creates it on first use.
    pub(crate) fn extra(&self, extra: ExtraCounter, make: impl FnOnce() -> Counter) -> &Counter {
        self.extras[extra as usize].get_or_init(make)
    }
}

impl CheckOutcome {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Rejected => "rejected",
            Self::ShadowAllowed => "shadow_allowed",
            Self::ShadowRejected => "shadow_rejected",
        }
    }
}

fn find<'c>(of_rule: Option<&'c Vec<CounterSet>>, algorithm: &str) -> Option<&'c CounterSet> {
    of_rule?.iter().find(|counters| counters.algorithm == algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_made_once_for_each_rule_algorithm_and_outcome() {
        let (rule_counters, made) = (RuleCounters::default(), std::cell::RefCell::new(Vec::new()));
        let count = |rule: &'static str, algorithm, outcome: CheckOutcome| {
            rule_counters.with(rule, algorithm, |counters| {
                counters.outcome(outcome, || {
                    made.borrow_mut().push((rule, algorithm, outcome.name()));
                    Counter::default()
                });
            });
        };
        for _ in 0..3 {
            count("a", "token_bucket", CheckOutcome::Allowed);
            count("a", "sliding_log", CheckOutcome::Allowed);
            count("b", "token_bucket", CheckOutcome::Allowed);
            count("a", "token_bucket", CheckOutcome::ShadowRejected);
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
