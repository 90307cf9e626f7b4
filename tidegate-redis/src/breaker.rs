//! `Breaker`: whether calls are sent to a server. A pure state machine: it reads no clock and does no I/O, and callers
//! report the outcome of each call.
//!
//! ```text
//! closed ──── three timeouts in a row, or a lost connection ──────────▶ open
//!   ▲                                                                   │  ▲
//!   │ a response                        a new connection answers a PING │  │ timeout or lost connection
//!   └───────────────────────────── half open ◀──────────────────────────┘  │
//!                              one call at a time ─────────────────────────┘
//! ```
//!
//! An error reply such as `OOM` counts as a response: it arrives quickly, and the next call may succeed.

use std::time::Duration;

/// How many timeouts in a row open the breaker.
const TIMEOUTS_TO_OPEN: u32 = 3;

/// Delay before the second connection attempt; it doubles with each failure. The first attempt is made at once.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(10);

/// The longest delay between two connection attempts.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The circuit breaker of one server.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: BreakerState,
    /// The number of state changes and new connections so far.
    epoch: u64,
    /// Timeouts since the last response.
    timeouts: u32,
    /// Whether the single trial call of the half-open state is in flight.
    trial: bool,
    /// Failed connection attempts and failed trials since the breaker was last closed.
    failures: u32,
    opened: u64,
}

/// State of the circuit breaker of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls are sent.
    #[default]
    Closed,
    /// The server does not respond: calls fail at once until a new connection answers a `PING`.
    Open,
    /// A new connection has answered: one call at a time is sent as a trial, the others fail at once.
    HalfOpen,
}

/// Identifies one call when its outcome is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    epoch: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// The server responded, possibly with an error.
    Responded,
    /// No response arrived in time.
    TimedOut,
    /// The connection was lost.
    Disconnected,
    /// The caller stopped waiting before a timeout could be assumed.
    Unknown,
}

impl Breaker {
    /// Admits one call, unless the breaker forbids it.
    pub(crate) const fn admit(&mut self) -> Option<Ticket> {
        match self.state {
            BreakerState::Closed => {}
            BreakerState::HalfOpen if !self.trial => self.trial = true,
            BreakerState::HalfOpen | BreakerState::Open => return None,
        }
        Some(self.ticket())
    }

    /// Ticket for reporting a call that failed before it was admitted.
    pub(crate) const fn ticket(&self) -> Ticket {
        Ticket { epoch: self.epoch }
    }

    /// Records how a call ended, and returns whether that opened the breaker. Calls admitted before the last state change
    /// are ignored: they say nothing about the server now.
    pub(crate) fn record(&mut self, ticket: Ticket, outcome: CallOutcome) -> bool {
        if ticket.epoch != self.epoch {
            return false;
        }
        self.trial = false;
        match (self.state, outcome) {
            (BreakerState::Open, _) | (_, CallOutcome::Unknown) => return false,
            (BreakerState::Closed, CallOutcome::Responded) => self.timeouts = 0,
            (BreakerState::HalfOpen, CallOutcome::Responded) => {
                self.failures = 0;
                self.enter(BreakerState::Closed);
            }
            (BreakerState::Closed, CallOutcome::TimedOut) if self.timeouts + 1 < TIMEOUTS_TO_OPEN => self.timeouts += 1,
            (BreakerState::Closed, CallOutcome::TimedOut | CallOutcome::Disconnected) => self.open(),
            (BreakerState::HalfOpen, CallOutcome::TimedOut | CallOutcome::Disconnected) => {
                self.failures += 1;
                self.open();
            }
        }
        self.state == BreakerState::Open
    }

    /// Records that a new connection has answered. Outcomes of calls on the previous connection are ignored from now on.
    pub(crate) fn record_connected(&mut self) {
        let state = self.state;
        self.enter(if state == BreakerState::Open { BreakerState::HalfOpen } else { state });
    }

    /// Records that a connection attempt has failed.
    pub(crate) fn record_connect_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
        if self.state != BreakerState::Open {
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
        self.enter(BreakerState::Open);
    }

