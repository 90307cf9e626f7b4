//! `Index`: where the drivers are. It takes some 3,000 positions a second, one after the other; those that have to wait make each
//! further one slower, as pages split, logs grow and locks are fought for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Timer, Timestamp};

/// What a write takes while nobody waits: 3,500 a second.
const WRITE: Duration = Duration::from_micros(285);

/// With so much work waiting, a write takes twice as long; with twice as much, three times.
const STRAIN: Duration = Duration::from_millis(200);

/// It gets no slower than that many times.
const SLOWEST: f64 = 5.0;

/// With so much work waiting, a position is not taken.
const FULL: Duration = Duration::from_secs(10);

/// The index of positions.
pub(crate) struct Index {
    /// When all that was taken will be written.
    free: Mutex<Timestamp>,
    timer: Arc<dyn Timer>,
    written: AtomicU64,
}

impl Index {
    pub(crate) fn new(timer: Arc<dyn Timer>) -> Self {
        Self { free: Mutex::new(timer.now()), timer, written: AtomicU64::new(0) }
    }

    /// Writes a position when its turn comes. Whether that was done: it is not if too many wait.
    pub(crate) async fn write(&self) -> bool {
        let now = self.timer.now();
        let Some(done) = self.take(now) else { return false };
        self.timer.sleep(done.since(now)).await;
        self.written.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// How much work waits.
    pub(crate) fn behind(&self) -> Duration {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).since(self.timer.now())
    }

    /// How many positions were written.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// When a position that comes now is written.
    fn take(&self, now: Timestamp) -> Option<Timestamp> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = free.since(now);
        if behind > FULL {
            return None;
        }
        let slower = (1.0 + behind.as_secs_f64() / STRAIN.as_secs_f64()).min(SLOWEST);
        *free = now.max(*free).plus(WRITE.mul_f64(slower));
        Some(*free)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Clock, ManualClock};

    use super::*;

    #[test]
    fn what_comes_evenly_is_written_at_once() {
        let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
        let index = Index::new(Arc::new(clock.clone()));
        for _ in 0..9000 {
            clock.advance(Duration::from_micros(334));
            assert!(index.take(clock.now()).is_some());
            assert!(index.behind() < Duration::from_millis(1));
        }
    }

    #[test]
    fn what_comes_at_once_takes_much_longer_than_its_share() {
        let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
        let index = Index::new(Arc::new(clock.clone()));
        (0..4500).for_each(|_| assert!(index.take(clock.now()).is_some()));
        assert!(index.behind() > Duration::from_secs(4), "three times of 1.3 s: {:?}", index.behind());
        while index.take(clock.now()).is_some() {}
        assert!(index.behind() > FULL);
    }
}
