//! `RedisStore`: one script call for a whole plan. It does not know which server answers: that is the link's.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate::algorithm::Op;
use tidegate::{
    Adjustment, Check, Clock, Gate, Key, Limit, MOST_CHECKS, Plan, Store, StoreError, StoreErrorKind, Subject,
    SystemClock, Timestamp, Verdict,
};

use crate::across::{By, Denials};
use crate::error::{Failed, store_error, unapplied};
use crate::link::Link;
use crate::node::Call;
use crate::scripts::SCRIPTS;
use crate::slots::slot_of;
use crate::target::Target;
use crate::together::together;
use crate::{args, health, reply};

/// The prefix of every key unless told otherwise.
pub const DEFAULT_PREFIX: &str = "tg";

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
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) link: Link,
    pub(crate) denials: Arc<Denials>,
    pub(crate) options: RedisOptions,
    warnings: Arc<[String]>,
}

/// How to use the server.
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) prefix: Arc<str>,
    pub(crate) response_timeout: Duration,
    pub(crate) connection_timeout: Duration,
    clock: Option<Arc<dyn Clock>>,
}

/// Options
impl RedisOptions {
    /// The prefix [`DEFAULT_PREFIX`], half a second for an answer, one for a connection.
    pub fn new() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.into(),
            response_timeout: Duration::from_millis(500),
            connection_timeout: Duration::from_secs(1),
            clock: None,
        }
    }

    /// Puts `prefix` before every key: without braces, which would decide the slot, and short, since every key has it.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long to wait for an answer.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// How long to wait for a connection.
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// Decides by `clock` instead of the server's time: for tests. Keys then live an hour longer, so that the real time
    /// does not take them away.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.prefix.len() > 32 || self.prefix.contains(|c: char| c == '{' || c == '}' || !c.is_ascii_graphic()) {
            let message = "the prefix must be at most 32 visible ASCII characters without braces";
            return Err(StoreError::new(StoreErrorKind::Unexpected, message));
        }
        Ok(())
    }
}

