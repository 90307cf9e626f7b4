//! `RoundOutcome`: what happened in one round, for the page.

use super::call::{Answer, CallRecord};
use super::strike::{Deployment, Strike, Victim};

/// What happened in one round.
#[derive(Clone, Debug)]
pub struct RoundOutcome {
    /// The processes.
    pub deployment: Deployment,
    /// What was killed.
    pub strikes: Vec<Strike>,
    /// Calls with each answer.
    pub counts: Counts,
    /// Units that were acknowledged under the rule with `async`, and that the ledger does not have.
    pub lost_units: u64,
    /// The time from the last look into the outboxes back to the oldest entry there, in microseconds: the lag of the ledger at a loss.
    pub lag_micros: u64,
}

/// Calls by their answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allowed, committed or released.
    pub done: u64,
    /// Denied, or about a reservation that has ended or is not known.
    pub denied: u64,
    /// 503.
    pub failed: u64,
    /// No answer.
    pub missing: u64,
}

impl Counts {
    pub(super) fn new<'c>(calls: impl IntoIterator<Item = &'c CallRecord>) -> Self {
        calls.into_iter().fold(Self::default(), |mut counts, call| {
            let count = match call.answer {
                Answer::Done | Answer::DoneAlone => &mut counts.done,
                Answer::Denied | Answer::NotFound | Answer::Ended => &mut counts.denied,
                Answer::Failed => &mut counts.failed,
                Answer::Missing => &mut counts.missing,
                Answer::Unsent => return counts,
            };
            *count += 1;
            counts
        })
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            done: self.done + other.done,
            denied: self.denied + other.denied,
            failed: self.failed + other.failed,
            missing: self.missing + other.missing,
        }
    }
}

impl RoundOutcome {
    /// The names of what was killed.
    pub fn victims(&self) -> String {
        let mut names: Vec<_> = self.strikes.iter().map(|strike| strike.victim.name()).collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// Whether the store has lost everything.
    pub fn lost_store(&self) -> bool {
        self.strikes.iter().any(|strike| strike.victim == Victim::Redis)
    }
}
