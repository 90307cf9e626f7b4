//! `Reservation`: what a request holds under its limits until its actual cost is known.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use smol_str::SmolStr;

use crate::spi::HoldRefusal;
use crate::store::Adjustment;
use crate::{Receipt, RuleSet, StoreError};

/// What a request has reserved, from [`Decision::reservation`](crate::Decision::reservation). Dropping it does not release it: it runs out
/// after its [duration](Self::duration).
///
/// ```
/// use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, ReservationError, Rule, RuleSet};
///
/// # async fn complete() -> Result<(), Box<dyn std::error::Error>> {
/// let limit = Limit::token_bucket(10_000, Rate::per_second(100)?)?;
/// let limiter = Limiter::new(RuleSet::new([Rule::new("tokens", limit)])?, MemoryStore::new());
///
/// // At most 4,000 tokens, by estimate. Others get the remaining 6,000 meanwhile.
/// let decision = limiter.reserve(&Request::new("complete").with_cost(4_000), None).await?;
/// if let Some(reservation) = decision.reservation() {
///     // … the work, which used 1,234 of them
///     limiter.commit(&reservation, 1_234).await?;
///     assert!(matches!(limiter.commit(&reservation, 1).await, Err(ReservationError::NotFound)));
/// }
/// # Ok(())
/// # }
/// # use std::future::Future;
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # assert!(matches!(std::pin::pin!(complete()).poll(&mut context), std::task::Poll::Ready(Ok(()))));
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is neither committed nor released is held until it runs out"]
pub struct Reservation {
    /// Holds and slots in the store.
    stored: Receipt,
    /// Holds and slots in the memory of this instance, made while the store failed.
    local: Receipt,
    duration: Duration,
}

/// Why a reservation was not made, committed or released. It changed nothing, except for [`AlreadyEnded`](Self::AlreadyEnded) and
/// [`Store`](Self::Store) at the end of a reservation of several limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReservationError {
    /// There is no such reservation: it has run out, it has ended and has no idempotency key, or its rules were removed or have other windows
    /// or periods now.
    NotFound,
    /// It was committed or released before, in another way. Limits that remember that are unchanged. Others, which had not been reached
    /// or have lost it, are committed or released by this call.
    AlreadyEnded,
    /// A reservation with this idempotency key exists and has another cost.
    KeyReused,
    /// The store failed. The call may be repeated.
    Store(StoreError),
}

/// The open reservations of a subject under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutstandingReservations {
    /// The id of the rule.
    pub rule: SmolStr,
    /// The name of the limit within its rule, often empty.
    pub limit_name: SmolStr,
    /// The number of open reservations.
    pub reservations: u64,
    /// The units that they hold.
    pub units: u64,
    /// The time until the oldest of them runs out; `None` if there is none.
    pub oldest_ends_after: Option<Duration>,
}

impl Reservation {
    /// `None` if nothing is held. `lease` is the shortest lease of its slots.
    pub(crate) fn new(stored: Receipt, local: Receipt, lease: Option<Duration>) -> Option<Self> {
        let ttl = stored.hold_ttl_micros().or_else(|| local.hold_ttl_micros()).map(Duration::from_micros);
        let duration = ttl.into_iter().chain(lease).min()?;
        Some(Self { stored, local, duration })
    }

