//! `ConnectionTask`: owns the connection to one server, the calls under way, and the judgement of the server.
//!
//! One poll does everything: it first reads all that is readable, and only then looks at the time. So lateness of this process
//! is never blamed on the server. It opens connections, tries them, and opens the breaker when the server is silent or the
//! connection is lost. No lock is held while it waits.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use redis::{ErrorKind, RedisError, RedisResult};
use tokio::time::Instant;

use super::alarm::Alarm;
use super::expiry::{Expiry, WaitsOver};
use super::open_link::{OpenLink, UnexpectedReply};
use super::pacing::{MAX_COMBINE_WAIT, Pacing};
use super::replacement::{Connecting, Replacement};
use super::shared::{ConnectionShared, TaskLifecycle};
use crate::batch::MAX_BATCH_PLANS;
use crate::long_hold_lists::LongHoldLists;
use crate::node_error::{DownReason, NodeError};
use crate::server_link::ServerLink;
use crate::timer;

/// How often one poll looks for more to do before it lets other tasks run.
const MAX_TURNS: usize = 16;

/// The task of one connection.
pub(super) struct ConnectionTask {
    shared: Arc<ConnectionShared>,
    phase: LinkPhase,
    replacement: Replacement,
    pacing: Pacing,
    long_lists: LongHoldLists,
    /// Fires at the ticks of [`Silence`](crate::silence::Silence), and for nothing else: that it fired proves that the runtime
    /// has looked for received bytes.
    tick: Alarm,
    /// Fires at deadlines.
    alarm: Alarm,
    /// The first deadline of a job.
    next_deadline: Option<Instant>,
    /// Whether jobs wait only because the server has sent nothing since they arrived.
    any_overdue: bool,
}

/// The phase of the link.
enum LinkPhase {
    /// The next attempt starts then.
    Disconnected {
        retry_at: Instant,
    },
    Connecting(Connecting),
    Open(Box<OpenLink>),
}

impl ConnectionTask {
    pub(super) fn new(shared: Arc<ConnectionShared>) -> Self {
        let now = timer::now();
        Self {
            shared,
            phase: LinkPhase::Disconnected { retry_at: now },
            replacement: Replacement::None,
            pacing: Pacing::default(),
            long_lists: LongHoldLists::new(now),
            tick: Alarm::new(now),
            alarm: Alarm::new(now),
            next_deadline: None,
            any_overdue: false,
        }
    }
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let task = self.get_mut();
        for _ in 0..MAX_TURNS {
            {
                let mut state = task.shared.lock();
                if state.lifecycle == TaskLifecycle::Closed {
                    return Poll::Ready(());
                }
                state.wake_up.has_news = false;
                task.next_deadline = [task.next_deadline, state.first_deadline.take()].into_iter().flatten().min();
            }
            task.drive(cx);
            if task.sleep(cx) {
                return Poll::Pending;
            }
        }
        // There is more to do, but other tasks of this thread come first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Driving
impl ConnectionTask {
    /// Does everything that can be done now.
    fn drive(&mut self, cx: &mut Context<'_>) {
        self.alarm.has_fired(cx);
        self.drive_link(cx);
        self.drive_replacement(cx);
        // Nothing is read any more in this round, so the time may be looked at. A plan that has waited only because this process was
        // busy is sent; a caller that has gone by its own deadline is not charged.
        let is_deadline_over = self.next_deadline.is_some_and(|deadline| deadline <= timer::now());
        if is_deadline_over {
            self.expire_jobs(WaitsOver::Deadline);
        }
        self.send_jobs();
        if is_deadline_over {
            self.expire_jobs(WaitsOver::Any);
        }
        if let LinkPhase::Open(open) = &mut self.phase
            && let Poll::Ready(Err(error)) = open.link.poll_write(cx)
        {
            self.lose(&error.into());
        }
    }

    /// Connects if there is no connection, and reads if there is one.
    fn drive_link(&mut self, cx: &mut Context<'_>) {
        if let LinkPhase::Disconnected { retry_at } = self.phase
            && retry_at <= timer::now()
        {
            self.phase = LinkPhase::Connecting(self.connect());
        }
        if let LinkPhase::Connecting(connecting) = &mut self.phase
            && let Poll::Ready(attempt) = connecting.as_mut().poll(cx)
        {
            self.record_attempt(attempt);
        }
        if let LinkPhase::Open(_) = self.phase {
            self.read(cx);
        }
    }

