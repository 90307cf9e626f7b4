//! `Connection`: the connection to one server. A [task](task) owns it: callers hand it plans and calls and wait; what callers
//! do afterwards changes nothing for anybody else. While there is no connection, calls fail at once; nothing is kept to be
//! sent later, except while the first connection is being made.

mod crowd;
mod job;
mod job_queue;
mod open_link;
mod pacing;
mod pending;
mod task;
mod unanswered;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::batch::{BatchSize, MAX_BATCH_PLANS};
use crate::breaker::{Breaker, BreakerState};
use crate::connector::Connector;
use crate::node_error::{DownReason, NodeError};
use crate::options::RedisOptions;
use crate::packed_plan::PackedPlan;
use crate::reply::PlanReply;
use crate::scripts::Script;
use crate::server_state::ServerState;
use crate::timeouts::Timeouts;
use crate::timer;
use crowd::KeyCounts;
use job::{Job, PendingCall, PendingPlan, WaitLimits};
use job_queue::{CrowdControl, JobQueue};
use open_link::SendContext;
use pacing::MAX_COMBINE_WAIT;
pub(crate) use pending::Epilogue;
use pending::Pending;
use task::ConnectionTask;

/// The connection to one server. Clones share it; its task ends when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Connection(Arc<ConnectionHandle>);

/// Ends the task when it is dropped.
struct ConnectionHandle(Arc<ConnectionShared>);

/// What callers and the task share.
struct ConnectionShared {
    connector: Connector,
    options: RedisOptions,
    /// Whether plans of several slots may be in one batch: in a cluster they may not.
    combines_slots: bool,
    state: Mutex<ConnectionState>,
    /// Calls and plans that were sent and not answered yet.
    under_way: AtomicUsize,
    overloaded: AtomicU64,
    batches: AtomicU64,
    batched_plans: AtomicU64,
}

struct ConnectionState {
    breaker: Breaker,
    /// Whether there is a connection that has answered.
    is_connected: bool,
    /// Why there is none.
    reason: Arc<DownReason>,
    /// The number of finished connection attempts.
    attempts: u64,
    plans: JobQueue<PendingPlan>,
    crowd_control: CrowdControl,
    calls: JobQueue<PendingCall>,
    /// The earliest time until which a job waits, of those that the task has not seen yet.
    first_deadline: Option<Instant>,
    wake_up: WakeUp,
    has_task: bool,
    /// Whether the connection should be replaced by a new one.
    is_replace_requested: bool,
    /// Whether the last handle was dropped.
    is_closed: bool,
}

/// When the task has to be woken.
struct WakeUp {
    /// `None` while the task runs.
    waker: Option<Waker>,
    /// Whether something other than a plan was submitted since the task has last looked.
    has_news: bool,
    /// The number of waiting plans at which the task sends them. Below it, the task sleeps until a reply arrives.
    plans: usize,
}

/// Withdraws a job when its caller goes away, or leaves an epilogue for its result.
struct PlanGuard<'c, F: Fn() -> Option<Epilogue<PlanReply>>> {
    connection: &'c Connection,
    plan: Arc<PendingPlan>,
    epilogue: F,
}

/// Likewise, for a call.
struct CallGuard<'c> {
    connection: &'c Connection,
    call: Arc<PendingCall>,
}

/// Commands that are not combined with others.
pub(crate) struct RawCall {
    pub(crate) commands: Vec<u8>,
    /// How many replies they have.
    pub(crate) replies: usize,
    /// The script of the only command. If the server does not know it, it is loaded and the command sent again.
    pub(crate) script: Option<&'static Script>,
    /// Whether `ASKING` precedes the only command.
    pub(crate) asking: bool,
}

impl Connection {
    /// Does not connect yet: the first call does.
    pub(crate) fn new(connector: Connector, options: &RedisOptions, combines_slots: bool) -> Self {
        let state = ConnectionState {
            breaker: Breaker::default(),
            is_connected: false,
            reason: Arc::new(DownReason::NOT_CONNECTED_YET),
            attempts: 0,
            plans: JobQueue::new(options.max_waiting),
            crowd_control: CrowdControl::new(),
            calls: JobQueue::new(options.max_waiting),
            first_deadline: None,
            wake_up: WakeUp { waker: None, has_news: false, plans: 1 },
            has_task: false,
            is_replace_requested: false,
            is_closed: false,
        };
        Self(Arc::new(ConnectionHandle(Arc::new(ConnectionShared {
            connector,
            options: options.clone(),
            combines_slots,
            state: Mutex::new(state),
            under_way: AtomicUsize::new(0),
            overloaded: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            batched_plans: AtomicU64::new(0),
        }))))
    }

