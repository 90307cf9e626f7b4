//! `UsageReport`: how a service tells the tokens that a language model used, which are the cost of the request.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate::grants::{Costs, GrantKind};
use tidegate::rules::UsageKind;
use tidegate::spi::{Plan, Store};
use tidegate::sync::Mutex;
use tidegate::{Grant, Limiter, RuleMode, Timer};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};

use crate::settlement::{ReservedCosts, Settlement, SettlementFuture};

/// The tokens of a request to a language model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Those of the prompt.
    pub input: u64,
    /// Those of the answer.
    pub output: u64,
}

/// The cost of the request is reserved, and its actual cost is the number of tokens that a language model used: an extension of the
/// request, if a rule with [`usage`](tidegate::Rule::with_usage) applies to it.
///
/// The service that learns the tokens takes the report from the request and [commits](Self::commit) them, once. If all clones are dropped
/// before, the cost stays as it was reserved. Clones share the report.
///
/// A reservation does not last for ever. When four fifths of its duration have passed, the [progress](Self::set_progress) is committed, or
/// what was reserved if there is none. From then on, each time that these four fifths pass, and at the end, the cost is charged as far as it
/// is more than before. If it is less, nothing is given back: part of it may have refilled already.
///
/// With several layers around a service, the report is that of all of them.
#[derive(Clone)]
pub struct UsageReport {
    pending: Arc<PendingUsage>,
    /// That of a layer further out, which is told the same.
    outer: Option<Arc<UsageReport>>,
}

/// Completes when the actual cost is counted, or could not be. Dropping it does not stop the commit.
#[derive(Debug)]
pub struct UsageCommit {
    task: Option<JoinHandle<()>>,
    outer: Option<Box<UsageCommit>>,
}

struct PendingUsage {
    is_enforced: bool,
    state: Mutex<UsageState>,
}

struct UsageState {
    /// None after the end.
    settlement: Option<Arc<dyn Settlement>>,
    /// The same for rules whose cost is not in tokens, which the head of the response settles. None after that.
    others: Option<Arc<dyn Settlement>>,
    rules: Vec<RuleCost>,
    progress: Option<TokenUsage>,
    /// The tokens that the end commits, if the service has stated them before.
    at_end: Option<TokenUsage>,
    expiry: Option<AbortHandle>,
    /// Whether the task that waits for the expiry commits or charges at the moment.
    is_committing: bool,
}

/// The cost of the request under one rule.
struct RuleCost {
    rule: String,
    /// Which tokens it counts, if any.
    usage: Option<UsageKind>,
    /// What the response states about it besides the tokens.
    stated: Option<u64>,
}

impl UsageReport {
    /// The report of a request that `limiter` has admitted. By `timer`, it commits the progress before the reservation runs out.
    pub(crate) fn new<S: Store + 'static>(
        limiter: &Arc<Limiter<S>>,
        plan: &Plan<'_>,
        mut grant: Grant,
        timer: &Arc<dyn Timer>,
    ) -> Self {
        let rules = limiter.rules();
        let is_enforced =
            |name: &str| rules.rule(name).is_some_and(|rule| rule.usage.is_some() && rule.mode != RuleMode::Shadow);
        let rule_cost = |name: &str| RuleCost { rule: name.to_owned(), usage: rules.usage(name), stated: None };
        let holds = grant.split_off(|part| part.kind() == GrantKind::Held);
        let duration = holds.duration();
        let settlement: Arc<dyn Settlement> = Arc::new(ReservedCosts::new(limiter, holds, grant));
        let state = UsageState {
            settlement: Some(Arc::clone(&settlement)),
            others: Some(settlement),
            rules: plan.rule_ids().map(rule_cost).collect(),
            progress: None,
            at_end: None,
            expiry: None,
            is_committing: false,
        };
        let pending =
            Arc::new(PendingUsage { is_enforced: plan.rule_ids().any(is_enforced), state: Mutex::new(state) });
        if let (Some(duration), Ok(runtime)) = (duration, Handle::try_current()) {
            let task = commit_before_expiry(Arc::downgrade(&pending), Arc::clone(timer), duration);
            pending.state.lock().expiry = Some(runtime.spawn(task).abort_handle());
        }
        Self { pending, outer: None }
    }

    /// Commits the tokens as the cost of the request, under each rule those that it counts; `None` keeps what was reserved. Does nothing
    /// if that has happened before.
    ///
    /// What the head of the response states about costs under other rules counts only if it was returned before. A service that knows the
    /// tokens earlier has [`commit_at_end`](Self::commit_at_end).
    pub fn commit(&self, tokens: Option<TokenUsage>) -> UsageCommit {
        let outer = self.outer.as_ref().map(|outer| Box::new(outer.commit(tokens)));
        UsageCommit { task: self.pending.commit(tokens), outer }
    }

    /// [Commits](Self::commit) without waiting for it, for a response that is being dropped.
    pub fn spawn_commit(&self, tokens: Option<TokenUsage>) {
        self.layers().for_each(|report| report.pending.spawn_commit(tokens));
    }

    /// States the tokens before the head of the response is returned. They are committed with what it states about costs under other rules,
    /// or when all clones are dropped.
    pub fn commit_at_end(&self, tokens: TokenUsage) {
        self.layers().for_each(|report| report.pending.state.lock().at_end = Some(tokens));
    }

    /// States what is known so far, for a request that takes longer than its reservation may last.
    pub fn set_progress(&self, tokens: TokenUsage) {
        self.layers().for_each(|report| report.pending.state.lock().progress = Some(tokens));
    }

    /// Whether a rule that is not in shadow mode counts the tokens.
    pub fn is_enforced(&self) -> bool {
        self.layers().any(|report| report.pending.is_enforced)
    }

    /// The same report, which tells that of a layer further out, too.
    pub(crate) fn with_outer(&self, outer: Option<Self>) -> Self {
        Self { pending: Arc::clone(&self.pending), outer: outer.map(Arc::new) }
    }

    /// The reports of all layers, the innermost first.
    fn layers(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |report| report.outer.as_deref())
    }

    /// Waits for the place of the request in the queue of a leaky bucket. A request that goes away before gives everything back.
    pub(crate) async fn wait(&self, delay: Duration, timer: &dyn Timer) {
        let guard = RefundGuard(Some(self));
        timer.sleep(delay).await;
        guard.disarm();
    }

    /// Gives everything back: the request has not reached the service.
    fn refund(&self) {
        let settlement = {
            let mut state = self.pending.state.lock();
            state.stop_expiry();
            state.settlement.take()
        };
        if let Some(settlement) = settlement {
            settlement.spawn_refund();
        }
    }

    /// Settles the costs under rules whose cost is not in tokens, as soon as the head of the response is there: what they took is counted like
    /// that of any other request, however long the response lasts.
    pub(crate) async fn settle_others(&self, cost: impl Fn(&str) -> Option<u64>) {
        let settling = {
            let mut state = self.pending.state.lock();
            for rule in &mut state.rules {
                rule.stated = cost(&rule.rule);
            }
            let costs = state.costs(None);
            state.others.take().map(|settlement| settlement.settle_others(costs))
        };
        if let Some(settling) = settling {
            settling.await;
        }
    }

    /// Commits the tokens if the service has [stated](Self::commit_at_end) them.
    pub(crate) fn end_if_stated(&self) {
        let at_end = self.pending.state.lock().at_end;
        if at_end.is_some() {
            self.pending.spawn_commit(at_end);
        }
    }
}

