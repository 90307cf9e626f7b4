//! `Deadline`: until when a decision that takes several calls has to be made.

use std::time::Duration;

use tokio::time::Instant;

use crate::timeouts::Timeouts;
use crate::timer;

/// Until when a decision has to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    timeouts: Timeouts,
    end: Instant,
}

impl Deadline {
    /// The deadline of a decision that starts now: its own, or after the longest time that one call takes.
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        let latest = timer::after(timer::now(), timeouts.total());
        Self { timeouts, end: timeouts.end().map_or(latest, |end| end.min(latest)) }
    }

    /// The timeouts of the next of several calls: nine tenths of the time left, so that its result can still be used.
    pub(crate) fn next_call(self) -> Timeouts {
        self.timeouts_for(self.remaining() / 10 * 9)
    }

    /// The timeouts of a call that may use half of the time left.
    pub(crate) fn half(self) -> Timeouts {
        self.timeouts_for(self.remaining() / 2)
    }

    /// The timeouts of a call that ends within `limit`.
    pub(crate) fn timeouts_for(self, limit: Duration) -> Timeouts {
        let end = timer::after(timer::now(), limit).min(self.end);
        self.timeouts.with_deadline(Some(end))
    }

    /// Time left to collect details after a final denial: at most half of what is left, so that the denial is in time, and
    /// at most one budget, within which a server that is not silent has sent something.
    pub(crate) fn time_for_details(self) -> Duration {
        self.timeouts.budget.min(self.remaining() / 2)
    }

    fn remaining(self) -> Duration {
        self.end.saturating_duration_since(timer::now())
    }
}
