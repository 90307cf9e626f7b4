//! `LeaseOwner`: who holds the slots that a request takes from concurrency limits.

use std::num::NonZeroU64;

use crate::random::random_u128;

/// The bound of the numbers, so that they are exact in a Lua number.
const NUMBER_BOUND: u64 = 1 << 53;

/// The owner of the slots that one request takes from concurrency limits: a random number of 53 bits. Only those who know it can renew
/// and release them, so a front end must sign it before it gives it to a client.
///
/// All slots of a request have the same owner, each under its own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseOwner(NonZeroU64);

impl LeaseOwner {
    /// A new owner. Two of them are equal with a probability of 2^-53.
    pub fn random() -> Self {
        Self::from_hash(random_u128())
    }

    /// The owner that a hash stands for.
    pub(crate) fn from_hash(hash: u128) -> Self {
        NonZeroU64::new(hash as u64 % NUMBER_BOUND).map_or(Self(NonZeroU64::MIN), Self)
    }

    /// The owner with this number, from 1 to 2^53 - 1.
    pub const fn from_number(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) if number.get() < NUMBER_BOUND => Some(Self(number)),
            _ => None,
        }
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_owners_are_exact_in_lua() {
        assert_eq!([0, 1 << 53, u64::MAX].map(LeaseOwner::from_number), [None; 3]);
        assert_eq!(
            [1, (1 << 53) - 1].map(|number| LeaseOwner::from_number(number).map(LeaseOwner::number)),
            [Some(1), Some((1 << 53) - 1)]
        );
        let owner = LeaseOwner::random();
        assert_eq!(LeaseOwner::from_number(owner.number()), Some(owner));
        assert_ne!(LeaseOwner::random(), owner);
    }
}
