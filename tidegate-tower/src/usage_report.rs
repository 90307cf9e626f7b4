//! `UsageReport`: how a service tells the tokens that a language model used, which are the cost of the request.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::spi::{Plan, Store};
use tidegate::{Limiter, Receipt, Reservation, ReservationError, RuleMode, Timer};
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
/// A reservation does not last for ever. Shortly before it runs out, the [progress](Self::set_progress) is committed, and what is
/// committed later is charged as far as it is more.
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
    /// None after the commit.
    settlement: Option<Arc<dyn Settlement>>,
    /// The same for rules whose cost is not in tokens, which the head of the response settles. None after that.
    others: Option<Arc<dyn Settlement>>,
    /// The rules of the request, and what the response states about their costs besides the tokens.
    costs: Vec<(String, Option<u64>)>,
    progress: Option<TokenUsage>,
    /// Whether the progress was committed, since the reservation was about to run out.
    is_partly_committed: bool,
    expiry: Option<AbortHandle>,
}

type SettlementFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Replaces the reserved costs by the actual ones.
trait Settlement: Send + Sync {
    /// Commits the costs.
    fn commit(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// Settles what was taken under rules whose cost is not in tokens.
    fn settle_others(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// Charges further costs after a commit.
    fn charge_late(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// Commits the costs without waiting for it.
    fn commit_soon(self: Arc<Self>, costs: Costs);

    /// Charges further costs without waiting for it.
    fn charge_late_soon(&self, costs: &Costs);

    /// Gives everything back without waiting for it.
    fn release(&self);
}

/// How a report ends.
enum Ending {
    Commit(Arc<dyn Settlement>, Costs),
    ChargeLate(Arc<dyn Settlement>, Costs),
    Nothing,
}

/// The actual costs.
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
        let names = || plan.checks().iter().map(|check| check.gate().rule());
        let is_enforced =
            |name: &str| rules.rule(name).is_some_and(|rule| rule.usage().is_some() && rule.mode() != RuleMode::Shadow);
        let duration = reservation.as_ref().map(Reservation::duration);
        let limiter = Arc::clone(limiter);
        let settlement: Arc<dyn Settlement> =
            Arc::new(ReservedCosts { limiter, reservation, taken: Mutex::new(taken) });
        let state = PendingState {
            settlement: Some(Arc::clone(&settlement)),
            others: Some(settlement),
            costs: names().map(|name| (name.to_owned(), None)).collect(),
            progress: None,
            is_partly_committed: false,
            expiry: None,
        };
        let pending = Arc::new(Pending { is_enforced: names().any(is_enforced), state: Mutex::new(state) });
        if let (Some(duration), Ok(runtime)) = (duration, Handle::try_current()) {
            let task = commit_before_expiry(Arc::downgrade(&pending), Arc::clone(timer), duration);
            pending.lock().expiry = Some(runtime.spawn(task).abort_handle());
        }
        Self(pending)
    }

    /// Commits the tokens as the cost of the request, under each rule those that it counts; `None` keeps what was reserved. Does nothing
    /// if that has happened before.
    pub fn commit(&self, tokens: Option<TokenUsage>) -> UsageCommit {
        self.0.commit(tokens)
    }

    /// [Commits](Self::commit) without waiting for it, for a response that is being dropped.
    pub fn commit_soon(&self, tokens: Option<TokenUsage>) {
        self.0.commit_soon(tokens);
    }

    /// States what is known so far, for a request that takes longer than its reservation may last.
    pub fn set_progress(&self, tokens: TokenUsage) {
        let mut state = self.0.lock();
        if !state.is_partly_committed {
            state.progress = Some(tokens);
        }
    }

    /// Whether a rule that is not in shadow mode counts the tokens.
    pub fn is_enforced(&self) -> bool {
        self.0.is_enforced
    }

    /// Gives everything back: the request has not reached the service.
    pub(crate) fn release(&self) {
        let settlement = self.0.lock().settlement.take();
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
}

/// Commits the progress when four fifths of the reservation have passed: what is not committed in time is lost.
async fn commit_before_expiry(pending: Weak<Pending>, timer: Arc<dyn Timer>, duration: Duration) {
    timer.sleep(duration * 4 / 5).await;
    let Some(pending) = pending.upgrade() else { return };
    let commit = {
        let mut state = pending.lock();
        let Some(settlement) = state.settlement.clone() else { return };
        let tokens = state.progress;
        state.is_partly_committed = true;
        settlement.commit(Costs { tokens, others: state.costs.clone() })
    };
    commit.await;
}

impl Pending {
    fn commit(&self, tokens: Option<TokenUsage>) -> UsageCommit {
        let settling = match self.end(tokens) {
            Ending::Commit(settlement, costs) => settlement.commit(costs),
            Ending::ChargeLate(settlement, costs) => settlement.charge_late(costs),
            Ending::Nothing => return UsageCommit(None),
        };
        // Without a runtime there is no store to reach either.
        UsageCommit(Handle::try_current().ok().map(|runtime| runtime.spawn(settling)))
    }

    fn commit_soon(&self, tokens: Option<TokenUsage>) {
        match self.end(tokens) {
            Ending::Commit(settlement, costs) => settlement.commit_soon(costs),
            Ending::ChargeLate(settlement, costs) => settlement.charge_late_soon(&costs),
            Ending::Nothing => {}
        }
    }

    /// What is left to be done. From now on, nothing is.
    fn end(&self, tokens: Option<TokenUsage>) -> Ending {
        let mut state = self.lock();
        let Some(settlement) = state.settlement.take() else { return Ending::Nothing };
        let others = state.costs.clone();
        if !state.is_partly_committed {
            if let Some(expiry) = state.expiry.take() {
                expiry.abort();
            }
            return Ending::Commit(settlement, Costs { tokens, others });
        }
        // If nothing was known, what was reserved is committed.
        let (Some(tokens), Some(before)) = (tokens, state.progress) else { return Ending::Nothing };
        let input = tokens.input.saturating_sub(before.input);
        let output = tokens.output.saturating_sub(before.output);
        Ending::ChargeLate(settlement, Costs { tokens: Some(TokenUsage { input, output }), others: Vec::new() })
    }

    fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.commit_soon(None);
    }
}

impl<S: Store + 'static> Settlement for ReservedCosts<S> {
    fn commit(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move {
            let actual = |rule: &str| costs.actual(&self.limiter, rule);
            // Other failures are reported to the observer: the work is done, and nobody can be told.
            if let Some(reservation) = &self.reservation
                && let Err(ReservationError::Store(_)) = self.limiter.commit_each(reservation, actual).await
            {
                self.limiter.commit_each_soon(reservation, actual);
            }
            let _ = self.limiter.settle(self.take_metered(), actual).await;
        })
    }

    fn settle_others(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move {
            let actual = |rule: &str| costs.actual(&self.limiter, rule);
            let _ = self.limiter.settle(self.take_others(), actual).await;
        })
    }

    fn commit_soon(self: Arc<Self>, costs: Costs) {
        let actual = |rule: &str| costs.actual(&self.limiter, rule);
        if let Some(reservation) = &self.reservation {
            self.limiter.commit_each_soon(reservation, actual);
        }
        if let Ok(runtime) = Handle::try_current() {
            let (limiter, taken) = (Arc::clone(&self.limiter), self.take_metered());
            runtime.spawn(async move { limiter.settle(taken, |rule| costs.actual(&limiter, rule)).await });
        }
    }

    fn charge_late_soon(&self, costs: &Costs) {
        if let Some(reservation) = &self.reservation {
            self.limiter.charge_late_soon(reservation, |rule| costs.actual(&self.limiter, rule));
        }
    }

    fn charge_late(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move {
            let actual = |rule: &str| costs.actual(&self.limiter, rule);
            if let Some(reservation) = &self.reservation {
                let _ = self.limiter.charge_late(reservation, actual).await;
            }
        })
    }

    fn release(&self) {
        if let Some(reservation) = &self.reservation {
            self.limiter.release_reservation_soon(reservation);
        }
        self.limiter.refund_soon(std::mem::take(&mut *self.lock_taken()));
    }
}

impl<S: Store> ReservedCosts<S> {
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