    fn enter(&mut self, state: BreakerState) {
        self.state = state;
        self.epoch += 1;
        self.timeouts = 0;
        self.trial = false;
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

    /// Admits one call and records its outcome.
    fn call(breaker: &mut Breaker, outcome: CallOutcome) {
        let ticket = breaker.admit().unwrap();
        breaker.record(ticket, outcome);
    }

    fn open_breaker() -> Breaker {
        let mut breaker = Breaker::default();
        call(&mut breaker, CallOutcome::Disconnected);
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker
    }

    #[test]
    fn three_timeouts_in_a_row_open_the_breaker_and_a_response_resets_the_count() {
        let mut breaker = Breaker::default();
        let outcomes = [
            CallOutcome::TimedOut,
            CallOutcome::TimedOut,
            CallOutcome::Responded,
            CallOutcome::TimedOut,
            CallOutcome::Unknown,
        ];
        for outcome in outcomes {
            call(&mut breaker, outcome);
            assert_eq!(breaker.state(), BreakerState::Closed, "{outcome:?}");
        }
        call(&mut breaker, CallOutcome::TimedOut);
        assert_eq!(breaker.state(), BreakerState::Closed);
        call(&mut breaker, CallOutcome::TimedOut);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
        assert!(breaker.admit().is_none());
    }

    #[test]
    fn a_half_open_breaker_admits_one_call_at_a_time() {
        let mut breaker = open_breaker();
        breaker.record_connected();
        let trial = breaker.admit().unwrap();
        assert!(breaker.admit().is_none());
        // The caller of the trial stopped waiting: the next call is the trial.
        breaker.record(trial, CallOutcome::Unknown);
        let trial = breaker.admit().unwrap();
        breaker.record(trial, CallOutcome::Responded);
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.admit().is_some() && breaker.admit().is_some());
    }

    #[test]
    fn outcomes_of_calls_admitted_before_a_state_change_are_ignored() {
        let mut breaker = Breaker::default();
        let old = [(); 4].map(|()| breaker.admit().unwrap());
        assert!(breaker.record(old[0], CallOutcome::Disconnected));
        assert!(!breaker.record(old[1], CallOutcome::Responded), "a late response does not close it");
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.record_connected();
        let trial = breaker.admit().unwrap();
        breaker.record(old[2], CallOutcome::TimedOut);
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "a late timeout does not open it");
        assert!(breaker.admit().is_none(), "a late timeout does not end the trial");
        breaker.record(trial, CallOutcome::Responded);
        breaker.record(old[3], CallOutcome::Disconnected);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Closed, 1));
        // The connection is replaced while it works; losing the old one does not affect the new one.
        let old = breaker.admit().unwrap();
        breaker.record_connected();
        breaker.record(old, CallOutcome::Disconnected);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn the_reconnect_delay_doubles_up_to_a_second_and_a_response_resets_it() {
        let mut breaker = open_breaker();
        let mut delays = vec![breaker.reconnect_delay().as_millis()];
        for _ in 0..9 {
            breaker.record_connect_failure();
            delays.push(breaker.reconnect_delay().as_millis());
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        breaker.record_connected();
        call(&mut breaker, CallOutcome::TimedOut);
        assert_eq!(
            (breaker.state(), breaker.reconnect_delay()),
            (BreakerState::Open, MAX_RECONNECT_DELAY),
            "a failed trial does not reset the delay"
        );
        breaker.record_connected();
        call(&mut breaker, CallOutcome::Responded);
        call(&mut breaker, CallOutcome::Disconnected);
        assert_eq!((breaker.reconnect_delay(), breaker.opened()), (Duration::ZERO, 3));
    }

    #[test]
    fn a_failed_first_connection_opens_the_breaker() {
        let mut breaker = Breaker::default();
        breaker.record_connect_failure();
        assert_eq!(
            (breaker.state(), breaker.opened(), breaker.reconnect_delay()),
            (BreakerState::Open, 1, MIN_RECONNECT_DELAY)
        );
        breaker.record_connected();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }
}
