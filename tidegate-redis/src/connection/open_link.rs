//! `OpenLink`: a connection in use. It sends jobs, assigns replies to them, and judges silence. Times are passed in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tidegate::Timestamp;
use tokio::time::Instant;

use super::job::{PendingCall, PendingPlan};
use super::pacing::Pacing;
use super::unanswered::{ReplyOwner, ScriptLoads, SentBatch, SentCall, SentCommand, SentPlan, Unanswered};
use crate::batch::{Batch, BatchMode};
use crate::long_hold_lists::LongHoldLists;
use crate::node_error::NodeError;
use crate::scripts::Script;
use crate::server_link::ServerLink;
use crate::silence::Silence;

/// How often one command loads its script: scripts may be flushed again between loading and calling.
const MAX_SCRIPT_LOADS: u32 = 3;

/// The most calls under way, beside plans. More would only wait at the server.
const MAX_CALLS_UNDER_WAY: usize = 64;

/// A connection in use.
pub(super) struct OpenLink {
    pub(super) link: ServerLink,
    pub(super) unanswered: Unanswered,
    pub(super) silence: Silence,
    /// Whether the trial was answered: jobs may be sent.
    pub(super) is_tried: bool,
    /// Whether a job was answered.
    pub(super) has_answered: bool,
    /// When the trial was sent.
    pub(super) opened_at: Instant,
    pub(super) last_byte_at: Instant,
    calls: usize,
    rounds: VecDeque<Round>,
    next_round: u64,
    last_round_end: Instant,
    /// Whether a round has ended in this turn of the task.
    has_ended_round: bool,
}

/// Plans that are sent together. In a cluster they are several batches, one for each slot.
struct Round {
    number: u64,
    /// Batches without a reply.
    open: usize,
    sent_at: Instant,
    /// How many rounds were under way when it was sent.
    ahead: usize,
}

/// The server sent a reply that nobody waits for.
pub(super) struct UnexpectedReply;

/// What a job is sent with.
#[derive(Clone, Copy)]
pub(super) struct SendContext {
    pub(super) now: Instant,
    /// The time that a test injects.
    pub(super) injected_now: Option<Timestamp>,
    /// The budget of decisions.
    pub(super) budget: Duration,
}

/// Sending
impl OpenLink {
    /// A new connection. Its trial is sent at once: the script that decides plans, without a plan.
    pub(super) fn new(link: ServerLink, context: SendContext) -> Self {
        let mut open = Self {
            link,
            unanswered: Unanswered::default(),
            silence: Silence::default(),
            is_tried: false,
            has_answered: false,
            opened_at: context.now,
            last_byte_at: context.now,
            calls: 0,
            rounds: VecDeque::new(),
            next_round: 0,
            last_round_end: context.now,
            has_ended_round: false,
        };
        let (trial, _) = Batch::new([]).command(context.injected_now, BatchMode::Decide);
        open.send(&trial, context.budget, ReplyOwner::Trial);
        open
    }

    /// Whether another call may be sent.
    pub(super) const fn has_room_for_call(&self) -> bool {
        self.calls < MAX_CALLS_UNDER_WAY
    }

    /// The number of rounds under way.
    pub(super) fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Whether waiting plans are sent at once: nothing is under way that they could wait for, or a round has just ended.
    pub(super) fn has_no_round_or_ended_one(&self) -> bool {
        self.rounds.is_empty() || self.has_ended_round
    }

    /// Forgets that a round has ended.
    pub(super) const fn end_turn(&mut self) {
        self.has_ended_round = false;
    }

    /// Sends `call`, and returns until when its caller waits.
    pub(super) fn send_call(&mut self, call: Arc<PendingCall>, now: Instant) -> Instant {
        self.calls += 1;
        let reply_until = call.waits.reply_until(now);
        self.write_call(SentCall { call, reply_until, replies: Vec::new(), loads: ScriptLoads::default() });
        reply_until
    }

