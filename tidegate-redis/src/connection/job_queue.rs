//! `JobQueue`: jobs that wait to be sent, in the order of their arrival, at most a given number. Withdrawn jobs leave at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::crowd::{KeyCounts, choose_crowded, choose_fairly};
use super::job::{Job, PendingPlan};
use crate::node_error::NodeError;

/// When the queue is full, this part of it is refused at once, so that choosing whom to refuse costs little for each plan.
const REFUSED_FRACTION: usize = 4;

/// Jobs that wait to be sent.
pub(super) struct JobQueue<J> {
    /// With jobs that were withdrawn.
    entries: VecDeque<Arc<J>>,
    /// How many of them wait.
    waiting: usize,
    max_waiting: usize,
}

/// Refuses plans when too many wait.
pub(super) struct CrowdControl {
    /// How many plans were submitted since plans were last chosen to be refused.
    submitted: usize,
    /// The keys that were waiting then.
    counts: KeyCounts,
}

impl<J: Job> JobQueue<J> {
    pub(super) const fn new(max_waiting: usize) -> Self {
        Self { entries: VecDeque::new(), waiting: 0, max_waiting }
    }

    /// The number of jobs that wait.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) const fn is_full(&self) -> bool {
        self.waiting >= self.max_waiting
    }

    /// Appends a job.
    pub(super) fn push(&mut self, job: Arc<J>) {
        // Withdrawn jobs never are the larger part of the queue.
        if self.entries.len() >= 2 * self.waiting + 64 {
            self.entries.retain(|job| job.is_waiting());
        }
        self.entries.push_back(job);
        self.waiting += 1;
    }

    /// Records that a job was withdrawn, under the lock that guards the queue.
    pub(super) fn record_withdrawn(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.entries.clear();
        }
    }

    /// The oldest job that waits.
    pub(super) fn oldest(&mut self) -> Option<&Arc<J>> {
        while self.entries.front().is_some_and(|job| !job.is_waiting()) {
            self.entries.pop_front();
        }
        self.entries.front()
    }

    /// Removes the oldest job.
    pub(super) fn pop(&mut self) -> Option<Arc<J>> {
        self.entries.pop_front()
    }

    /// Records that a removed job is sent.
    pub(super) fn record_sent(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// The jobs that wait.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<J>> + Clone {
        self.entries.iter().filter(|job| job.is_waiting())
    }

    /// Fails the jobs for which `error` returns one.
    pub(super) fn fail(&mut self, error: impl Fn(&J) -> Option<NodeError>) -> usize {
        let mut failed = 0;
        self.entries.retain(|job| match error(job) {
            Some(error) => {
                failed += usize::from(job.fail_unsent(error));
                false
            }
            None => job.is_waiting(),
        });
        self.waiting = self.waiting.saturating_sub(failed);
        failed
    }
}

impl JobQueue<PendingPlan> {
    /// If more than `wanted` plans wait, puts those in front that are sent next, fairly among subjects.
    pub(super) fn put_fair_share_in_front(&mut self, wanted: usize) {
        if self.waiting <= wanted {
            return;
        }
        self.entries.retain(|plan| plan.is_waiting());
        let keys = self.entries.iter().map(|plan| plan.packed.key_hashes());
        let chosen =
            choose_fairly(keys, wanted, |index| self.entries[index].was_crowded.store(true, Ordering::Relaxed));
        let mut entries: Vec<Option<Arc<PendingPlan>>> = self.entries.drain(..).map(Some).collect();
        let mut in_front: VecDeque<_> = chosen.into_iter().filter_map(|index| entries[index].take()).collect();
        in_front.extend(entries.into_iter().flatten());
        self.entries = in_front;
    }
}

impl CrowdControl {
    pub(super) fn new() -> Self {
        Self { submitted: usize::MAX, counts: KeyCounts::default() }
    }

    /// Makes room in `queue` for `plan` and appends it, or returns the error that refuses it. The number of other plans that
    /// were refused for it is added to `refused`.
    pub(super) fn push(
        &mut self,
        queue: &mut JobQueue<PendingPlan>,
        plan: Arc<PendingPlan>,
        refused: &mut usize,
    ) -> Result<(), NodeError> {
        self.submitted = self.submitted.saturating_add(1);
        if !queue.is_full() {
            queue.push(plan);
            return Ok(());
        }
        let wanted = (queue.max_waiting / REFUSED_FRACTION).max(1);
        if self.submitted < wanted {
            let is_crowded = self.counts.crowd(plan.packed.key_hashes()).0 > 0;
            return Err(NodeError::Overloaded { is_crowded });
        }
        self.submitted = 0;
        queue.entries.retain(|job| job.is_waiting());
        queue.entries.push_back(plan);
        queue.waiting = queue.entries.len();
        let mut chosen = choose_crowded(queue.entries.iter().map(|plan| plan.packed.key_hashes()), wanted).into_iter();
        let (mut next, mut index, mut is_refused) = (chosen.next(), 0, false);
        let last = queue.entries.len() - 1;
        queue.entries.retain(|plan| {
            let is_chosen = next == Some(index);
            if is_chosen {
                next = chosen.next();
                is_refused = index == last;
                if index != last {
                    *refused += usize::from(plan.result.fail_unsent(NodeError::Overloaded { is_crowded: true }));
                }
            }
            index += 1;
            !is_chosen
        });
        queue.waiting = queue.entries.len();
        let is_full = queue.waiting > queue.max_waiting;
        if is_full {
            // Every waiting plan is alone with one of its keys, and so is this one.
            queue.entries.pop_back();
            queue.waiting -= 1;
        }
        // Until plans are chosen again, these counts tell who is crowded.
        self.counts = KeyCounts::of_plans(queue.entries.iter().map(|plan| plan.packed.key_hashes()));
        if is_refused || is_full {
            return Err(NodeError::Overloaded { is_crowded: is_refused });
        }
        Ok(())
    }
}
