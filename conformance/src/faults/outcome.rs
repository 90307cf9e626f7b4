//! `FaultOutcome`: what came of one fault under one policy, and what was promised of it. Pure.

use std::time::Duration;

use tidegate::OnFailure;

use super::fault::{Effect, Fault, Loss};
use super::load::{Counts, INSTANCES, Scale, slow};

/// What came of one fault under one policy.
#[derive(Clone, Debug)]
pub struct FaultOutcome {
    /// What happened.
    pub fault: Fault,
    /// What the rule wants then.
    pub policy: OnFailure,
    /// Under how much load.
    pub scale: Scale,
    /// The limit of the rule.
    pub limit: u64,
    /// What callers were told.
    pub counts: Counts,
    /// What the store had left when all was over.
    pub rest: u64,
    /// The time from when the store was mended, or from the fault where servers repair it themselves, until all decisions were
    /// the store's again.
    pub recovery: Duration,
    /// How many decisions left for the store under all policies together, where somebody on the way counted them, and how many
    /// were asked for.
    pub sent_on: Option<(u64, u64)>,
}

impl FaultOutcome {
    /// What passed above the limit, or could have: what the store still had to give counts as given.
    pub fn over_admission(&self) -> u64 {
        (self.counts.allowed + self.counts.passed + self.rest).saturating_sub(self.limit)
    }

    /// The most of it that is promised.
    pub fn bound(&self) -> u64 {
        let instances = INSTANCES as u64;
        let by_policy = match (self.fault.effect(), self.policy) {
            (Effect::Unnoticed, _) | (_, OnFailure::Closed) => 0,
            (_, OnFailure::Local) => instances * slow(self.limit).share(INSTANCES as u32).amount(),
            (_, OnFailure::Static) => instances * self.scale.cap,
            // Everything passes, and each is flagged.
            (_, _) => self.counts.passed,
        };
        let by_loss = match self.fault.loss() {
            Loss::Nothing => 0,
            // A primary tells its replica before it reads the next commands: so many can be under way at once.
            Loss::Unreplicated => instances * self.scale.workers as u64,
            Loss::Everything => self.limit,
        };
        by_policy + by_loss
    }

    /// Every promise that was not kept, in words.
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
        promise(self.sent_on.is_none_or(|(sent_on, asked)| sent_on <= asked), "a decision was sent twice");
        // What was not answered may have been counted, and nothing else.
        let unanswered = self.counts.without_store();
        promise(allowed + self.rest + unanswered >= self.limit, "something was counted that nobody asked for");
        let (known, told) = (self.fault.effect().reasons(), reasons.iter());
        promise(told.clone().all(|reason| known.contains(reason)), "a reason that is not this fault's");
        let got = (passed > 0, held > 0, refused > 0);
        match (self.fault.effect(), self.policy) {
            (Effect::Unnoticed, _) => {
                promise(got == (false, false, false), "the fault was noticed");
                promise(allowed + self.rest == self.limit, "what was admitted is not what was counted");
            }
            (_, OnFailure::Closed) => promise(got == (false, false, true), "closed means refused, and nothing else"),
            (Effect::Outage(_), OnFailure::Local | OnFailure::Static) => {
                promise(got == (true, true, false), "some pass, and then none");
            }
            (_, OnFailure::Local | OnFailure::Static) => promise(passed > 0 && refused == 0, "some pass"),
            (_, _) => promise(got == (true, false, false), "open means that all pass"),
        }
        problems
    }
}
