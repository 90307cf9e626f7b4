//! `Denials`: who denied last. It only remembers; the order of the parts is theirs.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::spi::{PARTITIONS, Plan, Verdict};

/// Which partitions denied, in the order of their last denial: a part that denied a moment ago is likely to do it again, and
/// if it is the first, nothing has to be given back.
pub(crate) struct Denials {
    count: AtomicU64,
    last: Vec<AtomicU64>,
}

impl Denials {
    /// None yet; without slots, none will be asked for.
    pub(crate) fn new(has_slots: bool) -> Self {
        let partitions = if has_slots { PARTITIONS } else { 0 };
        Self { count: AtomicU64::new(0), last: (0..partitions).map(|_| AtomicU64::new(0)).collect() }
    }

    /// When a check of `plan` denied last; 0 if none has.
    pub(super) fn last(&self, plan: &Plan<'_>) -> u64 {
        let last =
            |partition: u16| self.last.get(usize::from(partition)).map_or(0, |last| last.load(Ordering::Relaxed));
        plan.checks().iter().map(|check| last(check.key().partition())).max().unwrap_or(0)
    }

    /// Remembers which checks of `plan` denied.
    pub(super) fn add(&self, plan: &Plan<'_>, verdict: &Verdict) {
        let now = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        for (check, judged) in plan.checks().iter().zip(&verdict.judged) {
            if let (false, Some(last)) = (judged.outcome.admitted, self.last.get(usize::from(check.key().partition())))
            {
                last.store(now, Ordering::Relaxed);
            }
        }
    }
}
