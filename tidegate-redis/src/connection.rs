//! `Connection`: the connection to one server. A [task](task) owns it: callers hand it plans and calls and wait; what callers
//! do afterwards changes nothing for anybody else. While there is no connection, calls fail at once; nothing is kept to be
//! sent later, except while the first connection is being made.

mod alarm;
mod crowd;
mod expiry;
mod job;
mod job_queue;
mod open_link;
mod pacing;
mod pending;
mod replacement;
mod shared;
mod task;
mod unanswered;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use redis::Value;
use tokio::runtime::Handle;

use crate::breaker::BreakerState;
use crate::connector::Connector;
use crate::node_error::NodeError;
use crate::options::RedisOptions;
use crate::packed_plan::PackedPlan;
use crate::reply::PlanReply;
use crate::scripts::Script;
use crate::server_state::ServerState;
use crate::timeouts::Timeouts;
use crate::timer;
use job::{PendingCall, PendingPlan, WaitLimits};
pub(crate) use pending::Epilogue;
use pending::Pending;
use shared::{ConnectionShared, ConnectionState, TaskLifecycle, WakeUp};
use task::ConnectionTask;

/// The connection to one server. Clones share it; its task ends when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Connection(Arc<ConnectionHandle>);

/// Ends the task when it is dropped.
struct ConnectionHandle(Arc<ConnectionShared>);

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
        Self(Arc::new(ConnectionHandle(Arc::new(ConnectionShared::new(connector, options, combines_slots)))))
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
            let mut state = self.lock_with_task()?;
            let waits = admit(&state, timeouts)?;
            let plan = Arc::new(PendingPlan::new(plan, asking, waits));
            let ConnectionState { plans, crowd_control, .. } = &mut *state;
            let mut refused = 0;
            let pushed = crowd_control.push(plans, Arc::clone(&plan), &mut refused);
            refused += usize::from(pushed.is_err());
            self.shared().overloaded.fetch_add(refused as u64, Ordering::Relaxed);
            pushed?;
            state.record_submission(&plan.waits);
            let until = plan.waits.unsent_until(state.is_connected);
            let is_before_alarm = state.wake_up.alarm.is_none_or(|alarm| until < alarm);
            let wakes = is_before_alarm || state.plans.waiting() >= state.wake_up.plans;
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
            let mut state = self.lock_with_task()?;
            let waits = admit(&state, timeouts)?;
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

    /// The state, after the task was started if there is none. The task is spawned without the lock: a runtime that shuts down
    /// drops it at once, and its drop takes the lock.
    fn lock_with_task(&self) -> Result<MutexGuard<'_, ConnectionState>, NodeError> {
        let mut state = self.shared().lock();
        if state.lifecycle != TaskLifecycle::NotRunning {
            return Ok(state);
        }
        let runtime = Handle::try_current().map_err(|_| NodeError::Down(Arc::clone(&state.reason)))?;
        state.lifecycle = TaskLifecycle::Running;
        state.wake_up = WakeUp::new();
        drop(state);
        runtime.spawn(ConnectionTask::new(Arc::clone(self.shared())));
        let state = self.shared().lock();
        if state.lifecycle == TaskLifecycle::NotRunning {
            return Err(NodeError::Down(Arc::clone(&state.reason)));
        }
        Ok(state)
    }

    fn shared(&self) -> &Arc<ConnectionShared> {
        &self.0.0
    }
}

/// The limits of a job that is submitted now, or why it must not be sent.
fn admit(state: &ConnectionState, timeouts: Timeouts) -> Result<WaitLimits, NodeError> {
    if state.breaker.state() != BreakerState::Closed && !timeouts.waits_for_retry {
        return Err(NodeError::Down(Arc::clone(&state.reason)));
    }
    Ok(WaitLimits::new(timeouts, timer::now(), state.attempts))
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.lifecycle = TaskLifecycle::Closed;
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
