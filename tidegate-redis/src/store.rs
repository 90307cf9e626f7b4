//! `RedisStore`: one script call for a whole plan. It does not know which server answers: that is the link's.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use tidegate::spi::algorithm::Op;
use tidegate::spi::{Adjustment, Key, MAX_CHECKS, Plan, Store, Verdict};
use tidegate::{StoreError, StoreErrorKind, Timestamp};

use crate::across::{By, Denials};
use crate::adjust::{all, grouped};
use crate::args;
use crate::error::{Failed, silent};
use crate::flood::{Flood, Strangers, Treated, has_overflow, without_overflow};
use crate::heart::Heart;
use crate::link::Link;
use crate::node::Call;
use crate::options::RedisOptions;
use crate::patience::{self, Deadline, Patience};
use crate::reply::Reply;
use crate::scripts::{SCRIPTS, is_single};
use crate::slots::slot_of;
use crate::together::together;

/// A store on Redis or Valkey servers, shared by every instance that connects to them.
///
/// Time is the server's. A decision is one `EVALSHA`; a server that has forgotten the script, after a restart or a flush,
/// gets it again on the way. A decision that may have been carried out is never sent twice.
///
/// A plan is decided in one atomic step on a single server, behind sentinels, and in a cluster if its keys lie in one slot:
/// those of one rule and subject do, and those of one tenant for rules that count by tenant. In a cluster, a plan across slots
/// is decided slot by slot, each in one step, the one that denied last first. If one denies, what the others took is given
/// back. More than the limits say never passes. Fewer may, for a moment: while a request that a later slot denies is being
/// decided, another can be denied for what it holds in the slots before. If giving back fails, too, that is until the limit
/// has refilled.
///
/// No decision takes longer than its [budget](RedisOptions::budget). A server that does not answer is soon known to be silent,
/// and then every decision fails at once, until it has answered again.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) link: Link,
    pub(crate) denials: Arc<Denials>,
    pub(crate) flood: Arc<Flood>,
    pub(crate) options: RedisOptions,
    pub(crate) warnings: Arc<[String]>,
    pub(crate) heart: Heart,
}

/// What each of several plans was answered so far.
struct Answers(Mutex<Vec<Option<Result<Verdict, StoreError>>>>);

/// Looking at strangers
impl RedisStore {
    /// What this instance knows of subjects that nobody vouches for, rule by rule, for those rules that have had any.
    pub fn strangers(&self) -> Vec<Strangers> {
        self.flood.strangers()
    }
}

/// Deciding many plans at once
impl RedisStore {
    /// Decides each plan on its own, all in one round trip (to each server of a cluster, where a plan across slots takes more).
    /// One that fails does not touch the others. All of them share one budget, the smallest.
    pub async fn decide_each(&self, plans: &[Plan<'_>]) -> Vec<Result<Verdict, StoreError>> {
        let budget = plans.iter().map(|plan| self.budget(plan)).min().unwrap_or_default();
        let answers = Answers(Mutex::new(plans.iter().map(|_| None).collect()));
        // When the time is up, those who were answered have their answers.
        let _ = patience::within(budget, pin!(self.decide_each_within(plans, budget, &answers))).await;
        answers.all()
    }
}

impl RedisStore {
    async fn decide_each_within(&self, plans: &[Plan<'_>], budget: Duration, answers: &Answers) {
        let treatments: Vec<_> = plans.iter().map(|plan| self.flood.treatment(plan, self.instances())).collect();
        let is_whole = |plan: &Plan<'_>| !self.is_across(plan) && bounded(plan).is_ok();
        let whole: Vec<usize> = (0..plans.len()).filter(|place| is_whole(&plans[*place])).collect();
        let call = |place: &usize| {
            let plan = &plans[*place];
            (slot_of_plan(plan), self.decide_call(plan, &treatments[*place], Patience::within(budget)))
        };
        let calls: Vec<(u16, Call)> = whole.iter().map(call).collect();
        let told = |index: usize, reply: Result<Value, Failed>| {
            let place = whole[index];
            match reply {
                Ok(reply) => answers.put(place, self.decided(&plans[place], &treatments[place], &reply)),
                Err(failed) if !failed.torn => answers.put(place, Err(failed.error)),
                Err(_) => {}
            }
        };
        self.link.send_each(&calls, &told).await;
        // What was torn, and what lies in several slots.
        let rest = answers.missing().into_iter();
        together(rest.map(async |place| answers.put(place, self.decide(&plans[place]).await))).await;
    }

    /// Decides `plan`, all keys of which lie in one slot.
    pub(crate) async fn decide_whole(&self, plan: &Plan<'_>, patience: Patience) -> Result<Verdict, Failed> {
        let treatment = self.flood.treatment(plan, self.instances());
        match self.decide_treated(plan, &treatment, patience).await {
            // Its slot is being moved, and a stranger has no key on either side. It gets one, rather than an error.
            Err(failed) if failed.torn && has_overflow(&treatment) => {
                self.decide_treated(plan, &without_overflow(&treatment), patience).await
            }
            decided => decided,
        }
    }

    async fn decide_treated(
        &self,
        plan: &Plan<'_>,
        treatment: &[Treated<'_>],
        patience: Patience,
    ) -> Result<Verdict, Failed> {
        let call = self.decide_call(plan, treatment, patience);
        let reply = self.link.send(slot_of_plan(plan), &call).await?;
        Ok(self.decided(plan, treatment, &reply)?)
    }

    /// Peeks at `plan`, all keys of which lie in one slot.
    pub(crate) async fn peek_whole(&self, plan: &Plan<'_>, patience: Patience) -> Result<Verdict, Failed> {
        let treatment = self.flood.treatment(plan, self.instances());
        match self.peek_treated(plan, &treatment, patience).await {
            Err(failed) if failed.torn && has_overflow(&treatment) => {
                self.peek_treated(plan, &without_overflow(&treatment), patience).await
            }
            peeked => peeked,
        }
    }

    async fn peek_treated(
        &self,
        plan: &Plan<'_>,
        treatment: &[Treated<'_>],
        patience: Patience,
    ) -> Result<Verdict, Failed> {
        let strangers = !treatment.is_empty();
        let mut call = Call::of("EVALSHA_RO", SCRIPTS.peek(strangers), patience);
        args::decide(&mut call.command, &self.options.prefix, plan, treatment, self.now());
        let reply = self.link.send(slot_of_plan(plan), &call).await?;
        Ok(Reply::to_any(plan, strangers, &reply)?.verdict(plan, false))
    }

    fn decide_call(&self, plan: &Plan<'_>, treatment: &[Treated<'_>], patience: Patience) -> Call {
        let mut call = Call::of("EVALSHA", SCRIPTS.decide(plan, !treatment.is_empty()), patience);
        let append = if is_single(plan) { args::decide_one } else { args::decide };
        append(&mut call.command, &self.options.prefix, plan, treatment, self.now());
        call
    }

    /// The verdict in the reply of the script for a single check, or for any plan.
    fn decided(&self, plan: &Plan<'_>, treatment: &[Treated<'_>], reply: &Value) -> Result<Verdict, StoreError> {
        let read = if is_single(plan) { Reply::to_one } else { Reply::to_any };
        let reply = read(plan, !treatment.is_empty(), reply)?;
        let verdict = reply.verdict(plan, true);
        self.flood.decided(plan, &reply, &verdict.judged);
        Ok(verdict)
    }

    /// What deciding `plan` may take.
    fn budget(&self, plan: &Plan<'_>) -> Duration {
        plan.budget().map_or(self.options.budget, |budget| budget.min(self.options.budget))
    }

    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock.now())
    }
}

