//! Random numbers for keys of hashes, from the random seed of the standard library.

use std::hash::{BuildHasher, RandomState};

/// A random number that nobody outside this process can predict.
pub(crate) fn random_u128() -> u128 {
    // Each `RandomState` has a key of its own, made from randomness of the operating system.
    let half = || u128::from(RandomState::new().hash_one("tidegate"));
    half() << 64 | half()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_random_numbers_differ() {
        assert_ne!(random_u128(), random_u128());
    }
}
