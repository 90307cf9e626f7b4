//! `PeriodClock`: the time by which the periods of quotas are packed. The server decides by its own.
//!
//! A script is sent the period at this time with its neighbours, and picks by the time of the server. If that is in none of them, it
//! replies that they are stale and changes nothing; the store sends it the periods at the server's time, and sets this clock to it.
//!
//! All plans of the batch are sent again then.

use std::sync::atomic::{AtomicI64, Ordering};

use tidegate::{Clock, SystemClock, Timestamp};

/// How often a call is sent while its periods are stale. The second time it may share a batch with a plan that was packed before the
/// clock was set, and the whole batch is stale.
pub(crate) const MAX_STALE_ATTEMPTS: usize = 3;

/// The clock of this instance, corrected by the server's when they differ by more than a period.
#[derive(Debug, Default)]
pub(crate) struct PeriodClock {
    clock: SystemClock,
    /// How far the server is ahead, in microseconds.
    lead: AtomicI64,
}

/// The time of the periods in a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PackTime<'c> {
    /// That of a clock, which is read for quotas only.
    Clock(&'c PeriodClock),
    /// That of a server, or one that a test injects.
    At(Timestamp),
}

impl PeriodClock {
    fn now(&self) -> Timestamp {
        let now = self.clock.now().as_micros();
        Timestamp::from_micros(now.saturating_add_signed(self.lead.load(Ordering::Relaxed)))
    }

    /// Sets the clock to the time of a server.
    pub(crate) fn set(&self, now: Timestamp) {
        let own = self.clock.now().as_micros();
        self.lead.store(now.as_micros().wrapping_sub(own).cast_signed(), Ordering::Relaxed);
    }
}

impl PackTime<'_> {
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Clock(clock) => clock.now(),
            Self::At(now) => *now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_goes_on_from_there() {
        let clock = PeriodClock::default();
        for micros in [1_000_000_000_000_000, 4_000_000_000_000_000] {
            let server = Timestamp::from_micros(micros);
            clock.set(server);
            let now = PackTime::Clock(&clock).now();
            assert!(now >= server && now.since(server).as_secs() < 86_400, "{now:?}");
        }
    }
}
