//! `Random`: reproducible random numbers.

/// `SplitMix64`, by Steele, Lea and Flood.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A hash of 128 bits.
    pub(crate) fn hash(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A number from 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// An exponentially distributed waiting time with mean 1.
    pub(crate) fn wait(&mut self) -> f64 {
        -(1.0 - self.share()).ln()
    }

    /// `count` uniformly distributed indices below `keys`.
    pub(crate) fn uniform(&mut self, keys: usize, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(keys) as u32).collect()
    }

    /// `count` Zipf-distributed indices below `keys`. Ranks are shuffled, so that frequent keys are not adjacent in memory.
    pub(crate) fn zipf(&mut self, keys: usize, count: usize) -> Vec<u32> {
        let mut by_rank: Vec<u32> = (0..keys as u32).collect();
        // The same shuffle for every caller, so that two threads have the same frequent keys.
        let mut shuffle = Self::new(0);
        (1..keys).rev().for_each(|last| by_rank.swap(last, shuffle.below(last + 1)));

        let mut total = 0.0;
        let sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                total += 1.0 / rank as f64;
                total
            })
            .collect();
        let mut random = || {
            let point = self.share() * total;
            by_rank[sums.partition_point(|sum| *sum <= point).min(keys - 1)]
        };
        (0..count).map(|_| random()).collect()
    }
}