/// Connecting
impl RedisStore {
    /// Connects to `url` with the default options.
    ///
    /// ```text
    /// redis://[user:password@]host[:port][/database]                        one server
    /// redis+sentinel://[user:password@]host:port,host:port/NAME[/database]  the primary that the sentinels name
    /// redis+cluster://[user:password@]host:port,host:port                   a cluster
    /// ```
    ///
    /// Each also as `rediss…`, over TLS: certificates are checked, against those that the system trusts or those in the file
    /// `?ca=/path`. Sentinels that want a password of their own get it by `?sentinel_user=…&sentinel_password=…`.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, RedisOptions::new()).await
    }

    /// Connects, looks at the servers, loads the scripts, and tries whether they may run.
    pub async fn connect_with(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        options.check()?;
        let link = Link::new(Target::parse(url)?, &options)?;
        let denials = Arc::new(Denials::new(link.has_slots()));
        let mut store = Self { link, denials, options, warnings: Arc::default() };
        // Nobody's request has been counted yet.
        store.warnings = store.examine().await.map_err(|error| unapplied(&error))?.into();
        store.try_permissions().await.map_err(|error| unapplied(&error))?;
        Ok(store)
    }

    /// What was found at the start that an operator should change, in plain words.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Looks at every server that decides, and loads the scripts.
    async fn examine(&self) -> Result<Vec<String>, StoreError> {
        // Under an injected time there is nothing to compare the server's with.
        let host = self.options.clock.is_none().then(SystemClock::new);
        let mut warnings = Vec::new();
        for (address, node) in self.link.primaries().await? {
            let found = health::Found::ask(&node, self.link.has_slots(), host.as_ref()).await?;
            for script in SCRIPTS.all() {
                node.load(script).await.map_err(|error| store_error(&error))?;
            }
            let told = found.warnings().into_iter();
            warnings
                .extend(told.map(|told| address.as_ref().map_or(told.clone(), |address| format!("{address}: {told}"))));
        }
        Ok(warnings)
    }

    /// Tries everything that a user needs to be allowed, under a key of its own, once on every server. What else may fail at
    /// the moment is not told here: it is by the first decision.
    async fn try_permissions(&self) -> Result<(), StoreError> {
        let limit = Limit::fixed_window(1, Duration::from_secs(1));
        let limit =
            limit.map_err(|_| StoreError::new(StoreErrorKind::Unexpected, "no limit to try permissions with"))?;
        let gate = Gate::of_rule("start probe", limit);
        for partition in self.link.partitions().await {
            let check = Check::of(&gate, Subject::from_hash(u128::from(partition) << 96), 1);
            let Ok(plan) = Plan::new([check]) else { continue };
            let charge = [Adjustment::charge(&check)];
            let tried = [
                self.decide(&plan).await.map(drop),
                self.peek(&plan).await.map(drop),
                self.adjust(&charge).await,
                self.forget(&[*check.key()]).await,
            ];
            let denied = tried.into_iter().filter_map(Result::err).find(|error| error.kind() == StoreErrorKind::Denied);
            denied.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

/// Deciding many plans at once
impl RedisStore {
    /// Decides each plan on its own, all in one round trip (to each server of a cluster, where a plan across slots takes more).
    /// One that fails does not touch the others.
    pub async fn decide_each(&self, plans: &[Plan<'_>]) -> Vec<Result<Verdict, StoreError>> {
        let whole: Vec<bool> = plans.iter().map(|plan| !self.is_across(plan) && bounded(plan).is_ok()).collect();
        let calls: Vec<(u16, Call)> = plans
            .iter()
            .zip(&whole)
            .filter(|(_, whole)| **whole)
            .map(|(plan, _)| (slot_of_plan(plan), self.decide_call(plan)))
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
}

impl RedisStore {
    /// Decides `plan`, all keys of which lie in one slot.
    pub(crate) async fn decide_whole(&self, plan: &Plan<'_>) -> Result<Verdict, Failed> {
        let reply = self.link.send(slot_of_plan(plan), &self.decide_call(plan)).await?;
        Ok(decided(plan, &reply)?)
    }

    /// Peeks at `plan`, all keys of which lie in one slot.
    pub(crate) async fn peek_whole(&self, plan: &Plan<'_>) -> Result<Verdict, Failed> {
        let mut call = Call::of("EVALSHA_RO", SCRIPTS.peek());
        args::decide(&mut call.command, &self.options.prefix, plan, self.now());
        let reply = self.link.send(slot_of_plan(plan), &call).await?;
        Ok(reply::verdict(plan, false, &reply)?)
    }

    fn decide_call(&self, plan: &Plan<'_>) -> Call {
        let (script, single) = SCRIPTS.decide(plan);
        let mut call = Call::of("EVALSHA", script);
        let append = if single { args::decide_one } else { args::decide };
        append(&mut call.command, &self.options.prefix, plan, self.now());
        call
    }

    /// Adjustments by slot, one call for each; and for each key by itself, for when a slot is being moved.
    fn adjust_calls(&self, adjustments: &[Adjustment<'_>]) -> Vec<(u16, Call, Vec<Call>)> {
        let home =
            |adjustment: &Adjustment<'_>| if self.link.has_slots() { slot_of(adjustment.key.partition()) } else { 0 };
        let call = |adjustments: &[Adjustment<'_>]| {
            let mut call = Call::of("EVALSHA", SCRIPTS.adjust());
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

    async fn send_adjustments(&self, calls: &[(u16, Call, Vec<Call>)]) -> Result<(), StoreError> {
        let sent = calls.iter().map(async |(slot, call, by_key)| match self.link.send(*slot, call).await {
            Err(failed) if failed.torn => all(together(by_key.iter().map(|call| self.link.send(*slot, call))).await),
            reply => Ok(reply.map(drop)?),
        });
        all(together(sent).await)
    }

    fn now(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock.now())
    }
}

impl Store for RedisStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        bounded(plan)?;
        if self.is_across(plan) {
            return self.decide_across(plan, By::Slot).await;
        }
        match self.decide_whole(plan).await {
            Err(failed) if failed.torn && plan.checks().len() > 1 => self.decide_across(plan, By::Key).await,
            decided => Ok(decided?),
        }
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        bounded(plan)?;
        if self.is_across(plan) {
            return self.peek_across(plan, By::Slot).await;
        }
        match self.peek_whole(plan).await {
            Err(failed) if failed.torn && plan.checks().len() > 1 => self.peek_across(plan, By::Key).await,
            peeked => Ok(peeked?),
        }
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
            self.link.send(slot, &Call { command, script: None }).await
        });
        all(together(sent).await)
    }
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

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.options.prefix).finish_non_exhaustive()
    }
}
