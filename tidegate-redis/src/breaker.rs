//! `Breaker`: whether calls are sent to a server. A pure state machine: it reads no clock and does no I/O. The task of the
//! connection alone reports to it; what callers do has no effect on it.
//!
//! ```text
//! closed ───────────── silence, or a lost connection ────────────────▶ open
//!   ▲                                                                  │  ▲
//!   │ the trial is answered                           a new connection │  │ silence, or a lost connection
//!   └──────────────────────────── half open ◀──────────────────────────┘  │
//!                             the task's own trial ───────────────────────┘
//! ```
//!
//! The trial is a script call that takes nothing. An error reply such as `OOM` is an answer: it arrives quickly, and the next
//! call may succeed.

use std::time::Duration;

/// Delay before the second connection attempt; it doubles with each failure. The first attempt is made at once.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(10);

/// The longest delay between two connection attempts.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The circuit breaker of one server.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: BreakerState,
    /// Failed connection attempts, and connections lost before a call was answered, since a call was last answered.
    failures: u32,
    /// Whether a call was answered on the current connection.
    answered: bool,
    opened: u64,
}

/// State of the circuit breaker of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls are sent.
    #[default]
    Closed,
    /// The server does not respond: calls fail at once until a new connection answers.
    Open,
    /// A new connection is tried with a script call that takes nothing; calls fail at once.
    HalfOpen,
}

impl Breaker {
    /// Records a new connection, which is tried next.
    pub(crate) fn record_connected(&mut self) {
        self.answered = false;
        if self.state == BreakerState::Open {
            self.state = BreakerState::HalfOpen;
        }
    }

    /// Records that the trial was answered: calls are sent.
    pub(crate) fn record_trial_answered(&mut self) {
        self.state = BreakerState::Closed;
    }

    /// Records that a call was answered. Only that ends the growth of the reconnect delay: a server that answers trials and
    /// nothing else is not reconnected to in a tight loop.
    pub(crate) fn record_answer(&mut self) {
        self.answered = true;
        self.failures = 0;
    }

    /// Records that the server is silent or the connection lost.
    pub(crate) fn record_lost(&mut self) {
        self.failures = self.failures.saturating_add(u32::from(!self.answered));
        self.answered = false;
        self.open();
    }

    /// Records that a connection attempt has failed.
    pub(crate) fn record_connect_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
        if self.state != BreakerState::Open {
            self.open();
        }
    }

    /// Records that the first connection takes longer than callers wait. The attempt continues.
    pub(crate) fn record_slow_connect(&mut self) {
        if self.state == BreakerState::Closed {
            self.open();
        }
    }

    /// Delay before the next connection attempt.
    pub(crate) fn reconnect_delay(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => MIN_RECONNECT_DELAY.saturating_mul(1 << (failures - 1).min(10)).min(MAX_RECONNECT_DELAY),
        }
    }

    pub(crate) const fn state(&self) -> BreakerState {
        self.state
    }

    /// How often the breaker has opened.
    pub(crate) const fn opened(&self) -> u64 {
        self.opened
    }

    fn open(&mut self) {
        self.opened += 1;
        self.state = BreakerState::Open;
    }
}

impl BreakerState {
    /// The name of the state in HTTP bodies and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A breaker with a connection that has answered its trial and a call.
    fn closed_breaker() -> Breaker {
        let mut breaker = Breaker::default();
        breaker.record_connected();
        breaker.record_trial_answered();
        breaker.record_answer();
        breaker
    }

    #[test]
    fn the_names_of_states_are_those_of_the_metrics() {
        let names = [BreakerState::Closed, BreakerState::Open, BreakerState::HalfOpen].map(BreakerState::as_str);
        assert_eq!(names, ["closed", "open", "half_open"]);
    }

    #[test]
    fn silence_opens_the_breaker_at_once_and_an_answered_trial_closes_it() {
        let mut breaker = closed_breaker();
        breaker.record_lost();
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
        breaker.record_connected();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.record_trial_answered();
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Closed, 1));
    }

    #[test]
    fn a_failed_trial_opens_the_breaker_again() {
        let mut breaker = closed_breaker();
        breaker.record_lost();
        breaker.record_connected();
        breaker.record_lost();
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 2));
    }

    #[test]
    fn a_connection_that_replaces_a_working_one_leaves_the_breaker_closed() {
        let mut breaker = closed_breaker();
        breaker.record_connected();
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Closed, 0));
    }

    #[test]
    fn the_reconnect_delay_doubles_up_to_a_second_and_an_answered_call_resets_it() {
        let mut breaker = closed_breaker();
        breaker.record_lost();
        let mut delays = vec![breaker.reconnect_delay().as_millis()];
        for _ in 0..9 {
            breaker.record_connect_failure();
            delays.push(breaker.reconnect_delay().as_millis());
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        breaker.record_connected();
        breaker.record_trial_answered();
        breaker.record_lost();
        assert_eq!(breaker.reconnect_delay(), MAX_RECONNECT_DELAY, "an answered trial does not reset the delay");
        breaker.record_connected();
        breaker.record_trial_answered();
        breaker.record_answer();
        breaker.record_lost();
        assert_eq!((breaker.reconnect_delay(), breaker.opened()), (Duration::ZERO, 3));
    }

    #[test]
    fn a_failed_or_slow_first_connection_opens_the_breaker() {
        for fail in [Breaker::record_connect_failure, Breaker::record_slow_connect] {
            let mut breaker = Breaker::default();
            fail(&mut breaker);
            assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
            breaker.record_connected();
            assert_eq!(breaker.state(), BreakerState::HalfOpen);
        }
    }
}
