//! `FaultOutcome`: the result of one fault under one policy, and the promises it is held to. Pure.

use std::time::Duration;

use tidegate::{OnFailure, StoreErrorKind};

use super::fault::{Effect, Fault, StateLoss};
use super::load::{Counts, INSTANCES, Scale, slow};
use crate::suite::{Answer, broken_promises};

/// The result of one fault under one policy.
#[derive(Clone, Debug)]
pub struct FaultOutcome {
    pub(super) fault: Fault,
    pub(super) policy: OnFailure,
    pub(super) scale: Scale,
    /// The limit of the rule.
    pub(super) limit: u64,
    pub(super) counts: Counts,
    /// The remaining units in the store at the end.
    pub(super) rest: u64,
    /// The time from the repair (or from the fault, where servers recover by themselves) until the store made all decisions
    /// again.
    pub(super) recovery: Duration,
    /// Checks sent to the store as the proxy counted them, and checks requested, for all policies together.
    pub(super) sent_on: Option<(u64, u64)>,
    /// Whether the servers answered an independent connection within the timeout, apart from the fault.
    pub(super) within_timeout: bool,
}

impl FaultOutcome {
    /// The units that passed above the limit. Units that the store could still grant count as passed.
    pub(super) fn over_admission(&self) -> u64 {
        (self.counts.answers.of(Answer::Allowed) + self.counts.answers.of(Answer::Passed) + self.rest)
            .saturating_sub(self.limit)
    }

    /// The promised maximum of [`over_admission`](Self::over_admission).
    pub(super) fn bound(&self) -> u64 {
        let instances = INSTANCES as u64;
        let by_policy = match (self.fault.effect(), self.policy) {
            (Effect::Unnoticed, _) if self.within_timeout => 0,
            (_, OnFailure::Closed) => 0,
            (_, OnFailure::Local) => instances * self.limit,
            (_, OnFailure::Share) => instances * slow(self.limit).share(INSTANCES as u32).amount(),
            (_, OnFailure::Static) => instances * self.scale.static_limit,
            // Everything passes, and each is flagged.
            (_, _) => self.counts.answers.of(Answer::Passed),
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
        let (counts, reasons) = (&self.counts, &self.counts.reasons);
        let [allowed, passed, held, refused, late] =
            [Answer::Allowed, Answer::Passed, Answer::Held, Answer::Refused, Answer::Missing]
                .map(|answer| counts.answers.of(answer));
        // A machine may be too busy to run the server for that long.
        let is_busy = |reason: &StoreErrorKind| {
            !self.within_timeout && matches!(reason, StoreErrorKind::Unavailable | StoreErrorKind::Overloaded)
        };
        let is_promised =
            |reason: &StoreErrorKind| self.fault.reasons().any(|promised| promised == *reason) || is_busy(reason);
        // Whatever the policy, an overloaded instance refuses subjects with several calls that wait.
        let is_refused =
            refused > 0 && (self.policy == OnFailure::Closed || !reasons.contains(&StoreErrorKind::Overloaded));
        let got = (passed > 0, held > 0, is_refused);
        let is_bounded = matches!(self.policy, OnFailure::Local | OnFailure::Share | OnFailure::Static);
        let effect = match self.fault.effect() {
            Effect::Unnoticed => (!self.within_timeout || got == (false, false, false), "the fault was noticed"),
            _ if self.policy == OnFailure::Closed => {
                (got == (false, false, true), "closed means refused, and nothing else")
            }
            Effect::Outage(_) if is_bounded => (got == (true, true, false), "some pass, and then none"),
            _ if is_bounded => (passed > 0 && !is_refused, "some pass"),
            _ => (got == (true, false, false), "open means that all pass"),
        };
        let is_exact = allowed + self.rest == self.limit;
        let promises = [
            (late == 0, "a decision took longer than many budgets"),
            (counts.by_store() + counts.without_store() == counts.sent, "a decision was lost"),
            (self.over_admission() <= self.bound(), "more passed than the bound says"),
            (self.sent_on.is_none_or(|(sent_on, requested)| sent_on <= requested), "a check was sent twice"),
            // An unanswered decision may have been counted.
            (
                allowed + self.rest + counts.without_store() >= self.limit,
                "the store counted a decision that nobody requested",
            ),
            (reasons.iter().all(is_promised), "a decision gives a reason that this fault cannot have"),
            effect,
            (
                self.fault.effect() != Effect::Unnoticed || !self.within_timeout || is_exact,
                "the admitted units differ from the counted ones",
            ),
        ];
        broken_promises(&format!("{}, {}", self.fault.name(), self.policy.as_str()), self, promises)
    }
}
