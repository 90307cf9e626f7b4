//! `ConnectionShared`: what the callers and the task of a connection share. Nobody holds its lock while waiting.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use tidegate::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::job::{Job, PendingCall, PendingPlan, WaitLimits};
use super::job_queue::{CrowdControl, JobQueue};
use super::open_link::SendContext;
use super::pacing::MAX_COMBINE_WAIT;
use crate::batch::{BatchSize, MAX_BATCH_PLANS};
use crate::breaker::Breaker;
use crate::connector::Connector;
use crate::long_hold_lists::LongHoldLists;
use crate::node_error::{DownReason, NodeError};
use crate::options::RedisOptions;
use crate::timer;

/// What callers and the task share.
pub(super) struct ConnectionShared {
    pub(super) connector: Connector,
    pub(super) options: RedisOptions,
    /// Whether plans of several slots may be in one batch: in a cluster they may not.
    pub(super) combines_slots: bool,
    pub(super) state: Mutex<ConnectionState>,
    /// Calls and plans that were sent and not answered yet.
    pub(super) under_way: AtomicUsize,
    pub(super) overloaded: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) batched_plans: AtomicU64,
}

pub(super) struct ConnectionState {
    pub(super) breaker: Breaker,
    /// Whether there is a connection that has answered.
    pub(super) is_connected: bool,
    /// Why there is none.
    pub(super) reason: Arc<DownReason>,
    /// The number of finished connection attempts.
    pub(super) attempts: u64,
    pub(super) plans: JobQueue<PendingPlan>,
    pub(super) crowd_control: CrowdControl,
    pub(super) calls: JobQueue<PendingCall>,
    /// The earliest time until which a job waits, of those that the task has not seen yet.
    pub(super) first_deadline: Option<Instant>,
    pub(super) wake_up: WakeUp,
    pub(super) lifecycle: TaskLifecycle,
    /// Whether the connection should be replaced by a new one.
    pub(super) is_replace_requested: bool,
}

/// Whether the task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskLifecycle {
    /// The next job starts it.
    NotRunning,
    Running,
    /// The last handle was dropped.
    Closed,
}

/// When the task has to be woken.
pub(super) struct WakeUp {
    /// `None` while the task runs.
    pub(super) waker: Option<Waker>,
    /// Whether something other than a plan was submitted since the task has last looked.
    pub(super) has_news: bool,
    /// The number of waiting plans at which the task sends them. Below it, the task sleeps until a reply arrives.
    pub(super) plans: usize,
    /// When the task looks at deadlines next. A job with an earlier one wakes it.
    pub(super) alarm: Option<Instant>,
}

