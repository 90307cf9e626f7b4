//! `Deadline`: when the timeout of a decision that takes several calls expires.

use std::time::Duration;

use tokio::time::Instant;

use crate::timeouts::Timeouts;
use crate::timer;

/// Longer timeouts are clamped to one year, so that arithmetic on instants does not overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(31_557_600);

/// When the timeout of a decision expires.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    timeout: Duration,
    end: Instant,
}

impl Deadline {
    /// The deadline of a decision that starts now.
    pub(crate) fn after(timeout: Duration) -> Self {
        let timeout = timeout.min(MAX_TIMEOUT);
        Self { timeout, end: timer::now() + timeout }
    }

    /// Time for the next of several calls: nine tenths of what is left, so that its result can still be used.
    pub(crate) fn time_for_next_call(self) -> Duration {
        self.remaining() / 10 * 9
    }

    /// The timeouts of the next call.
    pub(crate) fn timeouts(self) -> Timeouts {
        Timeouts::for_decision(self.remaining())
    }

    /// Time left to collect details after a final denial: at most half of what is left, so that the denial is in time, and
    /// at most a quarter of the timeout, which is long enough to notice a silent server.
    pub(crate) fn time_for_details(self) -> Duration {
        (self.timeout / 4).min(self.remaining() / 2)
    }

    fn remaining(self) -> Duration {
        self.end.saturating_duration_since(timer::now())
    }
}
