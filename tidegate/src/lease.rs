//! `Lease`: the slots of concurrency limits that a request holds.

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

/// Why slots were not renewed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RenewError {
    /// Some of the slots are no longer held: they have run out, were released, or were given up because the limit was lowered. Others
    /// may hold them. The remaining ones were renewed.
    Lost,
    /// The store failed. The slots are held until they run out; the renewal may be repeated.
    Store(StoreError),
}

impl Lease {
    /// `None` if nothing is held.
    pub(crate) fn new(stored: Receipt, local: Receipt, duration: Duration) -> Option<Self> {
        let is_empty = stored.is_empty() && local.is_empty();
        (!is_empty).then_some(Self { stored, local, duration })
    }

    /// How long the slots are held without a renewal: the shortest of their leases.
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// The receipt of the slots in the store, for another process that renews and releases them. Sign its bytes: whoever can forge them
    /// can release the slots of others.
    pub const fn stored(&self) -> &Receipt {
        &self.stored
    }

    /// The releases in the store under the current rules, and those in the memory of this instance.
    pub(crate) fn releases<'r>(&self, rules: &'r RuleSet) -> [Vec<Adjustment<'r>>; 2] {
        [&self.stored, &self.local].map(|slots| slots.refunds(rules))
    }

    /// The renewals in the store under the current rules, and those in the memory of this instance.
    pub(crate) fn renewals<'r>(&self, rules: &'r RuleSet) -> [Vec<Adjustment<'r>>; 2] {
        [&self.stored, &self.local].map(|slots| slots.renewals(rules))
    }
}

impl fmt::Display for RenewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => {
                f.write_str("the slot is no longer held: it has run out, was released, or its limit was lowered")
            }
            Self::Store(error) => write!(f, "the slot was not renewed: {error}"),
        }
    }
}

impl Error for RenewError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost => None,
            Self::Store(error) => Some(error),
        }
    }
}
