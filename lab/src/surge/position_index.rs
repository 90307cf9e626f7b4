//! `PositionIndex`: the index of driver positions in the simulated service. It writes about 3,500 positions a second, one after
//! the other. A backlog slows down each further write, as page splits, growing logs and lock contention do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::sync::Mutex;
use tidegate::{Timer, Timestamp};

/// Duration of a write without a backlog.
const WRITE_TIME: Duration = Duration::from_micros(285);

/// A backlog of this size doubles the duration of a write; twice this size triples it.
const SLOWDOWN_BACKLOG: Duration = Duration::from_millis(200);

/// The slowest write, as a multiple of [`WRITE_TIME`].
const MAX_SLOWDOWN: f64 = 5.0;

/// With a larger backlog positions are rejected.
const MAX_BACKLOG: Duration = Duration::from_secs(10);

pub(crate) struct PositionIndex {
    /// When all accepted positions will be written.
    idle_at: Mutex<Timestamp>,
    timer: Arc<dyn Timer>,
    written: AtomicU64,
}

impl PositionIndex {
    pub(crate) fn new(timer: Arc<dyn Timer>) -> Self {
        Self { idle_at: Mutex::new(timer.now()), timer, written: AtomicU64::new(0) }
    }

    /// Writes a position after those before it. Returns `false` if the backlog is too large.
    pub(crate) async fn write(&self) -> bool {
        let now = self.timer.now();
        let Some(done_at) = self.reserve(now) else { return false };
        self.timer.sleep(done_at.since(now)).await;
        self.written.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The time until all accepted positions are written.
    pub(crate) fn backlog(&self) -> Duration {
        self.idle_at.lock().since(self.timer.now())
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// When a position that arrives now will be written; `None` if the backlog is too large.
    fn reserve(&self, now: Timestamp) -> Option<Timestamp> {
        let mut idle_at = self.idle_at.lock();
        let backlog = idle_at.since(now);
        if backlog > MAX_BACKLOG {
            return None;
        }
        let slowdown = (1.0 + backlog.as_secs_f64() / SLOWDOWN_BACKLOG.as_secs_f64()).min(MAX_SLOWDOWN);
        *idle_at = now.max(*idle_at).plus(WRITE_TIME.mul_f64(slowdown));
        Some(*idle_at)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Clock, ManualClock};

    use super::*;

    #[test]
    fn evenly_spaced_positions_cause_no_backlog() {
        let clock = ManualClock::starting_at(Timestamp::from_micros(1_000_000));
        let index = PositionIndex::new(Arc::new(clock.clone()));
        for _ in 0..9000 {
            clock.advance(Duration::from_micros(334));
            assert!(index.reserve(clock.now()).is_some());
            assert!(index.backlog() < Duration::from_millis(1));
        }
    }

    #[test]
    fn a_burst_of_positions_slows_down_every_write() {
        let clock = ManualClock::starting_at(Timestamp::from_micros(1_000_000));
        let index = PositionIndex::new(Arc::new(clock.clone()));
        (0..4500).for_each(|_| assert!(index.reserve(clock.now()).is_some()));
        assert!(index.backlog() > Duration::from_secs(4), "three times 1.3 s: {:?}", index.backlog());
        while index.reserve(clock.now()).is_some() {}
        assert!(index.backlog() > MAX_BACKLOG);
    }
}