/// Commits the progress when four fifths of the reservation have passed: what is not committed in time is lost. Then charges further progress
/// in the same intervals, since some requests never end.
async fn commit_before_expiry(pending: Weak<PendingUsage>, timer: Arc<dyn Timer>, duration: Duration) {
    loop {
        timer.sleep(duration * 4 / 5).await;
        let Some(commit) = pending.upgrade().and_then(|pending| pending.state.lock().next_commit()) else { return };
        commit.await;
        if pending.upgrade().is_none_or(|pending| pending.state.lock().has_ended_since_commit()) {
            return;
        }
    }
}

impl PendingUsage {
    fn commit(&self, tokens: Option<TokenUsage>) -> Option<JoinHandle<()>> {
        let (settlement, costs) = self.end(tokens)?;
        let settling = settlement.settle(costs);
        // Without a runtime there is no store to reach either.
        Handle::try_current().ok().map(|runtime| runtime.spawn(settling))
    }

    fn spawn_commit(&self, tokens: Option<TokenUsage>) {
        if let Some((settlement, costs)) = self.end(tokens) {
            settlement.spawn_settle(costs);
        }
    }

    /// What is left to be done. From now on, nothing is.
    fn end(&self, tokens: Option<TokenUsage>) -> Option<(Arc<dyn Settlement>, Costs)> {
        let mut state = self.state.lock();
        let settlement = state.settlement.take()?;
        state.stop_expiry();
        let costs = state.costs(tokens);
        Some((settlement, costs))
    }
}

impl UsageState {
    /// The costs, if these tokens were used; `None` is what was reserved.
    fn costs(&self, tokens: Option<TokenUsage>) -> Costs {
        let cost = |rule: &RuleCost| match rule.usage {
            Some(kind) => tokens.map(|TokenUsage { input, output }| kind.tokens(input, output)),
            None => rule.stated,
        };
        let known = self.rules.iter().filter_map(|rule| Some((rule, cost(rule)?)));
        known.fold(Costs::default(), |costs, (rule, cost)| costs.with(rule.rule.as_str(), cost))
    }

    /// Settles the progress. `None` after the end.
    fn next_commit(&mut self) -> Option<SettlementFuture> {
        let settlement = self.settlement.clone()?;
        self.is_committing = true;
        Some(settlement.settle_holds(self.costs(self.at_end.or(self.progress))))
    }

    fn has_ended_since_commit(&mut self) -> bool {
        self.is_committing = false;
        self.settlement.is_none()
    }

    /// Stops the task that waits for the expiry, unless it commits already.
    fn stop_expiry(&mut self) {
        if let Some(expiry) = self.expiry.take_if(|_| !self.is_committing) {
            expiry.abort();
        }
    }
}

impl Drop for PendingUsage {
    fn drop(&mut self) {
        let at_end = self.state.lock().at_end;
        self.spawn_commit(at_end);
    }
}

/// Gives everything back on drop unless it is disarmed.
struct RefundGuard<'u>(Option<&'u UsageReport>);

impl RefundGuard<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for RefundGuard<'_> {
    fn drop(&mut self) {
        if let Some(usage) = self.0 {
            usage.refund();
        }
    }
}

impl Future for UsageCommit {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(task) = &mut self.task {
            // A task that was stopped with its runtime has nothing to report.
            let _ = ready!(Pin::new(task).poll(context));
            self.task = None;
        }
        match &mut self.outer {
            Some(outer) => Pin::new(&mut **outer).poll(context),
            None => Poll::Ready(()),
        }
    }
}

impl fmt::Debug for UsageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsageReport").field("is_enforced", &self.is_enforced()).finish_non_exhaustive()
    }
}
