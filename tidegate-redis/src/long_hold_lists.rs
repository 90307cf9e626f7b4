//! `LongHoldLists`: the keys of a server whose lists of holds are long. A check of such a key takes the server as long as one of a
//! sliding log, even if it holds nothing itself, and counts as one in a batch.
//!
//! The replies say how long the lists are: those to reservations, which make a list longer, and those to all other decisions. So a
//! store that never sees a long list does nothing here.

use std::time::Duration;

use tokio::time::Instant;

use crate::packed_plan::{PackedCheck, PackedPlan, PackedRange};
use crate::reply::PlanReply;

/// A list is short up to this number of holds and remembered ends: a check takes about twice as long as without any.
const MAX_SHORT_LIST: u64 = 64;

/// How many keys are told apart, by their hashes. A key that is taken for one with a long list is only sent in smaller batches.
const MARKS: usize = 16_384;

/// The keys with long lists of holds.
pub(crate) struct LongHoldLists {
    started: Instant,
    /// By hash of the key, until when its list may be long, in seconds since `started`. Empty before the first long list.
    until: Vec<u32>,
}

impl LongHoldLists {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { started: now, until: Vec::new() }
    }

    /// Learns from the reply to `plan`. A list gets shorter by commits and releases, too, but has ended when its last entry has.
    pub(crate) fn record(&mut self, plan: &PackedPlan, reply: &PlanReply, now: Instant) {
        for list in reply.hold_lists().filter(|list| list.entries > MAX_SHORT_LIST) {
            let Some(check) = plan.checks.get(list.check) else { return };
            let key = check.overflow.filter(|_| list.is_overflow).unwrap_or(check.key);
            let until = self.seconds(now).saturating_add(seconds(list.lasts)).saturating_add(1);
            self.until.resize(MARKS, 0);
            let mark = &mut self.until[mark_of(&key)];
            *mark = until.max(*mark);
        }
    }

    /// How many checks of `plan` beside its [log checks](PackedPlan::log_checks) may meet a long list.
    pub(crate) fn checks_of(&self, plan: &PackedPlan, now: Instant) -> usize {
        if self.until.is_empty() {
            return 0;
        }
        let now = self.seconds(now);
        let is_long = |key: &PackedRange| self.until[mark_of(key)] > now;
        // Others are log checks anyway, or keep no holds.
        let may_meet_holds = |check: &&PackedCheck| check.is_additive && !check.is_hold;
        let checks = plan.checks.iter().filter(may_meet_holds);
        checks.filter(|check| is_long(&check.key) || check.overflow.as_ref().is_some_and(is_long)).count()
    }

    fn seconds(&self, now: Instant) -> u32 {
        seconds(now.saturating_duration_since(self.started))
    }
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

const fn mark_of(key: &PackedRange) -> usize {
    key.hash as usize % MARKS
}
