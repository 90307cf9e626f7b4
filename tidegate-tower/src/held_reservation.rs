//! `HeldReservation`: what a handler has reserved, released unless it is committed.

use std::fmt;
use std::sync::Arc;

use tidegate::spi::Store;
use tidegate::{Limiter, Reservation, ReservationError};

/// What a handler has [reserved](crate::Handle::reserve). Dropping it releases it: when the handler returns early, panics, or its client goes
/// away. [`commit`](Self::commit) charges the actual cost.
///
/// It runs out after the [setting](Limiter::with_reservation_ttl) of the limiter; nothing renews it.
#[must_use = "dropping it releases what is reserved"]
pub struct HeldReservation<S: Store> {
    limiter: Arc<Limiter<S>>,
    /// None if nothing is held, or it has ended.
    reservation: Option<Reservation>,
    ending: Ending,
}

/// How the reservation ends.
enum Ending {
    Release,
    Commit(u64),
    /// The actual cost by rule; under others, what was reserved.
    CommitEach(Vec<(String, u64)>),
}

impl<S: Store> HeldReservation<S> {
    pub(crate) const fn new(limiter: Arc<Limiter<S>>, reservation: Option<Reservation>) -> Self {
        Self { limiter, reservation, ending: Ending::Release }
    }

    /// What is reserved, for another process that ends it. `None` if the request was denied, or no limit applies to it.
    pub const fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    /// Charges the actual cost, which may be less or more than was reserved, under every rule without a cost of its own. Once it is called, the
    /// cost is charged, even if the future is dropped. Does nothing if nothing is held.
    pub fn commit(mut self, cost: u64) -> impl Future<Output = Result<(), ReservationError>> + Send
    where
        S: 'static,
    {
        self.ending = Ending::Commit(cost);
        self.end()
    }

    /// [Commits](Self::commit) with a cost for each rule. `actual` returns the actual cost under a rule, or `None` for what was reserved.
    pub fn commit_each(
        mut self,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> impl Future<Output = Result<(), ReservationError>> + Send
    where
        S: 'static,
    {
        let rules = self.reservation.iter().flat_map(Reservation::rules);
        let costs = rules.filter_map(|rule| Some((rule.to_owned(), actual(rule)?))).collect();
        self.ending = Ending::CommitEach(costs);
        self.end()
    }

    /// Charges nothing, and waits until it is released.
    pub fn release(self) -> impl Future<Output = Result<(), ReservationError>> + Send
    where
        S: 'static,
    {
        self.end()
    }

    /// Leaves it open, for another process that ends it by its [receipts](Reservation::stored). It runs out otherwise.
    pub fn keep(mut self) -> Option<Reservation> {
        self.reservation.take()
    }

    /// Ends it. A future that is dropped before ends it on its drop.
    async fn end(mut self) -> Result<(), ReservationError> {
        let Some(reservation) = &self.reservation else { return Ok(()) };
        let result = match &self.ending {
            Ending::Release => self.limiter.release_reservation(reservation).await,
            Ending::Commit(cost) => self.limiter.commit(reservation, *cost).await,
            Ending::CommitEach(costs) => self.limiter.commit_each(reservation, |rule| cost_of(costs, rule)).await,
        };
        // After a failure of the store, the drop tries again in the background.
        if !matches!(result, Err(ReservationError::Store(_))) {
            self.reservation = None;
        }
        result
    }
}

fn cost_of(costs: &[(String, u64)], rule: &str) -> Option<u64> {
    costs.iter().find(|(name, _)| name == rule).map(|(_, cost)| *cost)
}

impl<S: Store> Drop for HeldReservation<S> {
    fn drop(&mut self) {
        let Some(reservation) = &self.reservation else { return };
        match &self.ending {
            Ending::Release => self.limiter.release_reservation_soon(reservation),
            Ending::Commit(cost) => self.limiter.commit_soon(reservation, *cost),
            Ending::CommitEach(costs) => self.limiter.commit_each_soon(reservation, |rule| cost_of(costs, rule)),
        }
    }
}

impl<S: Store> fmt::Debug for HeldReservation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldReservation").field("reservation", &self.reservation).finish_non_exhaustive()
    }
}