    /// Reads everything that is readable, and then judges whether the server is silent.
    fn read(&mut self, cx: &mut Context<'_>) {
        let LinkPhase::Open(open) = &mut self.phase else { return };
        let mut replies = VecDeque::new();
        let outcome = open.link.poll_read(cx, &mut replies);
        let context = self.shared.send_context();
        if outcome.any_byte {
            open.silence.record_byte();
            open.last_byte_at = context.now;
            if self.any_overdue {
                self.next_deadline = Some(context.now);
            }
        }
        let (was_tried, had_answered) = (open.is_tried, open.has_answered);
        let mut end = outcome.end;
        for reply in replies {
            if let Err(UnexpectedReply) = open.receive(reply, &mut self.pacing, &mut self.long_lists, context) {
                end = Some((ErrorKind::Parse, "the server sent a reply that nobody asked for").into());
                break;
            }
        }
        if (open.is_tried, open.has_answered) != (was_tried, had_answered) {
            let mut state = self.shared.lock();
            if open.is_tried && !was_tried {
                state.breaker.record_trial_answered();
                state.is_connected = true;
            }
            if open.has_answered {
                state.breaker.record_answer();
            }
        }
        let has_ticked = self.tick.has_fired(cx);
        if has_ticked {
            open.silence.finish_tick(context.now);
        }
        let is_untried = !open.is_tried && context.now >= open.opened_at + self.shared.connector.connection_timeout();
        if let Some(error) = end {
            self.lose(&error);
        } else if is_untried || (has_ticked && open.is_silent()) {
            self.lose(&io::Error::from(io::ErrorKind::TimedOut).into());
        }
    }

    fn connect(&self) -> Connecting {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.connector.connect().await })
    }

    /// Records the result of a connection attempt. A new connection is tried before it is used.
    fn record_attempt(&mut self, attempt: RedisResult<ServerLink>) {
        let context = self.shared.send_context();
        let mut state = self.shared.lock();
        state.attempts += 1;
        match attempt {
            Ok(link) => {
                state.breaker.record_connected();
                self.phase = LinkPhase::Open(Box::new(OpenLink::new(link, context)));
            }
            Err(error) => {
                state.reason = Arc::new(DownReason::from_connect_error(error));
                state.breaker.record_connect_failure();
                state.fail_waiting();
                let retry_at = timer::after(context.now, state.breaker.reconnect_delay());
                self.phase = LinkPhase::Disconnected { retry_at };
            }
        }
    }

    /// Drops the connection: the server is silent, or the connection broke. Everything under way was possibly applied.
    fn lose(&mut self, error: &RedisError) {
        let now = timer::now();
        let reason = DownReason::from_lost_connection(error);
        let retry_at = {
            let mut state = self.shared.lock();
            state.breaker.record_lost();
            state.is_connected = false;
            state.is_replace_requested = false;
            state.reason = Arc::new(reason);
            state.fail_waiting();
            timer::after(now, state.breaker.reconnect_delay())
        };
        // The breaker is open before the callers learn why.
        if let LinkPhase::Open(mut open) = std::mem::replace(&mut self.phase, LinkPhase::Disconnected { retry_at }) {
            open.fail_all(&NodeError::Failed(error.clone()));
        }
        self.shared.under_way.store(0, Ordering::Relaxed);
        self.replacement = Replacement::None;
        self.tick.disarm();
    }

    /// Makes the connection that replaces one that works, and uses it once everything on the old one is answered.
    fn drive_replacement(&mut self, cx: &mut Context<'_>) {
        let LinkPhase::Open(open) = &self.phase else { return };
        let is_idle = open.unanswered.is_empty();
        if self.replacement.is_none() && self.shared.lock().is_replace_requested {
            self.replacement = Replacement::Connecting(self.connect());
        }
        if self.replacement.poll_connect(cx) {
            self.shared.lock().attempts += 1;
        }
        if is_idle && let Some(link) = self.replacement.take_link() {
            self.shared.lock().breaker.record_connected();
            self.phase = LinkPhase::Open(Box::new(OpenLink::new(link, self.shared.send_context())));
            self.tick.disarm();
        }
        if self.replacement.end_cooldown() {
            self.shared.lock().is_replace_requested = false;
        }
    }
}

/// Jobs
impl ConnectionTask {
    /// Ends the wait of callers whose deadline has passed.
    fn expire_jobs(&mut self, waits_over: WaitsOver) {
        let now = timer::now();
        let open = if let LinkPhase::Open(open) = &self.phase { Some(open) } else { None };
        let last_byte_at = open.filter(|open| open.is_tried).map(|open| open.last_byte_at);
        let waiting = self.shared.expire_unsent(Expiry { now, waits_over, last_byte_at });
        let sent = open.and_then(|open| open.unanswered.expire(now));
        self.next_deadline = [waiting.first_deadline, sent].into_iter().flatten().min();
        self.any_overdue = waiting.any_overdue;
    }