impl Store for RedisStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        bounded(plan)?;
        let budget = self.budget(plan);
        let deadline = Deadline::after(budget);
        let decided = async {
            if self.is_across(plan) {
                return Box::pin(self.decide_across(plan, By::Slot, deadline)).await;
            }
            match self.decide_whole(plan, Patience::within(budget)).await {
                Err(failed) if failed.torn && plan.checks().len() > 1 => {
                    Box::pin(self.decide_across(plan, By::Key, deadline)).await
                }
                decided => Ok(decided?),
            }
        };
        in_time(budget, pin!(decided)).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        bounded(plan)?;
        let budget = self.budget(plan);
        let deadline = Deadline::after(budget);
        let peeked = async {
            if self.is_across(plan) {
                return Box::pin(self.peek_across(plan, By::Slot, deadline)).await;
            }
            match self.peek_whole(plan, Patience::within(budget)).await {
                Err(failed) if failed.torn && plan.checks().len() > 1 => {
                    Box::pin(self.peek_across(plan, By::Key, deadline)).await
                }
                peeked => Ok(peeked?),
            }
        };
        in_time(budget, pin!(peeked)).await
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        if adjustments.iter().any(|adjustment| matches!(adjustment.op, Op::Take(_))) {
            return Err(StoreError::new(StoreErrorKind::Unexpected, "a take is decided, not adjusted"));
        }
        self.send_adjustments(&self.adjusting(adjustments)).await
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        drop(self.adjust_beside(adjustments));
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        // In a cluster one by one: keys of one slot may be on two servers while it is moved.
        let groups = grouped(keys, |_, _| !self.link.has_slots());
        let sent = groups.iter().map(async |keys| {
            let mut command = redis::cmd("DEL");
            for key in keys {
                command.arg(args::name(&self.options.prefix, key));
            }
            let slot = keys.first().map_or(0, |key| slot_of(key.partition()));
            self.link.send(slot, &Call { command, script: None, patience: Patience::within(self.options.budget) }).await
        });
        all(in_time(self.options.budget, pin!(async { Ok(together(sent).await) })).await?)
    }

    fn instances(&self) -> Option<u32> {
        self.instances()
    }
}

// === impl Answers ===

impl Answers {
    fn put(&self, place: usize, answer: Result<Verdict, StoreError>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(answer);
    }

    fn missing(&self) -> Vec<usize> {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (0..answers.len()).filter(|place| answers[*place].is_none()).collect()
    }

    /// All of them, where those who are missing got none in time.
    fn all(self) -> Vec<Result<Verdict, StoreError>> {
        let answers = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(silent()))).collect()
    }
}

/// What `future` gives, unless that takes longer than `budget`. Then nobody knows how far it came. It is pinned where it was
/// made: it is large, and would be copied into each of the futures around it.
pub(crate) async fn in_time<T>(
    budget: Duration,
    future: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
) -> Result<T, StoreError> {
    patience::within(budget, future).await.unwrap_or_else(|| Err(silent()))
}

/// The slot of the first key, and so of all, if they lie in one. Any will do for a plan without keys.
fn slot_of_plan(plan: &Plan<'_>) -> u16 {
    plan.checks().first().map_or(0, |check| slot_of(check.key().partition()))
}

/// The reply tells what each check says in the bits of one number, which has no room for more.
fn bounded(plan: &Plan<'_>) -> Result<(), StoreError> {
    let checks = plan.checks().len();
    if checks <= MAX_CHECKS {
        return Ok(());
    }
    let message = format!("{checks} limits apply to one request; at most {MAX_CHECKS} may: let fewer rules match it");
    Err(StoreError::new(StoreErrorKind::Unexpected, message))
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.options.prefix).finish_non_exhaustive()
    }
}