    /// Decides `plan`, together with others if there are any. If the caller goes away after the plan was sent, `epilogue` says
    /// what is done with its reply.
    pub(crate) async fn decide(
        &self,
        plan: &Arc<PackedPlan>,
        asking: bool,
        timeouts: Timeouts,
        epilogue: impl Fn() -> Option<Epilogue<PlanReply>> + Send,
    ) -> Result<PlanReply, NodeError> {
        let plan = {
            let mut state = self.shared().lock();
            let waits = self.admit(&mut state, timeouts)?;
            let plan =
                Arc::new(PendingPlan { packed: Arc::clone(plan), asking, waits, result: Pending::new() });
            let ConnectionState { plans, crowd_control, .. } = &mut *state;
            let mut refused = 0;
            let pushed = crowd_control.push(plans, Arc::clone(&plan), &mut refused);
            refused += usize::from(pushed.is_err());
            self.shared().overloaded.fetch_add(refused as u64, Ordering::Relaxed);
            pushed?;
            state.record_submission(&plan.waits);
            let wakes = state.plans.waiting() >= state.wake_up.plans;
            let waker = if wakes { state.wake_up.waker.take() } else { None };
            drop(state);
            wake(waker);
            plan
        };
        let guard = PlanGuard { connection: self, plan, epilogue };
        guard.plan.result.wait().await
    }

    /// Sends the commands of `call`, and returns their replies.
    pub(crate) async fn call(&self, call: RawCall, timeouts: Timeouts) -> Result<Vec<Value>, NodeError> {
        let call = {
            let mut state = self.shared().lock();
            let waits = self.admit(&mut state, timeouts)?;
            if state.calls.is_full() {
                self.shared().overloaded.fetch_add(1, Ordering::Relaxed);
                return Err(NodeError::Overloaded { is_crowded: false });
            }
            let RawCall { commands, replies, script, asking } = call;
            let call = Arc::new(PendingCall { commands, replies, script, asking, waits, result: Pending::new() });
            state.calls.push(Arc::clone(&call));
            state.record_submission(&call.waits);
            let waker = state.wake_up.take();
            drop(state);
            wake(waker);
            call
        };
        let guard = CallGuard { connection: self, call };
        guard.call.result.wait().await
    }

    /// Replaces a connection that still works by a new one, in the background: the host name may resolve to another
    /// server by now.
    pub(crate) fn replace(&self) {
        let mut state = self.shared().lock();
        if state.is_connected && !state.is_replace_requested {
            state.is_replace_requested = true;
            let waker = state.wake_up.take();
            drop(state);
            wake(waker);
        }
    }

    /// A snapshot for operators.
    pub(crate) fn state(&self, address: &str) -> ServerState {
        let shared = self.shared();
        let state = shared.lock();
        ServerState {
            address: address.to_owned(),
            breaker: state.breaker.state(),
            opened: state.breaker.opened(),
            in_flight: shared.under_way.load(Ordering::Relaxed),
            waiting: state.plans.waiting() + state.calls.waiting(),
            overloaded: shared.overloaded.load(Ordering::Relaxed),
            batches: shared.batches.load(Ordering::Relaxed),
            batched_plans: shared.batched_plans.load(Ordering::Relaxed),
        }
    }

    /// The limits of a job that is submitted now, or why it must not be sent. Starts the task if there is none.
    fn admit(&self, state: &mut ConnectionState, timeouts: Timeouts) -> Result<WaitLimits, NodeError> {
        if !state.has_task {
            let runtime = Handle::try_current().map_err(|_| NodeError::Down(Arc::clone(&state.reason)))?;
            state.has_task = true;
            state.wake_up = WakeUp { waker: None, has_news: true, plans: 1 };
            runtime.spawn(ConnectionTask::new(Arc::clone(self.shared())));
        }
        if state.breaker.state() != BreakerState::Closed && !timeouts.waits_for_retry {
            return Err(NodeError::Down(Arc::clone(&state.reason)));
        }
        Ok(WaitLimits::new(timeouts, timer::now(), state.attempts))
    }

    fn shared(&self) -> &Arc<ConnectionShared> {
        &self.0.0
    }
}

impl ConnectionShared {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The budget of a decision.
    const fn budget(&self) -> Duration {
        self.options.timeout
    }

    fn send_context(&self) -> SendContext {
        let injected_now = self.options.clock.as_ref().map(|clock| clock.now());
        SendContext { now: timer::now(), injected_now, budget: self.budget() }
    }