    /// Sends the jobs that may be sent now.
    fn send_jobs(&mut self) {
        let LinkPhase::Open(open) = &mut self.phase else { return };
        if !open.is_tried || matches!(self.replacement, Replacement::Ready(_)) {
            return;
        }
        let mut first_deadline = self.next_deadline;
        while open.has_room_for_call()
            && let Some(call) = self.shared.next_call()
        {
            let deadline = open.send_call(call, timer::now());
            first_deadline = first_deadline.into_iter().chain([deadline]).min();
        }
        let max_rounds = self.pacing.max_rounds(self.shared.budget());
        while open.rounds() < max_rounds
            && let Some(groups) =
                self.shared.next_round(open.has_no_round_or_ended_one(), &self.long_lists, timer::now())
        {
            // The time is read after the plans were taken, so that no plan is decided at a time before it was submitted.
            let deadline = open.send_round(groups, self.shared.send_context());
            first_deadline = first_deadline.into_iter().chain(deadline).min();
        }
        open.end_turn();
        self.next_deadline = first_deadline;
    }

    /// Prepares to sleep until the next event. Returns false if there is something to do already.
    fn sleep(&mut self, cx: &mut Context<'_>) -> bool {
        let now = timer::now();
        let (mut wake_at, mut tick_at) = (self.next_deadline, None);
        let mut add = |at: Instant| wake_at = Some(wake_at.map_or(at, |first: Instant| first.min(at)));
        if let Replacement::CoolingDown { until } = self.replacement {
            add(until);
        }
        // How many waiting plans are sent without waiting for a reply or for the alarm.
        let mut plans_to_send = usize::MAX;
        let mut is_connected = false;
        match &mut self.phase {
            LinkPhase::Disconnected { retry_at } => add(*retry_at),
            LinkPhase::Connecting(_) => {}
            LinkPhase::Open(open) => {
                self.shared.under_way.store(open.unanswered.callers(), Ordering::Relaxed);
                if let Some(budget) = open.unanswered.min_budget() {
                    let at = open.silence.start_tick(now, budget);
                    tick_at = Some(at);
                    if !self.tick.arm(at, cx) {
                        return false;
                    }
                }
                is_connected = open.is_tried;
                if !is_connected {
                    add(open.opened_at + self.shared.connector.connection_timeout());
                } else if open.rounds() < self.pacing.max_rounds(self.shared.budget()) {
                    match self.shared.oldest_plan_since() {
                        Some(since) if open.rounds() > 0 => {
                            add(since + MAX_COMBINE_WAIT);
                            plans_to_send = MAX_BATCH_PLANS;
                        }
                        _ => plans_to_send = 1,
                    }
                }
            }
        }
        if let Some(at) = wake_at
            && !self.alarm.arm(at, cx)
        {
            return false;
        }
        let is_replacing = matches!(self.replacement, Replacement::Ready(_));
        let mut state = self.shared.lock();
        state.wake_up.plans = plans_to_send;
        state.wake_up.alarm = [wake_at, tick_at].into_iter().flatten().min();
        let has_new_deadline = match (state.first_deadline, state.wake_up.alarm) {
            (Some(first), Some(alarm)) => first < alarm,
            (first, _) => first.is_some(),
        };
        let has_plans = is_connected && !is_replacing && state.plans.waiting() >= plans_to_send;
        if state.wake_up.has_news || has_new_deadline || has_plans {
            return false;
        }
        state.wake_up.waker = Some(cx.waker().clone());
        true
    }
}

impl Drop for ConnectionTask {
    /// Nobody waits for a task that has ended, even if it panicked or its runtime was shut down.
    fn drop(&mut self) {
        let error: RedisError = io::Error::from(io::ErrorKind::BrokenPipe).into();
        let mut state = self.shared.lock();
        state.is_connected = false;
        if state.lifecycle == TaskLifecycle::Running {
            state.lifecycle = TaskLifecycle::NotRunning;
            state.breaker.record_lost();
            state.reason = Arc::new(DownReason::CONNECTION_LOST);
        }
        let reason = Arc::clone(&state.reason);
        state.plans.fail(|_| Some(NodeError::Down(Arc::clone(&reason))));
        state.calls.fail(|_| Some(NodeError::Down(Arc::clone(&reason))));
        drop(state);
        if let LinkPhase::Open(open) = &mut self.phase {
            open.fail_all(&NodeError::Failed(error));
        }
        self.shared.under_way.store(0, Ordering::Relaxed);
    }
}