    /// Sends `plans` as one round: those of `groups` that belong together as one batch. Returns the first deadline.
    pub(super) fn send_round(&mut self, groups: Vec<Vec<Arc<PendingPlan>>>, context: SendContext) -> Option<Instant> {
        let (number, ahead) = (self.next_round, self.rounds.len());
        self.next_round += 1;
        self.rounds.push_back(Round { number, open: groups.len(), sent_at: context.now, ahead });
        let mut first_deadline = None;
        for group in groups {
            let plans = group.into_iter().map(|plan| {
                let reply_until = plan.waits.reply_until(context.now);
                first_deadline = Some(first_deadline.map_or(reply_until, |first: Instant| first.min(reply_until)));
                SentPlan { plan, reply_until }
            });
            self.write_batch(SentBatch::new(plans.collect(), BatchMode::Decide, number), context);
        }
        first_deadline
    }

    fn write_call(&mut self, sent: SentCall) {
        if sent.call.asking {
            self.write_asking(sent.call.waits.budget);
        }
        self.link.unwritten().extend_from_slice(&sent.call.commands);
        self.push(sent.call.waits.budget, ReplyOwner::Call(sent));
    }

    fn write_batch(&mut self, sent: Box<SentBatch>, context: SendContext) {
        let budget = sent.plans.iter().map(|plan| plan.plan.waits.budget).min().unwrap_or(context.budget);
        if sent.plans.iter().any(|plan| plan.plan.asking) {
            self.write_asking(budget);
        }
        let (command, _) = sent.batch.command(context.injected_now, sent.mode);
        self.send(&command, budget, ReplyOwner::Batch(sent));
    }

    fn write_asking(&mut self, budget: Duration) {
        self.send(&redis::cmd("ASKING"), budget, ReplyOwner::Nobody);
    }

    fn write_load(&mut self, script: &Script, budget: Duration) {
        self.send(&script.load_command(), budget, ReplyOwner::ScriptLoad);
    }

    fn send(&mut self, command: &Cmd, budget: Duration, owner: ReplyOwner) {
        command.write_packed_command(self.link.unwritten());
        self.push(budget, owner);
    }

    fn push(&mut self, budget: Duration, owner: ReplyOwner) {
        self.unanswered.push(SentCommand { sent: self.silence.mark(), budget, owner });
    }
}

/// Receiving
impl OpenLink {
    /// Assigns `reply` to the oldest command.
    pub(super) fn receive(
        &mut self,
        reply: Value,
        pacing: &mut Pacing,
        long_lists: &mut LongHoldLists,
        context: SendContext,
    ) -> Result<(), UnexpectedReply> {
        let SentCommand { sent, budget, owner } = self.unanswered.pop().ok_or(UnexpectedReply)?;
        self.silence.record_reply();
        match owner {
            ReplyOwner::Nobody => {}
            ReplyOwner::Trial => self.is_tried = true,
            ReplyOwner::ScriptLoad => {
                if let (Err(error), Some(next)) = (reply.extract_error(), self.unanswered.oldest_mut()) {
                    match &mut next.owner {
                        ReplyOwner::Call(sent) => sent.loads.error = Some(error),
                        ReplyOwner::Batch(sent) => sent.loads.error = Some(error),
                        ReplyOwner::Nobody | ReplyOwner::ScriptLoad | ReplyOwner::Trial => {}
                    }
                }
            }
            ReplyOwner::Call(mut call) => {
                call.replies.push(reply);
                if call.replies.len() < call.call.replies {
                    self.unanswered.put_back(SentCommand { sent, budget, owner: ReplyOwner::Call(call) });
                } else {
                    self.has_answered = true;
                    self.finish_call(call, budget, context.now);
                }
            }
            ReplyOwner::Batch(batch) => {
                self.has_answered = true;
                match reply.extract_error() {
                    Ok(reply) => {
                        let results = batch.batch.parse(&reply);
                        self.end_batch(batch.round, pacing, context.now);
                        for (plan, result) in batch.plans.into_iter().zip(results) {
                            if let Ok(reply) = &result {
                                long_lists.record(&plan.plan.packed, reply, context.now);
                            }
                            plan.plan.result.finish(result.map_err(NodeError::Rejected));
                        }
                    }
                    Err(error) => self.retry_batch(batch, error, budget, pacing, context),
                }
            }
        }
        Ok(())
    }