    /// The reservation of another process, from the receipt of its [holds](Self::stored) and the current rules. `None` if the receipt is
    /// not of a reservation.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limit, Limiter, MemoryStore, Receipt, Request, Reservation, Rule, RuleSet};
    ///
    /// # let rules = RuleSet::new([Rule::new("tokens", Limit::fixed_window(9, Duration::from_secs(60))?)])?;
    /// # let limiter = Limiter::new(rules, MemoryStore::new());
    /// let decision = limiter.reserve_now(&Request::new(""), Some("order-17"))?;
    /// let reservation = decision.reservation().expect("nine units");
    /// let bytes = reservation.stored().to_bytes();
    /// let receipt = Receipt::from_bytes(&bytes).expect("our own bytes");
    /// assert_eq!(Reservation::from_stored(receipt, limiter.rules()), Some(reservation));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_stored(receipt: Receipt, rules: &RuleSet) -> Option<Self> {
        Self::from_receipts(receipt, Receipt::default(), rules)
    }

    /// The same with what is held in the [memory](Self::local) of the instance that decided. Other instances do not hold that.
    pub fn from_receipts(stored: Receipt, local: Receipt, rules: &RuleSet) -> Option<Self> {
        let slots = stored.releases(rules).into_iter().chain(local.releases(rules));
        let lease = slots.map(|slot| slot.limit.max_window()).min();
        Self::new(stored, local, lease)
    }

    /// How long it lasts unless it ends before: the [setting](crate::Limiter::with_reservation_ttl) of the limiter, or the shortest lease of
    /// its slots, if that is shorter.
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// The ids of the rules under which something is held. One with several limits comes several times.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        self.stored.rules().chain(self.local.rules())
    }

    /// The receipt of what it holds in the store, for another process that commits or releases it. Sign its bytes: a client that
    /// could forge them could end the reservations of others.
    pub const fn stored(&self) -> &Receipt {
        &self.stored
    }

    /// The receipt of what it holds in the memory of this instance, made while the store failed. It is of no use to other processes.
    pub const fn local(&self) -> &Receipt {
        &self.local
    }

    /// The same without slots of concurrency limits, for a caller that holds these as a [lease](crate::Decision::lease). `None` if it is
    /// nothing else.
    pub fn without_slots(self) -> Option<Self> {
        Self::new(self.stored.without_slots(), self.local.without_slots(), None)
    }

    /// The charges of [`Limiter::charge_late`](crate::Limiter::charge_late).
    pub(crate) fn late_charges<'r>(
        &self,
        rules: &'r RuleSet,
        committed: impl Fn(&str) -> Option<u64>,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Adjustment<'r>> {
        self.stored.late_charges(rules, committed, actual)
    }

    /// The commits in the store under the current rules, and those in the memory of this instance.
    pub(crate) fn commits<'r>(
        &self,
        rules: &'r RuleSet,
        actual: impl Fn(&str) -> Option<u64>,
    ) -> [Vec<Adjustment<'r>>; 2] {
        [&self.stored, &self.local].map(|holds| holds.commits(rules, &actual))
    }

    /// The releases in the store under the current rules, and those in the memory of this instance.
    pub(crate) fn releases<'r>(&self, rules: &'r RuleSet) -> [Vec<Adjustment<'r>>; 2] {
        [&self.stored, &self.local].map(|holds| holds.hold_releases(rules))
    }
}

impl From<HoldRefusal> for ReservationError {
    fn from(refusal: HoldRefusal) -> Self {
        match refusal {
            HoldRefusal::KeyReused => Self::KeyReused,
            HoldRefusal::AlreadyEnded => Self::AlreadyEnded,
        }
    }
}

impl fmt::Display for ReservationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => {
                f.write_str("there is no such reservation: it has run out or ended, or its rule was changed or removed")
            }
            Self::AlreadyEnded => f.write_str("the reservation was committed or released before, in another way"),
            Self::KeyReused => f.write_str("a reservation with this idempotency key exists and has another cost"),
            Self::Store(error) => write!(f, "the store failed: {error}"),
        }
    }
}

impl Error for ReservationError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Limiter, MemoryStore, Request, Rule};

    #[test]
    fn a_reservation_lasts_as_long_as_the_limiter_says() {
        let limit = Limit::fixed_window(9, Duration::from_secs(60)).unwrap();
        let rules = RuleSet::new([Rule::new("tokens", limit)]).unwrap();
        let limiter = Limiter::new(rules, MemoryStore::new()).with_reservation_ttl(Duration::from_secs(40));
        let reservation = limiter.reserve_now(&Request::new(""), None).unwrap().reservation().unwrap();
        assert_eq!(reservation.duration(), Duration::from_secs(40));
        let [commits, _] = reservation.commits(limiter.rules(), |_| None);
        assert_eq!(commits.iter().map(Adjustment::hold_duration).collect::<Vec<_>>(), [Some(reservation.duration())]);
    }
}
