//! `RedisStore`: one script call for a whole plan. It does not know which server answers: that is the link's.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate::algorithm::Op;
use tidegate::{Adjustment, Key, MOST_CHECKS, Plan, Store, StoreError, StoreErrorKind, Timestamp, Verdict};

use crate::across::{By, Denials};
use crate::error::{Failed, silent};
use crate::heart::Heart;
use crate::link::Link;
use crate::node::Call;
use crate::options::RedisOptions;
use crate::patience::{self, Patience};
use crate::scripts::SCRIPTS;
use crate::slots::slot_of;
use crate::together::together;
use crate::{args, reply};

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
    pub(crate) options: RedisOptions,
    pub(crate) warnings: Arc<[String]>,
    pub(crate) heart: Heart,
}

/// Deciding many plans at once
impl RedisStore {
    /// Decides each plan on its own, all in one round trip (to each server of a cluster, where a plan across slots takes more).
    /// One that fails does not touch the others. All of them share one budget, the smallest.
    pub async fn decide_each(&self, plans: &[Plan<'_>]) -> Vec<Result<Verdict, StoreError>> {
        let budget = plans.iter().map(|plan| self.budget(plan)).min().unwrap_or_default();
        let decided = patience::within(budget, pin!(self.decide_each_within(plans, budget))).await;
        decided.unwrap_or_else(|| plans.iter().map(|_| Err(silent())).collect())
    }
}

impl RedisStore {
    async fn decide_each_within(&self, plans: &[Plan<'_>], budget: Duration) -> Vec<Result<Verdict, StoreError>> {
        let whole: Vec<bool> = plans.iter().map(|plan| !self.is_across(plan) && bounded(plan).is_ok()).collect();
        let calls: Vec<(u16, Call)> = plans
            .iter()
            .zip(&whole)
            .filter(|(_, whole)| **whole)
            .map(|(plan, _)| (slot_of_plan(plan), self.decide_call(plan, Patience::within(budget))))
            .collect();
        let mut replies = self.link.send_each(&calls).await.into_iter();
        let verdicts = plans.iter().zip(whole).map(|(plan, whole)| {
            let reply = if whole { replies.next() } else { None };
            async move {
                match reply {
                    Some(Ok(reply)) => decided(plan, &reply),
                    Some(Err(failed)) if !failed.torn => Err(failed.error),
                    _ => self.decide(plan).await,
                }
            }
        });
        together(verdicts.collect::<Vec<_>>()).await
    }

    /// Decides `plan`, all keys of which lie in one slot.
    pub(crate) async fn decide_whole(&self, plan: &Plan<'_>) -> Result<Verdict, Failed> {
        let reply = self.link.send(slot_of_plan(plan), &self.decide_call(plan, self.patience(plan))).await?;
        Ok(decided(plan, &reply)?)
    }

    /// Peeks at `plan`, all keys of which lie in one slot.
    pub(crate) async fn peek_whole(&self, plan: &Plan<'_>) -> Result<Verdict, Failed> {
        let mut call = Call::of("EVALSHA_RO", SCRIPTS.peek(), self.patience(plan));
        args::decide(&mut call.command, &self.options.prefix, plan, self.now());
        let reply = self.link.send(slot_of_plan(plan), &call).await?;
        Ok(reply::verdict(plan, false, &reply)?)
    }

    fn decide_call(&self, plan: &Plan<'_>, patience: Patience) -> Call {
        let (script, single) = SCRIPTS.decide(plan);
        let mut call = Call::of("EVALSHA", script, patience);
        let append = if single { args::decide_one } else { args::decide };
        append(&mut call.command, &self.options.prefix, plan, self.now());
        call
    }

    /// Adjustments by slot, one call for each; and for each key by itself, for when a slot is being moved.
    fn adjust_calls(&self, adjustments: &[Adjustment<'_>]) -> Vec<(u16, Call, Vec<Call>)> {
        let home =
            |adjustment: &Adjustment<'_>| if self.link.has_slots() { slot_of(adjustment.key.partition()) } else { 0 };
        let call = |adjustments: &[Adjustment<'_>]| {
            let mut call = Call::of("EVALSHA", SCRIPTS.adjust(), Patience::within(self.options.budget));
            args::adjust(&mut call.command, &self.options.prefix, adjustments, self.now());
            call
        };
        let groups = grouped(adjustments, |one, other| home(one) == home(other));
        let calls = groups.into_iter().map(|group| {
            let keys = grouped(&group, |one, other| one.key == other.key);
            let single = if keys.len() > 1 && self.link.has_slots() { keys } else { Vec::new() };
            (group.first().map_or(0, home), call(&group), single.iter().map(|group| call(group)).collect())
        });
        calls.collect()
    }

    /// Sends adjustments, within the budget.
    async fn send_adjustments(&self, calls: &[(u16, Call, Vec<Call>)]) -> Result<(), StoreError> {
        let sent = calls.iter().map(async |(slot, call, by_key)| match self.link.send(*slot, call).await {
            Err(failed) if failed.torn => all(together(by_key.iter().map(|call| self.link.send(*slot, call))).await),
            reply => Ok(reply.map(drop)?),
        });
        all(in_time(self.options.budget, pin!(async { Ok(together(sent).await) })).await?)
    }

    /// What deciding `plan` may take.
    fn budget(&self, plan: &Plan<'_>) -> Duration {
        plan.budget().map_or(self.options.budget, |budget| budget.min(self.options.budget))
    }

    fn patience(&self, plan: &Plan<'_>) -> Patience {
        Patience::within(self.budget(plan))
    }

    fn now(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock.now())
    }
}

impl Store for RedisStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        bounded(plan)?;
        let decided = async {
            if self.is_across(plan) {
                return Box::pin(self.decide_across(plan, By::Slot)).await;
            }
            match self.decide_whole(plan).await {
                Err(failed) if failed.torn && plan.checks().len() > 1 => {
                    Box::pin(self.decide_across(plan, By::Key)).await
                }
                decided => Ok(decided?),
            }
        };
        in_time(self.budget(plan), pin!(decided)).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        bounded(plan)?;
        let peeked = async {
            if self.is_across(plan) {
                return Box::pin(self.peek_across(plan, By::Slot)).await;
            }
            match self.peek_whole(plan).await {
                Err(failed) if failed.torn && plan.checks().len() > 1 => {
                    Box::pin(self.peek_across(plan, By::Key)).await
                }
                peeked => Ok(peeked?),
            }
        };
        in_time(self.budget(plan), pin!(peeked)).await
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        if adjustments.iter().any(|adjustment| matches!(adjustment.op, Op::Take(_))) {
            return Err(StoreError::new(StoreErrorKind::Unexpected, "a take is decided, not adjusted"));
        }
        self.send_adjustments(&self.adjust_calls(adjustments)).await
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        if let (Ok(runtime), false) = (tokio::runtime::Handle::try_current(), adjustments.is_empty()) {
            let (store, calls) = (self.clone(), self.adjust_calls(adjustments));
            runtime.spawn(async move { store.send_adjustments(&calls).await });
        }
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

/// What `future` gives, unless that takes longer than `budget`. Then nobody knows how far it came. It is pinned where it was
/// made: it is large, and would be copied into each of the futures around it.
async fn in_time<T>(
    budget: Duration,
    future: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
) -> Result<T, StoreError> {
    patience::within(budget, future).await.unwrap_or_else(|| Err(silent()))
}

/// The first failure, if any. If others were carried out, then so may have been the whole.
fn all<T, E: Into<StoreError>>(results: Vec<Result<T, E>>) -> Result<(), StoreError> {
    let (mut failure, mut succeeded) = (None, false);
    for result in results {
        match result {
            Ok(_) => succeeded = true,
            Err(error) => failure = failure.or(Some(error.into())),
        }
    }
    match failure {
        Some(error) if succeeded => Err(error.possibly_applied()),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// `items` in groups of those that belong together, in the order of their first.
fn grouped<T: Copy>(items: &[T], together: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        match groups.iter_mut().find(|group| together(&group[0], item)) {
            Some(group) => group.push(*item),
            None => groups.push(vec![*item]),
        }
    }
    groups
}

/// The slot of the first key, and so of all, if they lie in one. Any will do for a plan without keys.
fn slot_of_plan(plan: &Plan<'_>) -> u16 {
    plan.checks().first().map_or(0, |check| slot_of(check.key().partition()))
}

/// The reply tells what each check says in the bits of one number, which has no room for more.
fn bounded(plan: &Plan<'_>) -> Result<(), StoreError> {
    let checks = plan.checks().len();
    if checks <= MOST_CHECKS {
        return Ok(());
    }
    let message = format!("{checks} limits apply to one request; at most {MOST_CHECKS} may: let fewer rules match it");
    Err(StoreError::new(StoreErrorKind::Unexpected, message))
}

/// The verdict in the reply of the script for a single check, or for any plan.
fn decided(plan: &Plan<'_>, reply: &Value) -> Result<Verdict, StoreError> {
    let (_, single) = SCRIPTS.decide(plan);
    if single { reply::verdict_of_one(plan, reply) } else { reply::verdict(plan, true, reply) }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.options.prefix).finish_non_exhaustive()
    }
}