    /// Delivers the replies of a call. A call whose only command answered `NOSCRIPT` ran nothing, and is sent again.
    fn finish_call(&mut self, mut call: SentCall, budget: Duration, now: Instant) {
        if let (Some(script), [reply]) = (call.call.script, &call.replies[..])
            && is_error(reply, "NOSCRIPT")
            && call.loads.count < MAX_SCRIPT_LOADS
            && call.loads.error.is_none()
        {
            self.write_load(script, budget);
            call.loads.count += 1;
            call.replies.clear();
            call.reply_until = call.call.waits.reply_until(now);
            return self.write_call(call);
        }
        self.calls -= 1;
        let result = match call.loads.error {
            // The script is still missing because it could not be loaded.
            Some(error) if call.replies.iter().any(|reply| is_error(reply, "NOSCRIPT")) => {
                Err(NodeError::Failed(error))
            }
            _ => Ok(call.replies),
        };
        call.call.result.finish(result);
    }

    /// Sends the plans of a batch that ran nothing again, if that may succeed, and fails them otherwise.
    fn retry_batch(
        &mut self,
        mut sent: Box<SentBatch>,
        error: RedisError,
        budget: Duration,
        pacing: &mut Pacing,
        context: SendContext,
    ) {
        let error = match sent.loads.error.take() {
            // The script is still missing because it could not be loaded.
            Some(load_error) if error.code() == Some("NOSCRIPT") => load_error,
            _ => error,
        };
        // The server has answered, so the callers wait anew: this process may have been late to read it.
        for plan in &mut sent.plans {
            plan.reply_until = plan.plan.waits.reply_until(context.now);
        }
        match error.code() {
            Some("NOSCRIPT") if sent.loads.count < MAX_SCRIPT_LOADS => {
                let (_, script) = sent.batch.command(context.injected_now, sent.mode);
                self.write_load(script, budget);
                sent.loads.count += 1;
                self.write_batch(sent, context);
            }
            Some("OOM") if sent.mode == BatchMode::Decide => {
                sent.mode = BatchMode::OutOfMemory;
                sent.loads = ScriptLoads::default();
                self.write_batch(sent, context);
            }
            // A slot is being migrated, and the keys are on two servers: the plans with one key each may succeed.
            Some("TRYAGAIN") if sent.plans.len() > 1 => {
                if let Some(round) = self.rounds.iter_mut().find(|round| round.number == sent.round) {
                    round.open += sent.plans.len() - 1;
                }
                for plan in sent.plans {
                    self.write_batch(SentBatch::new(vec![plan], sent.mode, sent.round), context);
                }
            }
            _ => {
                self.end_batch(sent.round, pacing, context.now);
                ReplyOwner::Batch(sent).fail(&NodeError::Failed(error));
            }
        }
    }

    /// Records that a batch of the round is answered.
    fn end_batch(&mut self, number: u64, pacing: &mut Pacing, now: Instant) {
        let Some(index) = self.rounds.iter().position(|round| round.number == number) else { return };
        let round = &mut self.rounds[index];
        round.open = round.open.saturating_sub(1);
        if round.open == 0 {
            let gap = now.saturating_duration_since(self.last_round_end.max(round.sent_at));
            pacing.record(now.saturating_duration_since(round.sent_at), round.ahead, gap);
            self.last_round_end = now;
            self.has_ended_round = true;
            self.rounds.remove(index);
        }
    }

    /// Whether the server is silent.
    pub(super) fn is_silent(&self) -> bool {
        let is_overdue = |oldest: &SentCommand| self.silence.is_overdue(oldest.sent, oldest.budget);
        self.unanswered.iter().next().is_some_and(is_overdue)
            || self.unanswered.iter().any(|command| self.silence.is_silent(command.sent, command.budget))
    }

    /// Fails everything that is unanswered.
    pub(super) fn fail_all(&mut self, error: &NodeError) {
        while let Some(command) = self.unanswered.pop() {
            command.owner.fail(error);
        }
    }
}

impl SentBatch {
    fn new(plans: Vec<SentPlan>, mode: BatchMode, round: u64) -> Box<Self> {
        let batch = Batch::new(plans.iter().map(|plan| &*plan.plan.packed));
        Box::new(Self { batch, plans, mode, loads: ScriptLoads::default(), round })
    }
}

/// Whether `reply` is an error with this code.
fn is_error(reply: &Value, code: &str) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == code)
}
