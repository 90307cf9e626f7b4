//! `Polling`: waits for a condition. Its bound ends only a hang: no promise is about time.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// The time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The largest number of polls: two minutes, and longer on a busy machine.
const MAX_POLLS: u32 = 12_000;

/// Polls for one condition.
#[derive(Debug)]
pub(super) struct Polling {
    condition: &'static str,
    pause: Interval,
    polls: u32,
}

impl Polling {
    /// Polls until `condition`, in words.
    pub(super) fn until(condition: &'static str) -> Self {
        let mut pause = interval(POLL_INTERVAL);
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { condition, pause, polls: 0 }
    }

    /// Waits for the next poll, and panics with `details` if there were too many.
    pub(super) async fn pause(&mut self, details: impl FnOnce() -> String) {
        assert!(!self.is_over(), "{}: not within {MAX_POLLS} polls\n{}", self.condition, details());
        self.polls += 1;
        self.pause.tick().await;
    }

    /// Whether there were too many polls.
    pub(super) const fn is_over(&self) -> bool {
        self.polls >= MAX_POLLS
    }
}
