//! `BoundsCache`: the periods around now, computed once for each period and read by every check without a lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

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

/// The bounds that were computed last. A reader never waits: it compares a sequence number before and after.
#[derive(Default)]
pub(super) struct BoundsCache {
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
        match self.read() {
            Some(bounds) if bounds.contains(now) => bounds,
            _ => self.replace(compute()),
        }
    }

    /// The first instant of the period with this index, if it is among the cached ones.
    pub(super) fn start_of(&self, index: u64) -> Option<u64> {
        self.read().filter(|bounds| bounds.starts[2] > 0)?.start_of(index)
    }

    /// The cached bounds; `None` while they are being written.
    #[inline]
    fn read(&self) -> Option<PeriodBounds> {
        let before = self.sequence.load(Ordering::Acquire);
        let starts = self.starts.each_ref().map(|start| start.load(Ordering::Relaxed));
        let bounds = PeriodBounds { index: self.index.load(Ordering::Relaxed), starts };
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(bounds)
    }

    #[cold]
    fn replace(&self, bounds: PeriodBounds) -> PeriodBounds {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.index.store(bounds.index, Ordering::Relaxed);
        for (start, value) in self.starts.iter().zip(bounds.starts) {
            start.store(value, Ordering::Relaxed);
        }
        self.sequence.store(before + 2, Ordering::Release);
        drop(writing);
        bounds
    }
}
