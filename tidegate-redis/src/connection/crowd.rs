//! Crowding: which waiting plans are refused first when there are too many. The *crowd* of a plan is the smallest number of
//! waiting plans that share one of its keys. A plan that is alone with one of its keys is never crowded, so a flood by one
//! subject does not push out others.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash of a key, with a random seed.
pub(crate) type KeyHash = u64;

/// A map by [`KeyHash`], which is not hashed again.
type KeyMap<V> = HashMap<KeyHash, V, BuildHasherDefault<KeyHashHasher>>;

/// How many waiting plans share each key.
#[derive(Default)]
pub(crate) struct KeyCounts(KeyMap<usize>);

/// Takes a [`KeyHash`] as it is.
#[derive(Default)]
struct KeyHashHasher(u64);

impl KeyCounts {
    /// Counts the keys of `plans`.
    pub(crate) fn of_plans<P: IntoIterator<Item = KeyHash>>(plans: impl Iterator<Item = P>) -> Self {
        let mut counts = KeyMap::default();
        for key in plans.flatten() {
            *counts.entry(key).or_insert(0) += 1;
        }
        Self(counts)
    }

    /// The crowd of a plan with these keys, and the key that it is counted under. A plan without keys is alone.
    pub(crate) fn crowd(&self, keys: impl IntoIterator<Item = KeyHash>) -> (usize, KeyHash) {
        let crowds = keys.into_iter().map(|key| (self.0.get(&key).copied().unwrap_or(0), key));
        crowds.min().unwrap_or((1, 0))
    }
}

/// Chooses which plans to refuse: at least `wanted` of them if that many are crowded. The largest crowds shrink first, down to
/// a common level, and of each crowd the newest plans go. `plans` is in the order of arrival; the indexes of the chosen ones
/// are returned in the same order.
pub(crate) fn choose_crowded<P: IntoIterator<Item = KeyHash>>(
    plans: impl Iterator<Item = P> + Clone,
    wanted: usize,
) -> Vec<usize> {
    let counts = KeyCounts::of_plans(plans.clone());
    let keys: Vec<KeyHash> = plans.map(|plan| counts.crowd(plan).1).collect();
    let mut sizes = KeyMap::default();
    for key in &keys {
        *sizes.entry(*key).or_insert(0) += 1;
    }
    // A crowd is smaller than its key's count if some of its members are counted under another key.
    let level = level_for(sizes.values().copied().collect(), wanted);
    let mut kept = KeyMap::default();
    let mut chosen = Vec::with_capacity(wanted);
    for (index, key) in keys.iter().enumerate() {
        let kept = kept.entry(*key).or_insert(0);
        if *kept < level {
            *kept += 1;
        } else {
            chosen.push(index);
        }
    }
    chosen
}

/// Chooses which of more plans than fit are sent next, and in which order: of each crowd the oldest plan, then of each the
/// second, and so on. So a plan that is alone with one of its keys does not wait for a flood. Calls `crowded` with the index of
/// each plan that is not alone.
pub(crate) fn choose_fairly<P: IntoIterator<Item = KeyHash>>(
    plans: impl Iterator<Item = P> + Clone,
    wanted: usize,
    mut crowded: impl FnMut(usize),
) -> Vec<usize> {
    let counts = KeyCounts::of_plans(plans.clone());
    let mut in_line = KeyMap::default();
    let mut ranks: Vec<(usize, usize)> = Vec::new();
    for (index, plan) in plans.enumerate() {
        let (crowd, key) = counts.crowd(plan);
        if crowd > 1 {
            crowded(index);
        }
        let before = in_line.entry(key).or_insert(0);
        ranks.push((*before, index));
        *before += 1;
    }
    if wanted < ranks.len() {
        ranks.select_nth_unstable(wanted);
        ranks.truncate(wanted);
    }
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, index)| index).collect()
}

