//! `Lease`: the slots of concurrency limits that a request holds.
//!
//! The owner of a slot is a random number that the plan carries, and the position of the take is the owner. So a release is an
//! ordinary refund, and everything that refunds gives slots back, too. The owner is known before the call: the limiter also releases
//! slots that a store may have granted to a caller that went away, or whose reply was lost.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::store::Adjustment;
use crate::{Receipt, RuleSet, StoreError};

/// The slots that a request holds, from [`Decision::lease`](crate::Decision::lease). Dropping it does not release them: they run out
/// after their [duration](Self::duration). [`Limiter::hold`](crate::Limiter::hold) renews and releases them.
///
/// ```
/// # use std::time::Duration;
/// use tidegate::{Limit, Limiter, MemoryStore, Request, Rule, RuleSet};
///
/// # async fn export() -> Result<(), Box<dyn std::error::Error>> {
/// let limit = Limit::concurrency(3, Duration::from_secs(30))?;
/// let limiter = Limiter::new(RuleSet::new([Rule::new("exports", limit)])?, MemoryStore::new());
///
/// let decision = limiter.check(&Request::new("export")).await?;
/// if let Some(lease) = decision.lease() {
///     // … some of the work, within 30 seconds
///     limiter.renew(&lease).await?;
///     // … the rest of it
///     limiter.release(lease).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "slots that are not released are held until they run out"]
pub struct Lease {
    /// Slots in the store.
    stored: Receipt,
    /// Slots in the memory of this instance, taken while the store failed.
    local: Receipt,
    duration: Duration,
}

/// Why slots were not renewed or released.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LeaseError {
    /// Some of the slots are no longer held: they have run out, were released, or were given up because the limit was lowered. Others
    /// may hold them. The remaining ones were renewed or released.
    NotHeld,
    /// The store failed. The slots are held until they run out; the call may be repeated.
    Store(StoreError),
}

/// What a renewal does about a slot that the store does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retake {
    /// The slot may have run out: it is not held.
    No,
    /// Less than the lease has passed since the slot was last known to be held, so the store has lost it: it is taken again if it fits.
    IfLost,
}

impl Lease {
    /// `None` if nothing is held.
    pub(crate) fn new(stored: Receipt, local: Receipt, duration: Duration) -> Option<Self> {
        let is_empty = stored.is_empty() && local.is_empty();
        (!is_empty).then_some(Self { stored, local, duration })
    }

    /// The lease of another process, from the receipt of its [slots](Self::stored) and the current rules. `None` if no limit under which
    /// it held slots exists any more.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tidegate::{Lease, Limit, Limiter, MemoryStore, Receipt, Request, Rule, RuleSet};
    ///
    /// # let rules = RuleSet::new([Rule::new("exports", Limit::concurrency(3, Duration::from_secs(30))?)])?;
    /// # let limiter = Limiter::new(rules, MemoryStore::new());
    /// let lease = limiter.check_now(&Request::new("export")).lease().expect("a free slot");
    /// let bytes = lease.stored().to_bytes();
    /// let receipt = Receipt::from_bytes(&bytes).expect("our own bytes");
    /// assert_eq!(Lease::from_stored(receipt, limiter.rules()), Some(lease));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_stored(receipt: Receipt, rules: &RuleSet) -> Option<Self> {
        Self::from_receipts(receipt, Receipt::default(), rules)
    }

    /// The same with the slots in the [memory](Self::local) of the instance that took them. Other instances do not hold those.
    pub fn from_receipts(stored: Receipt, local: Receipt, rules: &RuleSet) -> Option<Self> {
        let lease = Self { stored, local, duration: Duration::ZERO };
        let duration = lease.current_duration(rules)?;
        Some(Self { duration, ..lease })
    }

    /// How long the slots are held without a renewal: the shortest of their leases.
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// The shortest lease of the slots under the current rules. `None` if no limit of them exists any more.
    pub(crate) fn current_duration(&self, rules: &RuleSet) -> Option<Duration> {
        let [stored, local] = self.renewals(rules, Retake::No);
        stored.iter().chain(&local).map(|slot| slot.limit.max_window()).min()
    }

    /// The receipt of the slots in the store, for another process that renews and releases them. Sign its bytes: whoever can forge them
    /// can release the slots of others.
    pub const fn stored(&self) -> &Receipt {
        &self.stored
    }

    /// The receipt of the slots in the memory of this instance, taken while the store failed. It is of no use to other processes.
    pub const fn local(&self) -> &Receipt {
        &self.local
    }

    /// The releases in the store under the current rules, and those in the memory of this instance.
    pub(crate) fn releases<'r>(&self, rules: &'r RuleSet) -> [Vec<Adjustment<'r>>; 2] {
        [&self.stored, &self.local].map(|slots| slots.releases(rules))
    }

    /// The renewals in the store under the current rules, and those in the memory of this instance, which loses no slots.
    pub(crate) fn renewals<'r>(&self, rules: &'r RuleSet, retake: Retake) -> [Vec<Adjustment<'r>>; 2] {
        [self.stored.renewals(rules, retake), self.local.renewals(rules, Retake::No)]
    }
}

impl fmt::Display for LeaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHeld => {
                f.write_str("the slot is no longer held: it has run out, was released, or its limit was lowered")
            }
            Self::Store(error) => write!(f, "the slot was neither renewed nor released: {error}"),
        }
    }
}

impl Error for LeaseError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotHeld => None,
            Self::Store(error) => Some(error),
        }
    }
}
