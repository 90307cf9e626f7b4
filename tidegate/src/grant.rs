//! `Grant`: what a decision took that may end later: a refund, a settlement, a lease, a reservation, token usage.

mod adjustments;
mod bytes;
mod ending;
mod error;
mod part;

use std::time::Duration;

use smallvec::SmallVec;

pub(crate) use adjustments::PartAdjustments;
pub use adjustments::Retake;
pub use ending::{Costs, Ending};
pub use error::GrantError;
pub use part::{GrantKind, GrantPart};

use crate::RuleSet;

/// What a decision took that may [end](crate::Limiter::end) later, from [`Decision::take_grant`](crate::Decision::take_grant).
///
/// Each part of a grant was taken by one check, in one of three ways. How the grant ends decides what becomes of each part:
///
/// | part | [`Refund`] | [`Settle`] | [`Commit`] | [`Release`] |
/// |---|---|---|---|---|
/// | *taken*: consumed at once | given back | corrected to the actual cost | unchanged | unchanged |
/// | *slot* of a concurrency limit | released | stays held | released | released |
/// | *held* by a reservation | released | committed with the actual cost | committed with the actual cost | released |
///
/// - A **refund** undoes the request: it was not served. No limit gives back what it has forgotten, what has refilled, or a place in a queue that
///   others wait behind, since each promises a bound on what is admitted and not given back. The refunds of one request are *bundled*: one that
///   is stuck in a queue keeps all of them taken. A slot is not a price and always goes back.
/// - A **settlement** replaces the cost by the actual one, part by part. It may come again with another cost. A hold that is gone, because it has
///   run out or the store has lost it, is charged: what was used counts. What was held is not given back twice: of a cost that grew after the first
///   settlement, the difference is charged.
/// - A **lease** is a grant of slots. It runs out after its [duration](Self::duration) unless it is renewed: [`Limiter::renew`],
///   [`Limiter::hold`], [`HeldLeases`].
/// - A **reservation** is a grant of [`Limiter::reserve`]: the estimated cost is held, and committed with the actual cost. It runs out unless
///   it ends. With an idempotency key, every step can be repeated.
/// - The **token usage** of a language model is a settlement: the tokens of the answer are known at its end.
///
/// Dropping a grant ends nothing: units stay consumed, slots and holds run out. A [`GrantGuard`] ends it on its drop. Another process can end it:
/// [`to_bytes`](Self::to_bytes).
///
/// [`Refund`]: Ending::Refund
/// [`Settle`]: Ending::Settle
/// [`Commit`]: Ending::Commit
/// [`Release`]: Ending::Release
/// [`Limiter::renew`]: crate::Limiter::renew
/// [`Limiter::hold`]: crate::Limiter::hold
/// [`Limiter::reserve`]: crate::Limiter::reserve
/// [`HeldLeases`]: crate::grants::HeldLeases
/// [`GrantGuard`]: crate::GrantGuard
///
/// ```
/// # use std::time::Duration;
/// use tidegate::{Ending, Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// let limit = Limit::token_bucket(10, Rate::per_second(1)?)?;
/// let limiter = Limiter::new(RuleSet::new([Rule::new("exports", limit)])?, MemoryStore::new());
///
/// let mut grant = limiter.check(&Request::new("export").with_cost(4)).await?.take_grant();
/// // … the work, of which only a part was done
/// limiter.end(&mut grant, &Ending::Settle(1.into())).await?;
/// assert_eq!(limiter.peek(&Request::new("export")).await?.remaining(), Some(9));
/// # Ok(())
/// # }
/// # use std::future::Future;
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # assert!(matches!(std::pin::pin!(serve()).poll(&mut context), std::task::Poll::Ready(Ok(()))));
/// ```
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "a grant does nothing until it ends"]
pub struct Grant {
    parts: SmallVec<[GrantPart; 1]>,
    /// Whether the request has a place in a queue that cannot be given back: in an overflow bucket, or in the memory of an
    /// instance. Then nothing but slots and holds goes back.
    has_lost_place: bool,
}

impl Grant {
    pub(crate) fn new(parts: impl Iterator<Item = GrantPart>, has_lost_place: bool) -> Self {
        Self { parts: parts.collect(), has_lost_place }
    }

    /// Its parts, each taken by one check.
    pub fn parts(&self) -> &[GrantPart] {
        &self.parts
    }

    /// Whether nothing can be given back, released or committed.
    pub fn is_empty(&self) -> bool {
        self.endable_parts().next().is_none()
    }

    /// Removes the parts that are `chosen`, and returns them as a grant that ends by itself.
    pub fn split_off(&mut self, chosen: impl Fn(&GrantPart) -> bool) -> Self {
        let (split, kept) = std::mem::take(&mut self.parts).into_iter().partition(|part| chosen(part));
        self.parts = kept;
        Self { parts: split, has_lost_place: self.has_lost_place }
    }

    /// Removes the slots of concurrency limits, and returns them: a lease.
    pub fn split_slots(&mut self) -> Self {
        self.split_off(|part| part.kind() == GrantKind::Slot)
    }

    /// How long its slots and holds last unless they are renewed or end before: the shortest. `None` if it has none.
    pub fn duration(&self) -> Option<Duration> {
        self.parts.iter().filter_map(GrantPart::duration).min()
    }

    /// How long its slots are held without a renewal: the shortest. `None` if it has none.
    pub(crate) fn lease(&self) -> Option<Duration> {
        self.parts.iter().filter(|part| part.kind() == GrantKind::Slot).filter_map(GrantPart::duration).min()
    }

    /// The shortest lease of its slots under the current rules. `None` if no limit of them exists any more.
    pub fn current_lease(&self, rules: &RuleSet) -> Option<Duration> {
        let slots = self.parts.iter().filter(|part| part.kind() == GrantKind::Slot);
        slots
            .filter_map(|slot| Some(slot.gate(rules)?.limit()).filter(|limit| limit.has_slots()))
            .map(crate::Limit::max_window)
            .min()
    }

    /// Sets the leases of its slots to those of the current rules, which a renewal has just granted.
    pub fn update_leases(&mut self, rules: &RuleSet) {
        for slot in self.parts.iter_mut().filter(|part| part.kind() == GrantKind::Slot) {
            if let Some(gate) = slot.gate(rules).filter(|gate| gate.limit().has_slots()) {
                slot.lease = gate.limit().max_window();
            }
        }
    }

    /// The ids of the rules of its parts, also of those that share a check through a budget. One with several limits comes several times.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().flat_map(GrantPart::rules)
    }

    /// The parts that a refund, release or commit does not leave alone.
    fn endable_parts(&self) -> impl Iterator<Item = &GrantPart> {
        self.parts.iter().filter(|part| part.is_endable(self.has_lost_place))
    }
}
