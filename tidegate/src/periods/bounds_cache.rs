//! `BoundsCache`: the periods around now, computed once for each period and read by every check without a lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::sync::Mutex;

/// A period and its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeriodBounds {
    /// The index of the period in the middle. Indexes of a length of periods grow by one from period to period, in all time zones alike.
    pub index: u64,
    /// The first instants of the period before, of this one, of the next one, and of the one after that, in microseconds. A day that
    /// a time zone skipped is an empty period.
    pub starts: [u64; 4],
}

impl PeriodBounds {
    const fn contains(&self, now: u64) -> bool {
        self.starts[1] <= now && now < self.starts[2]
    }

    /// The first instant of the period with this index, if it is one of these.
    fn start_of(&self, index: u64) -> Option<u64> {
        let at = index.checked_add(1)?.checked_sub(self.index)?;
        self.starts.get(usize::try_from(at).ok()?).copied()
    }
}

/// The bounds of two periods that follow each other: those of this instance and of a store whose time is a little different.
#[derive(Default)]
pub(super) struct BoundsCache {
    even: CachedBounds,
    odd: CachedBounds,
}

/// The bounds of the period with an even or odd index that were computed last. A reader never waits: it compares a sequence number before
/// and after.
#[derive(Default)]
struct CachedBounds {
    /// Odd while the numbers are being written.
    sequence: AtomicU64,
    index: AtomicU64,
    starts: [AtomicU64; 4],
    writing: Mutex<()>,
}

impl BoundsCache {
    /// The bounds of the period that contains `now`.
    #[inline]
    pub(super) fn get_or_compute(&self, now: u64, compute: impl FnOnce() -> PeriodBounds) -> PeriodBounds {
        let cached = |cached: &CachedBounds| cached.read().filter(|bounds| bounds.contains(now));
        cached(&self.even).or_else(|| cached(&self.odd)).unwrap_or_else(|| self.replace(compute()))
    }

    /// The first instant of the period with this index, if it is among the cached ones.
    pub(super) fn start_of(&self, index: u64) -> Option<u64> {
        [&self.even, &self.odd].into_iter().filter_map(CachedBounds::read).find_map(|bounds| bounds.start_of(index))
    }

    #[cold]
    fn replace(&self, bounds: PeriodBounds) -> PeriodBounds {
        let cached = if bounds.index.is_multiple_of(2) { &self.even } else { &self.odd };
        cached.write(bounds);
        bounds
    }
}

impl CachedBounds {
    /// The bounds; `None` while they are being written, and before.
    #[inline]
    fn read(&self) -> Option<PeriodBounds> {
        let before = self.sequence.load(Ordering::Acquire);
        let starts = self.starts.each_ref().map(|start| start.load(Ordering::Relaxed));
        let bounds = PeriodBounds { index: self.index.load(Ordering::Relaxed), starts };
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        (before == after && before > 0 && before.is_multiple_of(2)).then_some(bounds)
    }

    fn write(&self, bounds: PeriodBounds) {
        let writing = self.writing.lock();
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.index.store(bounds.index, Ordering::Relaxed);
        for (start, value) in self.starts.iter().zip(bounds.starts) {
            start.store(value, Ordering::Relaxed);
        }
        self.sequence.store(before + 2, Ordering::Release);
        drop(writing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(index: u64) -> PeriodBounds {
        PeriodBounds { index, starts: [index - 1, index, index + 1, index + 2].map(|index| index * 100) }
    }

    #[test]
    fn two_periods_that_follow_each_other_are_computed_once() {
        let cache = BoundsCache::default();
        assert_eq!(cache.start_of(0), None);
        let get = |now: u64, computed: &mut u64| {
            cache.get_or_compute(now, || {
                *computed += 1;
                bounds(now / 100)
            })
        };
        let mut computed = 0;
        for now in [750, 820, 799, 800, 701, 899] {
            assert_eq!(get(now, &mut computed), bounds(now / 100), "{now}");
        }
        assert_eq!(computed, 2);
        assert_eq!(
            [5, 6, 7, 8, 9, 10, 11].map(|index| cache.start_of(index)),
            [None, Some(600), Some(700), Some(800), Some(900), Some(1000), None]
        );
        assert_eq!((get(900, &mut computed), computed), (bounds(9), 3));
    }
}