impl ConnectionShared {
    pub(super) fn new(connector: Connector, options: &RedisOptions, combines_slots: bool) -> Self {
        let state = ConnectionState {
            breaker: Breaker::default(),
            is_connected: false,
            reason: Arc::new(DownReason::NOT_CONNECTED_YET),
            attempts: 0,
            plans: JobQueue::new(options.max_waiting),
            crowd_control: CrowdControl::new(),
            calls: JobQueue::new(options.max_waiting),
            first_deadline: None,
            wake_up: WakeUp::new(),
            lifecycle: TaskLifecycle::NotRunning,
            is_replace_requested: false,
        };
        Self {
            connector,
            options: options.clone(),
            combines_slots,
            state: Mutex::new(state),
            under_way: AtomicUsize::new(0),
            overloaded: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            batched_plans: AtomicU64::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }

    /// The budget of a decision.
    pub(super) const fn budget(&self) -> Duration {
        self.options.timeout
    }

    pub(super) fn send_context(&self) -> SendContext {
        let injected_now = self.options.clock.as_ref().map(|clock| clock.now());
        SendContext { now: timer::now(), injected_now, budget: self.budget() }
    }

    /// Removes the next call to send.
    pub(super) fn next_call(&self) -> Option<Arc<PendingCall>> {
        let mut state = self.lock();
        loop {
            let call = state.calls.pop()?;
            if call.result.begin_send() {
                state.calls.record_sent();
                return Some(call);
            }
        }
    }

    /// Since when the oldest plan waits.
    pub(super) fn oldest_plan_since(&self) -> Option<Instant> {
        self.lock().plans.oldest().map(|plan| plan.waits.submitted_at)
    }

    /// Removes the plans of the next round, in groups of which each is one batch. `None` if none are to be sent yet: they are
    /// sent `at_once`, if a full batch waits, or if the oldest has waited long enough.
    pub(super) fn next_round(
        &self,
        at_once: bool,
        lists: &LongHoldLists,
        now: Instant,
    ) -> Option<Vec<Vec<Arc<PendingPlan>>>> {
        let mut state = self.lock();
        let oldest = state.plans.oldest()?;
        let has_waited = now.saturating_duration_since(oldest.waits.submitted_at) >= MAX_COMBINE_WAIT;
        if !at_once && !has_waited && state.plans.waiting() < MAX_BATCH_PLANS {
            return None;
        }
        state.plans.put_fair_share_in_front(MAX_BATCH_PLANS);
        let (mut size, mut groups) = (BatchSize::default(), SlotGroups::new(self.combines_slots));
        let mut try_add = |plan: &&Arc<PendingPlan>| size.try_add(&plan.packed, lists.checks_of(&plan.packed, now));
        while let Some(plan) = state.plans.oldest().filter(&mut try_add).cloned() {
            state.plans.pop();
            if plan.result.begin_send() {
                state.plans.record_sent();
                groups.push(plan);
            }
        }
        drop(state);
        let groups = groups.groups;
        self.batches.fetch_add(groups.len() as u64, Ordering::Relaxed);
        self.batched_plans.fetch_add(size.plans() as u64, Ordering::Relaxed);
        Some(groups).filter(|groups| !groups.is_empty())
    }
}

/// Plans of one round, in groups of which each is one batch.
pub(super) struct SlotGroups {
    pub(super) combines_slots: bool,
    pub(super) groups: Vec<Vec<Arc<PendingPlan>>>,
    /// The index of the group of a slot.
    pub(super) indexes: HashMap<u16, usize>,
}

impl SlotGroups {
    pub(super) fn new(combines_slots: bool) -> Self {
        Self { combines_slots, groups: Vec::new(), indexes: HashMap::new() }
    }

    pub(super) fn push(&mut self, plan: Arc<PendingPlan>) {
        if plan.asking {
            // `ASKING` precedes one command only.
            return self.groups.push(vec![plan]);
        }
        let slot = if self.combines_slots { 0 } else { plan.packed.slot() };
        let index = *self.indexes.entry(slot).or_insert(self.groups.len());
        match self.groups.get_mut(index) {
            Some(group) => group.push(plan),
            None => self.groups.push(vec![plan]),
        }
    }
}

impl ConnectionState {
    pub(super) fn record_submission(&mut self, waits: &WaitLimits) {
        let until = waits.unsent_until(self.is_connected);
        self.first_deadline = Some(self.first_deadline.map_or(until, |first| first.min(until)));
    }

    /// Fails the jobs that wait, for lack of a connection. Those that wait for the next connection attempt fail after it.
    pub(super) fn fail_waiting(&mut self) {
        let (reason, attempts) = (Arc::clone(&self.reason), self.attempts);
        let error = |waits: &WaitLimits| match waits.fails_after_attempt {
            Some(before) if before >= attempts => None,
            _ => Some(NodeError::Down(Arc::clone(&reason))),
        };
        self.plans.fail(|plan| error(plan.waits()));
        self.calls.fail(|call| error(call.waits()));
    }
}

impl WakeUp {
    pub(super) const fn new() -> Self {
        Self { waker: None, has_news: false, plans: 1, alarm: None }
    }

    /// Records that there is something to do at once, and returns the waker of a task that sleeps.
    pub(super) fn take(&mut self) -> Option<Waker> {
        self.has_news = true;
        self.waker.take()
    }
}
