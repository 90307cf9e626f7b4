//! Random numbers that are the same in every run with the same seed.

use std::time::Duration;

use fastrand::Rng;

/// A generator of its own for each simulated person, so that one does not change the numbers of another.
pub(crate) fn seeded_rng(seed: u64, stream: u64) -> Rng {
    let base = Rng::with_seed(seed).u64(..);
    // The odd factor spreads neighboring streams over the whole state.
    Rng::with_seed(base ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A duration from `min` to `max`, both included, in whole microseconds.
pub(crate) fn random_duration(rng: &mut Rng, min: Duration, max: Duration) -> Duration {
    let micros = u64::try_from(max.saturating_sub(min).as_micros()).unwrap_or(u64::MAX);
    min + Duration::from_micros(rng.u64(..=micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_repeats_its_numbers_and_streams_differ() {
        let ten = |seed, stream| {
            let mut rng = seeded_rng(seed, stream);
            (0..10).map(|_| rng.u64(..1000)).collect::<Vec<_>>()
        };
        assert_eq!(ten(1, 7), ten(1, 7));
        assert_ne!(ten(1, 7), ten(1, 8));
        assert_ne!(ten(1, 7), ten(2, 7));
    }

    #[test]
    fn random_durations_include_both_bounds_and_nothing_outside() {
        let (min, max) = (Duration::from_micros(3), Duration::from_micros(5));
        let mut rng = seeded_rng(1, 1);
        let durations: Vec<_> = (0..100).map(|_| random_duration(&mut rng, min, max)).collect();
        assert_eq!((durations.iter().min(), durations.iter().max()), (Some(&min), Some(&max)));
    }
}
