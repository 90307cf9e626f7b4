//! `RecentDenials`: which partitions denied last. The parts of a plan are ordered by it.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::spi::{PARTITIONS, Plan, Verdict};

/// The order of the last denials of the partitions. A part that denied a moment ago is likely to deny again; decided first, it
/// leaves nothing to refund.
pub(crate) struct RecentDenials {
    count: AtomicU64,
    /// For each partition the value of `count` at its last denial; 0 for none.
    last: Vec<AtomicU64>,
}

impl RecentDenials {
    /// Without a cluster it stays empty, since no plan is split.
    pub(crate) fn new(is_cluster: bool) -> Self {
        let partitions = if is_cluster { PARTITIONS } else { 0 };
        Self { count: AtomicU64::new(0), last: (0..partitions).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The most recent denial in a partition of `plan`: larger is later, 0 is none.
    pub(super) fn last(&self, plan: &Plan<'_>) -> u64 {
        let last =
            |partition: u16| self.last.get(usize::from(partition)).map_or(0, |last| last.load(Ordering::Relaxed));
        plan.checks().iter().map(|check| last(check.key().partition())).max().unwrap_or(0)
    }

    /// Records the checks of `plan` that denied.
    pub(super) fn record(&self, plan: &Plan<'_>, verdict: &Verdict) {
        let now = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        for (check, check_verdict) in plan.checks().iter().zip(verdict.checks()) {
            if let (false, Some(last)) =
                (check_verdict.outcome.admitted, self.last.get(usize::from(check.key().partition())))
            {
                last.store(now, Ordering::Relaxed);
            }
        }
    }
}