/// The largest level, at least 1, such that cutting `sizes` down to it removes `wanted`.
fn level_for(mut sizes: Vec<usize>, wanted: usize) -> usize {
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let mut sum = 0;
    for (index, size) in sizes.iter().enumerate() {
        sum += size;
        let next = sizes.get(index + 1).copied().unwrap_or(0);
        // With the first `index + 1` sizes cut to `level`, `sum - (index + 1) * level` are removed.
        let cut = index + 1;
        if sum.saturating_sub(cut * next) >= wanted {
            return (sum.saturating_sub(wanted) / cut).max(next).max(1);
        }
    }
    1
}

impl Hasher for KeyHashHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plans of `crowds`: for each, a key of its own and how many plans have it; all share key 0.
    fn plans(crowds: &[(KeyHash, usize)]) -> Vec<[KeyHash; 2]> {
        crowds.iter().flat_map(|(key, count)| std::iter::repeat_n([0, *key], *count)).collect()
    }

    fn refused(crowds: &[(KeyHash, usize)], wanted: usize) -> Vec<usize> {
        let plans = plans(crowds);
        let chosen = choose_crowded(plans.iter().copied(), wanted);
        crowds.iter().map(|(key, _)| chosen.iter().filter(|index| plans[**index][1] == *key).count()).collect()
    }

    #[test]
    fn the_hash_of_a_key_is_used_as_it_is_and_every_byte_of_others_counts() {
        let mut hasher = KeyHashHasher::default();
        hasher.write_u64(0xFF00_0000_0000_0000);
        assert_eq!(hasher.finish(), 0xFF00_0000_0000_0000);
        hasher.write(&[0xFF, 0x12, 0x34]);
        assert_eq!(hasher.finish(), 0x1234);
    }

    #[test]
    fn the_largest_crowds_shrink_first_to_a_common_level() {
        assert_eq!(refused(&[(1, 10), (2, 4), (3, 1)], 3), [3, 0, 0]);
        assert_eq!(refused(&[(1, 10), (2, 4), (3, 1)], 8), [7, 1, 0]);
        assert_eq!(refused(&[(1, 10), (2, 4), (3, 1)], 12), [9, 3, 0], "one of each stays");
        assert_eq!(refused(&[(1, 10), (2, 4), (3, 1)], 100), [9, 3, 0]);
    }

    #[test]
    fn plans_that_are_alone_with_a_key_are_never_chosen() {
        assert_eq!(refused(&[(1, 1), (2, 1), (3, 1)], 2), [0, 0, 0]);
        assert!(choose_crowded([[0_u64; 0]; 5].into_iter(), 2).len() <= 4, "plans without keys");
    }

    #[test]
    fn the_newest_of_a_crowd_are_chosen() {
        let plans = plans(&[(1, 5), (2, 1)]);
        assert_eq!(choose_crowded(plans.iter().copied(), 2), [3, 4]);
    }

    #[test]
    fn a_plan_that_is_alone_with_a_key_is_sent_before_a_flood() {
        let plans = plans(&[(1, 6), (2, 3), (3, 1)]);
        let chosen = |wanted| choose_fairly(plans.iter().copied(), wanted, |_| {});
        assert_eq!(chosen(3), [0, 6, 9], "the oldest of each");
        assert_eq!(chosen(5), [0, 6, 9, 1, 7]);
        assert_eq!(chosen(10).len(), 10);
        assert_eq!(chosen(0), [] as [usize; 0]);
        let mut crowded = Vec::new();
        choose_fairly(plans.iter().copied(), 1, |index| crowded.push(index));
        assert_eq!(crowded, (0..9).collect::<Vec<_>>(), "all but the last");
    }

    /// One plan may be counted under a key that others have in common with it only in part.
    #[test]
    fn at_least_the_wanted_number_is_chosen_from_large_crowds() {
        for wanted in 0..60 {
            let crowds = [(1, 30), (2, 20), (3, 20), (4, 1), (5, 1)];
            let total: usize = refused(&crowds, wanted).iter().sum();
            assert!((wanted..wanted + 3).contains(&total), "{wanted}: {total}");
        }
    }
}