    /// Removes the next call to send.
    fn next_call(&self) -> Option<Arc<PendingCall>> {
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
    fn oldest_plan_since(&self) -> Option<Instant> {
        self.lock().plans.oldest().map(|plan| plan.waits.submitted_at)
    }

    /// Removes the plans of the next round, in groups of which each is one batch. `None` if none are to be sent yet: they are
    /// sent `at_once`, if a full batch waits, or if the oldest has waited long enough.
    fn next_round(&self, at_once: bool, now: Instant) -> Option<Vec<Vec<Arc<PendingPlan>>>> {
        let mut state = self.lock();
        let oldest = state.plans.oldest()?;
        let has_waited = now.saturating_duration_since(oldest.waits.submitted_at) >= MAX_COMBINE_WAIT;
        if !at_once && !has_waited && state.plans.waiting() < MAX_BATCH_PLANS {
            return None;
        }
        let (mut size, mut groups) = (BatchSize::default(), SlotGroups::new(self.combines_slots));
        while let Some(plan) = state.plans.oldest().filter(|plan| size.try_add(&plan.packed)).cloned() {
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

    /// Fails the jobs that have waited for too long to be sent, and returns the first deadline of the others.
    fn expire_unsent(&self, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let is_connected = state.is_connected;
        let is_due = |waits: &WaitLimits| waits.unsent_until(is_connected) <= now;
        let is_slow_connect = |waits: &WaitLimits| !is_connected && waits.is_setup_over(now);
        let has_slow_connect = state.plans.iter().any(|plan| is_slow_connect(plan.waits()))
            || state.calls.iter().any(|call| is_slow_connect(call.waits()));
        let reason = Arc::clone(&state.reason);
        let error = |is_crowded: bool| {
            if is_connected { NodeError::Overloaded { is_crowded } } else { NodeError::Down(Arc::clone(&reason)) }
        };
        let mut failed = 0;
        if state.plans.iter().any(|plan| is_due(plan.waits())) {
            let counts = KeyCounts::of_plans(state.plans.iter().map(|plan| plan.packed.key_hashes()));
            let is_crowded = |plan: &PendingPlan| counts.crowd(plan.packed.key_hashes()).0 > 1;
            failed += state.plans.fail(|plan| is_due(plan.waits()).then(|| error(is_crowded(plan))));
        }
        failed += state.calls.fail(|call| is_due(call.waits()).then(|| error(false)));
        if is_connected {
            self.overloaded.fetch_add(failed as u64, Ordering::Relaxed);
        } else if has_slow_connect && state.breaker.state() == BreakerState::Closed {
            // The first connection takes longer than callers wait. Further callers fail at once until it is made.
            state.breaker.record_slow_connect();
            state.fail_waiting();
        }
        let plans = state.plans.iter().map(|plan| plan.waits().unsent_until(is_connected)).min();
        let calls = state.calls.iter().map(|call| call.waits().unsent_until(is_connected)).min();
        [plans, calls].into_iter().flatten().min()
    }
}

/// Plans of one round, in groups of which each is one batch.
struct SlotGroups {
    combines_slots: bool,
    groups: Vec<Vec<Arc<PendingPlan>>>,
    /// The index of the group of a slot.
    indexes: HashMap<u16, usize>,
}

impl SlotGroups {
    fn new(combines_slots: bool) -> Self {
        Self { combines_slots, groups: Vec::new(), indexes: HashMap::new() }
    }

    fn push(&mut self, plan: Arc<PendingPlan>) {
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
    fn record_submission(&mut self, waits: &WaitLimits) {
        let until = waits.unsent_until(self.is_connected);
        self.first_deadline = Some(self.first_deadline.map_or(until, |first| first.min(until)));
    }

    /// Fails the jobs that wait, for lack of a connection. Those that wait for the next connection attempt fail after it.
    fn fail_waiting(&mut self) {
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
    /// Records that there is something to do at once, and returns the waker of a task that sleeps.
    fn take(&mut self) -> Option<Waker> {
        self.has_news = true;
        self.waker.take()
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let waker = state.wake_up.take();
        drop(state);
        wake(waker);
    }
}

impl<F: Fn() -> Option<Epilogue<PlanReply>>> Drop for PlanGuard<'_, F> {
    fn drop(&mut self) {
        // Withdrawn under the lock of the queue, which counts the jobs that wait.
        if self.plan.result.is_waiting() {
            let mut state = self.connection.shared().lock();
            if self.plan.result.withdraw() {
                return state.plans.record_withdrawn();
            }
        }
        self.plan.result.abandon(&self.epilogue);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if self.call.result.is_waiting() {
            let mut state = self.connection.shared().lock();
            if self.call.result.withdraw() {
                return state.calls.record_withdrawn();
            }
        }
        self.call.result.abandon(|| None);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
