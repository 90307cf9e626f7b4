//! `GrantError`: why a grant was not made, renewed or ended.

use std::error::Error;
use std::fmt;

use crate::StoreError;
use crate::spi::HoldRefusal;

/// Why a reservation was not made, or a grant not renewed or ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GrantError {
    /// Nothing of a reservation, or not every slot of a lease, is held any more: it has run out or ended, its limit was lowered, or its rules were
    /// removed or have other windows or periods now. The remaining slots were renewed or released.
    NotHeld,
    /// The reservation was committed or released before, in another way. Limits that remember that are unchanged. Others, which had not been
    /// reached or have lost it, are committed or released by this call.
    AlreadyEnded,
    /// A reservation with this idempotency key exists and has another cost.
    KeyReused,
    /// The store failed. The call may be repeated with the same grant.
    Store(StoreError),
}

impl From<HoldRefusal> for GrantError {
    fn from(refusal: HoldRefusal) -> Self {
        match refusal {
            HoldRefusal::KeyReused => Self::KeyReused,
            HoldRefusal::AlreadyEnded => Self::AlreadyEnded,
        }
    }
}

impl From<StoreError> for GrantError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHeld => {
                f.write_str("it is no longer held: it has run out or ended, or its limit was changed or removed")
            }
            Self::AlreadyEnded => f.write_str("the reservation was committed or released before, in another way"),
            Self::KeyReused => f.write_str("a reservation with this idempotency key exists and has another cost"),
            Self::Store(error) => write!(f, "the store failed: {error}"),
        }
    }
}

impl Error for GrantError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}
