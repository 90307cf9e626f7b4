//! `Draw`: chance that is the same in every run with the same seed.

use std::time::Duration;

/// `SplitMix64`, by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    /// The chance of one of many, each with its own.
    pub(crate) fn of(seed: u64, who: u64) -> Self {
        let mut draw = Self(seed);
        draw.0 = draw.next() ^ who.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        draw
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A time between two, in whole microseconds.
    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let micros = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
        least + Duration::from_micros(self.below(micros.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_and_everybody_draws_something_else() {
        let ten = |seed, who| {
            let mut draw = Draw::of(seed, who);
            (0..10).map(|_| draw.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(ten(1, 7), ten(1, 7));
        assert_ne!(ten(1, 7), ten(1, 8));
        assert_ne!(ten(1, 7), ten(2, 7));
    }

    #[test]
    fn what_is_drawn_stays_within_its_bounds_and_reaches_both() {
        let (least, most) = (Duration::from_micros(3), Duration::from_micros(5));
        let mut draw = Draw::of(1, 1);
        let drawn: Vec<_> = (0..100).map(|_| draw.between(least, most)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&least), Some(&most)));
    }
}
