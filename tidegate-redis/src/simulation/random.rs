//! Random choices of the simulation, reproducible by seed.

use std::time::Duration;

use fastrand::Rng;

/// A duration of up to `max` milliseconds.
pub(super) fn millis(rng: &mut Rng, max: u64) -> Duration {
    Duration::from_millis(rng.u64(..=max))
}

/// True with a probability of one in `n`.
pub(super) fn one_in(rng: &mut Rng, n: u64) -> bool {
    rng.u64(..n) == 0
}

/// One of `choices`.
pub(super) fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}
