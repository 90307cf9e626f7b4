//! `FaultOutcome`: the result of one fault under one policy, and the promises it is held to. Pure.

use std::time::Duration;

use tidegate::{OnFailure, StoreErrorKind};

use super::fault::{Effect, Fault, StateLoss};
use super::load::{Counts, INSTANCES, Scale, slow};

/// The result of one fault under one policy.
#[derive(Clone, Debug)]
pub struct FaultOutcome {
    /// The fault.
    pub fault: Fault,
    /// The failure policy of the rule.
    pub policy: OnFailure,
    /// The load.
    pub scale: Scale,
    /// The limit of the rule.
    pub limit: u64,
    /// The decisions.
    pub counts: Counts,
    /// The remaining units in the store at the end.
    pub rest: u64,
    /// The time from the repair (or from the fault, where servers recover by themselves) until the store made all decisions
    /// again.
    pub recovery: Duration,
    /// Checks sent to the store as the proxy counted them, and checks requested, for all policies together.
    pub sent_on: Option<(u64, u64)>,
    /// Whether the servers answered an independent connection within the timeout, apart from the fault.
    pub within_timeout: bool,
}

impl FaultOutcome {
    /// The units that passed above the limit. Units that the store could still grant count as passed.
    pub fn over_admission(&self) -> u64 {
        (self.counts.allowed + self.counts.passed + self.rest).saturating_sub(self.limit)
    }

    /// The promised maximum of [`over_admission`](Self::over_admission).
    pub fn bound(&self) -> u64 {
        let instances = INSTANCES as u64;
        let by_policy = match (self.fault.effect(), self.policy) {
            (Effect::Unnoticed, _) if self.within_timeout => 0,
            (_, OnFailure::Closed) => 0,
            (_, OnFailure::Local) => instances * self.limit,
            (_, OnFailure::Share) => instances * slow(self.limit).share(INSTANCES as u32).amount(),
            (_, OnFailure::Static) => instances * self.scale.cap,
            // Everything passes, and each is flagged.
            (_, _) => self.counts.passed,
        };
        let by_loss = match self.fault.loss() {
            StateLoss::Nothing => 0,
            // A primary replicates before it reads the next commands: at most one per worker is unreplicated.
            StateLoss::Unreplicated => instances * self.scale.workers as u64,
            StateLoss::Everything => self.limit,
        };
        by_policy + by_loss
    }

    /// Describes every broken promise.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut promise = |kept: bool, what: &str| {
            if !kept {
                problems.push(format!("{}, {}: {what}: {self:?}", self.fault.name(), self.policy.as_str()));
            }
        };
        let Counts { sent, allowed, passed, held, refused, late, ref reasons, .. } = self.counts;
        promise(late == 0, "a decision took longer than many budgets");
        promise(self.counts.by_store() + self.counts.without_store() == sent, "a decision was lost");
        promise(self.over_admission() <= self.bound(), "more passed than the bound says");
        promise(self.sent_on.is_none_or(|(sent_on, requested)| sent_on <= requested), "a check was sent twice");
        // An unanswered decision may have been counted.
        let unanswered = self.counts.without_store();
        promise(allowed + self.rest + unanswered >= self.limit, "the store counted a decision that nobody requested");
        // A machine may be too busy to run the server for that long.
        let is_busy = |reason: &StoreErrorKind| {
            !self.within_timeout && matches!(reason, StoreErrorKind::Unavailable | StoreErrorKind::Overloaded)
        };
        let is_promised =
            |reason: &StoreErrorKind| self.fault.reasons().any(|promised| promised == *reason) || is_busy(reason);
        promise(reasons.iter().all(is_promised), "a decision gives a reason that this fault cannot have");
        // Whatever the policy, an overloaded instance refuses subjects with several calls that wait.
        let refused =
            refused > 0 && (self.policy == OnFailure::Closed || !reasons.contains(&StoreErrorKind::Overloaded));
        let got = (passed > 0, held > 0, refused);
        match (self.fault.effect(), self.policy) {
            (Effect::Unnoticed, _) if !self.within_timeout => {}
            (Effect::Unnoticed, _) => {
                promise(got == (false, false, false), "the fault was noticed");
                promise(allowed + self.rest == self.limit, "the admitted units differ from the counted ones");
            }
            (_, OnFailure::Closed) => promise(got == (false, false, true), "closed means refused, and nothing else"),
            (Effect::Outage(_), OnFailure::Local | OnFailure::Share | OnFailure::Static) => {
                promise(got == (true, true, false), "some pass, and then none");
            }
            (_, OnFailure::Local | OnFailure::Share | OnFailure::Static) => {
                promise(passed > 0 && !refused, "some pass");
            }
            (_, _) => promise(got == (true, false, false), "open means that all pass"),
        }
        problems
    }
}
