//! `Settlement`: replaces the costs that a request has reserved by the actual ones.

use std::pin::Pin;
use std::sync::Arc;

use tidegate::grants::Costs;
use tidegate::spi::Store;
use tidegate::sync::Mutex;
use tidegate::{Ending, Grant, Limiter};
use tokio::runtime::Handle;

pub(crate) type SettlementFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Replaces the reserved costs by the actual ones. Failures are reported to the observer of the limiter.
pub(crate) trait Settlement: Send + Sync {
    /// Settles what would run out. May come again with larger costs.
    fn settle_holds(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// Settles what was taken under rules whose cost is not in tokens.
    fn settle_others(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// Settles all costs in tokens, at the end.
    fn settle(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// The same in the background.
    fn spawn_settle(self: Arc<Self>, costs: Costs);

    /// Gives everything back in the background.
    fn spawn_refund(self: Arc<Self>);
}

/// What a request has reserved.
pub(crate) struct ReservedCosts<S> {
    limiter: Arc<Limiter<S>>,
    /// Locked while it is settled.
    holds: tokio::sync::Mutex<Grant>,
    /// What a reservation does not hold: costs under rules without tokens, places in queues, and slots that no lease holds.
    taken: Mutex<Grant>,
}

impl<S: Store + 'static> Settlement for ReservedCosts<S> {
    fn settle_holds(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move {
            let mut holds = self.holds.lock().await;
            let _ = self.limiter.end(&mut holds, &Ending::Settle(costs)).await;
        })
    }

    fn settle_others(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move {
            let mut others = self.split_taken(false);
            let _ = self.limiter.end(&mut others, &Ending::Settle(costs)).await;
        })
    }

    fn settle(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move {
            Arc::clone(&self).settle_holds(costs.clone()).await;
            let mut metered = self.split_taken(true);
            let _ = self.limiter.end(&mut metered, &Ending::Settle(costs)).await;
        })
    }

    fn spawn_settle(self: Arc<Self>, costs: Costs) {
        let ending = Ending::Settle(costs);
        self.limiter.spawn_end(self.split_taken(true), &ending);
        self.spawn_end_holds(ending);
    }

    fn spawn_refund(self: Arc<Self>) {
        self.limiter.spawn_end(self.split_taken(true), &Ending::Refund);
        self.limiter.spawn_end(self.split_taken(false), &Ending::Refund);
        self.spawn_end_holds(Ending::Refund);
    }
}

impl<S: Store + 'static> ReservedCosts<S> {
    pub(crate) fn new(limiter: &Arc<Limiter<S>>, holds: Grant, taken: Grant) -> Self {
        Self { limiter: Arc::clone(limiter), holds: tokio::sync::Mutex::new(holds), taken: Mutex::new(taken) }
    }

    fn spawn_end_holds(self: Arc<Self>, ending: Ending) {
        if let Ok(mut holds) = self.holds.try_lock() {
            self.limiter.spawn_end(std::mem::take(&mut *holds), &ending);
        } else if let Ok(runtime) = Handle::try_current() {
            // They are settled at the moment.
            let this = Arc::clone(&self);
            runtime.spawn(async move { this.limiter.end(&mut *this.holds.lock().await, &ending).await });
        }
    }

    /// What was taken under rules whose cost is in tokens, or under the others.
    fn split_taken(&self, in_tokens: bool) -> Grant {
        let is_metered = |rule: &str| self.limiter.rules().usage(rule).is_some();
        let mut taken = self.taken.lock();
        taken.split_off(|part| part.rules().any(is_metered) == in_tokens)
    }
}
