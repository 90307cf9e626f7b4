//! `UsageReport`: how a service tells the tokens that a language model used, which are the cost of the request.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::spi::{Plan, Store};
use tidegate::{Limiter, Receipt, Reservation, RuleMode, Timer};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};

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
/// what was reserved if there is none. What is committed later is charged as far as it is more. If it is less, nothing is given back: part
/// of it may have refilled already.
#[derive(Clone)]
pub struct UsageReport(Arc<Pending>);

/// Completes when the actual cost is counted, or could not be. Dropping it does not stop the commit.
#[derive(Debug)]
pub struct UsageCommit(Option<JoinHandle<()>>);

struct Pending {
    is_enforced: bool,
    state: Mutex<PendingState>,
}

struct PendingState {
    /// None after the end.
    settlement: Option<Arc<dyn Settlement>>,
    /// The same for rules whose cost is not in tokens, which the head of the response settles. None after that.
    others: Option<Arc<dyn Settlement>>,
    /// The rules of the request, and what the response states about their costs besides the tokens.
    costs: Vec<(String, Option<u64>)>,
    progress: Option<TokenUsage>,
    /// The tokens that the end commits, if the service has stated them before.
    at_end: Option<TokenUsage>,
    /// What was committed when the reservation was about to run out.
    committed: Option<Costs>,
    expiry: Option<AbortHandle>,
}

type SettlementFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Replaces the reserved costs by the actual ones.
trait Settlement: Send + Sync {
    /// Commits the costs of what would run out.
    fn commit_reservation(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// Settles what was taken under rules whose cost is not in tokens.
    fn settle_others(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// Commits the costs in tokens, or charges what is more than was committed before.
    fn settle(self: Arc<Self>, ending: Ending) -> SettlementFuture;

    /// Settles without waiting for it.
    fn settle_soon(self: Arc<Self>, ending: Ending);

    /// Gives everything back without waiting for it.
    fn release(&self);
}

/// What a report ends with.
struct Ending {
    /// What was committed when the reservation was about to run out.
    committed: Option<Costs>,
    actual: Costs,
}

/// The actual costs.
#[derive(Clone)]
struct Costs {
    tokens: Option<TokenUsage>,
    others: Vec<(String, Option<u64>)>,
}

/// What a request has reserved.
struct ReservedCosts<S> {
    limiter: Arc<Limiter<S>>,
    /// None if all costs are estimated as 0.
    reservation: Option<Reservation>,
    /// What a reservation does not hold: costs under rules without tokens, and places in queues.
    taken: Mutex<Receipt>,
}

impl UsageReport {
    /// The report of a request that `limiter` has admitted. By `timer`, it commits the progress before the reservation runs out.
    pub(crate) fn new<S: Store + 'static>(
        limiter: &Arc<Limiter<S>>,
        plan: &Plan<'_>,
        (reservation, taken): (Option<Reservation>, Receipt),
        timer: &Arc<dyn Timer>,
    ) -> Self {
        let rules = limiter.rules();
        let is_enforced =
            |name: &str| rules.rule(name).is_some_and(|rule| rule.usage().is_some() && rule.mode() != RuleMode::Shadow);
        let duration = reservation.as_ref().map(Reservation::duration);
        let limiter = Arc::clone(limiter);
        let settlement: Arc<dyn Settlement> =
            Arc::new(ReservedCosts { limiter, reservation, taken: Mutex::new(taken) });
        let state = PendingState {
            settlement: Some(Arc::clone(&settlement)),
            others: Some(settlement),
            costs: plan.rule_ids().map(|name| (name.to_owned(), None)).collect(),
            progress: None,
            at_end: None,
            committed: None,
            expiry: None,
        };
        let pending = Arc::new(Pending { is_enforced: plan.rule_ids().any(is_enforced), state: Mutex::new(state) });
        if let (Some(duration), Ok(runtime)) = (duration, Handle::try_current()) {
            let task = commit_before_expiry(Arc::downgrade(&pending), Arc::clone(timer), duration);
            pending.lock().expiry = Some(runtime.spawn(task).abort_handle());
        }
        Self(pending)
    }

    /// Commits the tokens as the cost of the request, under each rule those that it counts; `None` keeps what was reserved. Does nothing
    /// if that has happened before.
    ///
    /// What the head of the response states about costs under other rules counts only if it was returned before. A service that knows the
    /// tokens earlier has [`commit_at_end`](Self::commit_at_end).
    pub fn commit(&self, tokens: Option<TokenUsage>) -> UsageCommit {
        self.0.commit(tokens)
    }

    /// [Commits](Self::commit) without waiting for it, for a response that is being dropped.
    pub fn commit_soon(&self, tokens: Option<TokenUsage>) {
        self.0.commit_soon(tokens);
    }

    /// States the tokens before the head of the response is returned. They are committed with what it states about costs under other rules,
    /// or when all clones are dropped.
    pub fn commit_at_end(&self, tokens: TokenUsage) {
        self.0.lock().at_end = Some(tokens);
    }

    /// States what is known so far, for a request that takes longer than its reservation may last.
    pub fn set_progress(&self, tokens: TokenUsage) {
        self.0.lock().progress = Some(tokens);
    }

    /// Whether a rule that is not in shadow mode counts the tokens.
    pub fn is_enforced(&self) -> bool {
        self.0.is_enforced
    }

    /// Gives everything back: the request has not reached the service.
    pub(crate) fn release(&self) {
        let settlement = {
            let mut state = self.0.lock();
            state.stop_expiry();
            state.settlement.take()
        };
        if let Some(settlement) = settlement {
            settlement.release();
        }
    }

    /// Settles the costs under rules whose cost is not in tokens, as soon as the head of the response is there: what they took is counted like
    /// that of any other request, however long the response lasts.
    pub(crate) async fn settle_others(&self, cost: impl Fn(&str) -> Option<u64>) {
        let settling = {
            let mut state = self.0.lock();
            for (rule, stated) in &mut state.costs {
                *stated = cost(rule);
            }
            let costs = Costs { tokens: None, others: state.costs.clone() };
            state.others.take().map(|settlement| settlement.settle_others(costs))
        };
        if let Some(settling) = settling {
            settling.await;
        }
    }

    /// Commits the tokens if the service has [stated](Self::commit_at_end) them.
    pub(crate) fn end_if_stated(&self) {
        let at_end = self.0.lock().at_end;
        if at_end.is_some() {
            self.0.commit_soon(at_end);
        }
    }
}

/// Commits the progress when four fifths of the reservation have passed: what is not committed in time is lost.
async fn commit_before_expiry(pending: Weak<Pending>, timer: Arc<dyn Timer>, duration: Duration) {
    timer.sleep(duration * 4 / 5).await;
    let Some(pending) = pending.upgrade() else { return };
    let commit = {
        let mut state = pending.lock();
        let Some(settlement) = state.settlement.clone() else { return };
        let costs = Costs { tokens: state.at_end.or(state.progress), others: state.costs.clone() };
        state.committed = Some(costs.clone());
        settlement.commit_reservation(costs)
    };
    commit.await;
}

impl Pending {
    fn commit(&self, tokens: Option<TokenUsage>) -> UsageCommit {
        let Some((settlement, ending)) = self.end(tokens) else { return UsageCommit(None) };
        let settling = settlement.settle(ending);
        // Without a runtime there is no store to reach either.
        UsageCommit(Handle::try_current().ok().map(|runtime| runtime.spawn(settling)))
    }

    fn commit_soon(&self, tokens: Option<TokenUsage>) {
        if let Some((settlement, ending)) = self.end(tokens) {
            settlement.settle_soon(ending);
        }
    }

    /// What is left to be done. From now on, nothing is.
    fn end(&self, tokens: Option<TokenUsage>) -> Option<(Arc<dyn Settlement>, Ending)> {
        let mut state = self.lock();
        let settlement = state.settlement.take()?;
        state.stop_expiry();
        let others = state.costs.clone();
        Some((settlement, Ending { committed: state.committed.take(), actual: Costs { tokens, others } }))
    }

    fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingState {
    /// Stops the task that waits for the expiry, unless it commits already.
    fn stop_expiry(&mut self) {
        if let Some(expiry) = self.expiry.take_if(|_| self.committed.is_none()) {
            expiry.abort();
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let at_end = self.lock().at_end;
        self.commit_soon(at_end);
    }
}

impl<S: Store + 'static> Settlement for ReservedCosts<S> {
    fn commit_reservation(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move { self.commit(&costs).await })
    }

    fn settle_others(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move {
            let _ = self.limiter.settle(self.take_others(), self.cost_by_rule(&costs)).await;
        })
    }

    fn settle(self: Arc<Self>, Ending { committed, actual }: Ending) -> SettlementFuture {
        Box::pin(async move {
            match (&self.reservation, &committed) {
                (Some(reservation), Some(committed)) => {
                    let [committed, actual] = [committed, &actual].map(|costs| self.cost_by_rule(costs));
                    // It is reported to the observer: the work is done, and nobody can be told.
                    let _ = self.limiter.charge_late(reservation, committed, actual).await;
                }
                _ => self.commit(&actual).await,
            }
            let _ = self.limiter.settle(self.take_metered(), self.cost_by_rule(&actual)).await;
        })
    }

    fn settle_soon(self: Arc<Self>, Ending { committed, actual }: Ending) {
        match (&self.reservation, &committed) {
            (Some(reservation), Some(committed)) => {
                let [committed, actual] = [committed, &actual].map(|costs| self.cost_by_rule(costs));
                self.limiter.charge_late_soon(reservation, committed, actual);
            }
            (Some(reservation), None) => self.limiter.commit_each_soon(reservation, self.cost_by_rule(&actual)),
            (None, _) => {}
        }
        if let Ok(runtime) = Handle::try_current() {
            let taken = self.take_metered();
            runtime.spawn(async move { self.limiter.settle(taken, self.cost_by_rule(&actual)).await });
        }
    }

    fn release(&self) {
        if let Some(reservation) = &self.reservation {
            self.limiter.release_reservation_soon(reservation);
        }
        self.limiter.refund_soon(std::mem::take(&mut *self.lock_taken()));
    }
}

impl<S: Store> ReservedCosts<S> {
    /// Commits what is reserved. A hold that is gone is charged.
    async fn commit(&self, costs: &Costs) {
        // The store sends what fails again, until the reservation runs out.
        if let Some(reservation) = &self.reservation
            && self.limiter.commit_or_charge(reservation, self.cost_by_rule(costs)).await.is_err()
        {
            self.limiter.commit_each_soon(reservation, self.cost_by_rule(costs));
        }
    }

    /// The cost under a rule.
    fn cost_by_rule<'c>(&'c self, costs: &'c Costs) -> impl Fn(&str) -> Option<u64> + 'c {
        |rule| costs.actual(&self.limiter, rule)
    }

    /// What was taken under rules whose cost is in tokens.
    fn take_metered(&self) -> Receipt {
        self.lock_taken().split_off(|rule| self.limiter.rules().usage(rule).is_some())
    }

    /// What was taken under the other rules.
    fn take_others(&self) -> Receipt {
        let mut taken = self.lock_taken();
        let metered = taken.split_off(|rule| self.limiter.rules().usage(rule).is_some());
        std::mem::replace(&mut *taken, metered)
    }

    fn lock_taken(&self) -> MutexGuard<'_, Receipt> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Costs {
    fn actual<S: Store>(&self, limiter: &Limiter<S>, rule: &str) -> Option<u64> {
        match limiter.rules().usage(rule) {
            Some(kind) => self.tokens.map(|TokenUsage { input, output }| kind.tokens(input, output)),
            None => self.others.iter().find(|(name, _)| name == rule)?.1,
        }
    }
}

impl Future for UsageCommit {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            // A task that was stopped with its runtime has nobody to tell.
            Some(task) => Pin::new(task).poll(context).map(|_| ()),
            None => Poll::Ready(()),
        }
    }
}

impl fmt::Debug for UsageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsageReport").field("is_enforced", &self.0.is_enforced).finish_non_exhaustive()
    }
}
