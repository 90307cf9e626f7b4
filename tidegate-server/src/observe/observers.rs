//! `Observers`: the metrics and the refusal log behind the one observer that a limiter has.

use std::sync::Arc;

use tidegate::spi::{Observer, Plan};
use tidegate::{Decision, StoreError};

use super::log::refusal_log::RefusalLog;
use super::metrics::Metrics;

/// Passes every call on to the metrics and the refusal log.
#[derive(Debug)]
pub(crate) struct Observers {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) refusals: Arc<RefusalLog>,
}

impl Observer for Observers {
    fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
        self.metrics.decided(plan, decision);
        self.refusals.decided(plan, decision);
    }

    fn no_rule(&self, plan: &Plan<'_>) {
        self.metrics.no_rule(plan);
    }

    fn undecided(&self, plan: &Plan<'_>, error: &StoreError) {
        self.metrics.undecided(plan, error);
        self.refusals.undecided(plan, error);
    }

    fn hold_lost(&self, rule: &str) {
        self.metrics.hold_lost(rule);
    }
}
