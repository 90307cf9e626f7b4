//! `Unanswered`: the commands that were sent and not answered yet, in the order in which their replies arrive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::time::Instant;

use super::job::{PendingCall, PendingPlan};
use crate::batch::{Batch, BatchMode};
use crate::node_error::NodeError;
use crate::silence::CountedTime;

/// Commands that were sent and not answered yet.
#[derive(Default)]
pub(super) struct Unanswered {
    commands: VecDeque<SentCommand>,
    callers: usize,
}

/// One command, or several with one owner.
pub(super) struct SentCommand {
    pub(super) sent: CountedTime,
    /// The server counts as silent after this time without a byte.
    pub(super) budget: Duration,
    pub(super) owner: ReplyOwner,
}

/// Whom a reply belongs to.
pub(super) enum ReplyOwner {
    /// Nobody: it is the reply to `ASKING`.
    Nobody,
    /// A script that is loaded for the command after it.
    ScriptLoad,
    /// The trial of a new connection.
    Trial,
    Call(SentCall),
    Batch(Box<SentBatch>),
}

/// Commands of one caller.
pub(super) struct SentCall {
    pub(super) call: Arc<PendingCall>,
    pub(super) reply_until: Instant,
    pub(super) replies: Vec<Value>,
    pub(super) loads: ScriptLoads,
}

/// Plans that one script call decides.
pub(super) struct SentBatch {
    pub(super) batch: Batch,
    pub(super) plans: Vec<SentPlan>,
    pub(super) mode: BatchMode,
    pub(super) loads: ScriptLoads,
    /// The number of its round.
    pub(super) round: u64,
}

pub(super) struct SentPlan {
    pub(super) plan: Arc<PendingPlan>,
    pub(super) reply_until: Instant,
}

/// How often a script was loaded for one command, and why that failed.
#[derive(Default)]
pub(super) struct ScriptLoads {
    pub(super) count: u32,
    pub(super) error: Option<RedisError>,
}

impl Unanswered {
    pub(super) fn push(&mut self, command: SentCommand) {
        self.callers += command.owner.callers();
        self.commands.push_back(command);
    }

    /// Removes the oldest command.
    pub(super) fn pop(&mut self) -> Option<SentCommand> {
        let command = self.commands.pop_front()?;
        self.callers -= command.owner.callers();
        Some(command)
    }

    /// Puts back the oldest command, which expects more replies.
    pub(super) fn put_back(&mut self, command: SentCommand) {
        self.callers += command.owner.callers();
        self.commands.push_front(command);
    }

    pub(super) fn oldest_mut(&mut self) -> Option<&mut SentCommand> {
        self.commands.front_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SentCommand> {
        self.commands.iter()
    }

    /// The number of callers that wait, or have gone away.
    pub(super) const fn callers(&self) -> usize {
        self.callers
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The shortest budget of the commands.
    pub(super) fn min_budget(&self) -> Option<Duration> {
        self.commands.iter().map(|command| command.budget).min()
    }

    /// Ends the wait of callers whose deadline has passed, and returns the next deadline.
    pub(super) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut next = None;
        let mut visit = |until: Instant, expire: &dyn Fn()| {
            if until <= now {
                expire();
            } else {
                next = Some(next.map_or(until, |next: Instant| next.min(until)));
            }
        };
        for command in &self.commands {
            match &command.owner {
                ReplyOwner::Call(sent) => visit(sent.reply_until, &|| sent.call.result.expire_sent()),
                ReplyOwner::Batch(sent) => {
                    for plan in &sent.plans {
                        visit(plan.reply_until, &|| plan.plan.result.expire_sent());
                    }
                }
                ReplyOwner::Nobody | ReplyOwner::ScriptLoad | ReplyOwner::Trial => {}
            }
        }
        next
    }
}

impl ReplyOwner {
    /// The number of callers.
    pub(super) fn callers(&self) -> usize {
        match self {
            Self::Call(_) => 1,
            Self::Batch(sent) => sent.plans.len(),
            Self::Nobody | Self::ScriptLoad | Self::Trial => 0,
        }
    }

    /// Delivers `error` to all callers.
    pub(super) fn fail(self, error: &NodeError) {
        match self {
            Self::Call(sent) => sent.call.result.finish(Err(error.clone())),
            Self::Batch(sent) => {
                for plan in sent.plans {
                    plan.plan.result.finish(Err(error.clone()));
                }
            }
            Self::Nobody | Self::ScriptLoad | Self::Trial => {}
        }
    }
}
