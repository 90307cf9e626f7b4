//! `Settlement`: replaces the costs that a request has reserved by the actual ones.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::spi::Store;
use tidegate::{Limiter, Receipt, Reservation};
use tokio::runtime::Handle;

pub(crate) type SettlementFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Replaces the reserved costs by the actual ones.
pub(crate) trait Settlement: Send + Sync {
    /// Commits the costs of what would run out.
    fn commit_reservation(self: Arc<Self>, costs: Costs) -> SettlementFuture;

    /// Charges what is more than was committed before.
    fn charge_late(self: Arc<Self>, committed: Costs, actual: Costs) -> SettlementFuture;

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
pub(crate) struct Ending {
    /// What was committed when the reservation was about to run out, with what was charged since.
    pub(crate) committed: Option<Costs>,
    pub(crate) actual: Costs,
}

/// The costs under the rules of a request. `None` is what was reserved.
#[derive(Clone)]
pub(crate) struct Costs(pub(crate) Vec<(String, Option<u64>)>);

/// What a request has reserved.
pub(crate) struct ReservedCosts<S> {
    limiter: Arc<Limiter<S>>,
    /// None if all costs are estimated as 0.
    reservation: Option<Reservation>,
    /// What a reservation does not hold: costs under rules without tokens, and places in queues.
    taken: Mutex<Receipt>,
}

impl<S: Store + 'static> Settlement for ReservedCosts<S> {
    fn commit_reservation(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move { self.commit(&costs).await })
    }

    fn charge_late(self: Arc<Self>, committed: Costs, actual: Costs) -> SettlementFuture {
        Box::pin(async move {
            if let Some(reservation) = &self.reservation {
                let (committed, actual) = (|rule: &str| committed.actual(rule), |rule: &str| actual.actual(rule));
                // A failure is reported to the observer. A charge that may have been made must not be repeated.
                let _ = self.limiter.charge_late(reservation, committed, actual).await;
            }
        })
    }

    fn settle_others(self: Arc<Self>, costs: Costs) -> SettlementFuture {
        Box::pin(async move {
            let _ = self.limiter.settle(self.take_others(), |rule| costs.actual(rule)).await;
        })
    }

    fn settle(self: Arc<Self>, Ending { committed, actual }: Ending) -> SettlementFuture {
        Box::pin(async move {
            match committed {
                Some(committed) => Arc::clone(&self).charge_late(committed, actual.clone()).await,
                None => self.commit(&actual).await,
            }
            let _ = self.limiter.settle(self.take_metered(), |rule| actual.actual(rule)).await;
        })
    }

    fn settle_soon(self: Arc<Self>, Ending { committed, actual }: Ending) {
        match (&self.reservation, &committed) {
            (Some(reservation), Some(committed)) => {
                let (committed, actual) = (|rule: &str| committed.actual(rule), |rule: &str| actual.actual(rule));
                self.limiter.charge_late_soon(reservation, committed, actual);
            }
            (Some(reservation), None) => self.limiter.commit_each_soon(reservation, |rule| actual.actual(rule)),
            (None, _) => {}
        }
        if let Ok(runtime) = Handle::try_current() {
            let taken = self.take_metered();
            runtime.spawn(async move { self.limiter.settle(taken, |rule| actual.actual(rule)).await });
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
    pub(crate) fn new(limiter: &Arc<Limiter<S>>, reservation: Option<Reservation>, taken: Receipt) -> Self {
        Self { limiter: Arc::clone(limiter), reservation, taken: Mutex::new(taken) }
    }

    /// Commits what is reserved. A hold that is gone is charged.
    async fn commit(&self, costs: &Costs) {
        // The store sends what fails again, until the reservation runs out.
        if let Some(reservation) = &self.reservation
            && self.limiter.commit_or_charge(reservation, |rule| costs.actual(rule)).await.is_err()
        {
            self.limiter.commit_each_soon(reservation, |rule| costs.actual(rule));
        }
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
    pub(crate) fn actual(&self, rule: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == rule)?.1
    }
}
