//! `Breaker`: whether a server may be asked. It knows no clock and sends nothing: it is told what came of calls.
//!
//! ```text
//! closed ──── three silent calls in a row, or a broken connection ────▶ open
//!   ▲                                                                   │  ▲
//!   │ an answer                         a new connection answers a PING │  │ silence
//!   └───────────────────────────── half open ◀──────────────────────────┘  │
//!                              one call at a time ─────────────────────────┘
//! ```
//!
//! Silence is a call without an answer in time, or a connection that broke. A refusal is an answer: it comes quickly and says
//! what is true at that moment.

use std::time::Duration;

/// How many silent calls in a row open it.
const MOST_SILENT: u32 = 3;

/// How long to wait before the second attempt to reach the server. The first follows at once.
const FIRST_REST: Duration = Duration::from_millis(10);

/// The longest wait between two attempts.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// What is known of a server.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: BreakerState,
    /// The number of changes of state, and of connections, so far.
    epoch: u64,
    /// Silent calls since the last answer.
    silent: u32,
    /// Whether the one call of a half-open breaker is on its way.
    trial: bool,
    /// What went wrong since it was closed: attempts to connect, and trials.
    failures: u32,
    opened: u64,
}

/// Whether a server is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// It answers, and is asked.
    #[default]
    Closed,
    /// It is silent: every call fails at once, until a new connection has answered.
    Open,
    /// It has answered on a new connection: one call at a time tries it, and the others still fail at once.
    HalfOpen,
}

/// Permission for one call. Whoever has it says what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    epoch: u64,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There was an answer, if only a refusal.
    Answered,
    /// There was none in time.
    Silent,
    /// The connection broke.
    Broken,
    /// Nobody waited long enough to know.
    Unknown,
}

impl Breaker {
    /// Permission for one call, if there may be one now.
    pub(crate) const fn admit(&mut self) -> Option<Ticket> {
        match self.state {
            BreakerState::Closed => {}
            BreakerState::HalfOpen if !self.trial => self.trial = true,
            BreakerState::HalfOpen | BreakerState::Open => return None,
        }
        Some(self.ticket())
    }

    /// What a call that came to nothing before it was permitted can be told of with.
    pub(crate) const fn ticket(&self) -> Ticket {
        Ticket { epoch: self.epoch }
    }

    /// Hears what came of a call, and says whether that opened it. What was permitted before the last change of state says
    /// nothing about now, and is not heard.
    pub(crate) fn settle(&mut self, ticket: Ticket, outcome: Outcome) -> bool {
        if ticket.epoch != self.epoch {
            return false;
        }
        self.trial = false;
        match (self.state, outcome) {
            (BreakerState::Open, _) | (_, Outcome::Unknown) => return false,
            (BreakerState::Closed, Outcome::Answered) => self.silent = 0,
            (BreakerState::HalfOpen, Outcome::Answered) => {
                self.failures = 0;
                self.turn(BreakerState::Closed);
            }
            (BreakerState::Closed, Outcome::Silent) if self.silent + 1 < MOST_SILENT => self.silent += 1,
            (BreakerState::Closed, Outcome::Silent | Outcome::Broken) => self.open(),
            (BreakerState::HalfOpen, Outcome::Silent | Outcome::Broken) => {
                self.failures += 1;
                self.open();
            }
        }
        self.state == BreakerState::Open
    }

    /// A new connection has answered. What is still asked on the one before says nothing about it.
    pub(crate) fn reached(&mut self) {
        let state = self.state;
        self.turn(if state == BreakerState::Open { BreakerState::HalfOpen } else { state });
    }

    /// An attempt to connect has failed.
    pub(crate) fn missed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        if self.state != BreakerState::Open {
            self.open();
        }
    }

    /// How long to wait before the next attempt to connect.
    pub(crate) fn rest(&self) -> Duration {
        match self.failures {
            0 => Duration::ZERO,
            failures => FIRST_REST.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST_REST),
        }
    }

    /// Whether the server is asked.
    pub(crate) const fn state(&self) -> BreakerState {
        self.state
    }

    /// How often it opened.
    pub(crate) const fn opened(&self) -> u64 {
        self.opened
    }

    fn open(&mut self) {
        self.opened += 1;
        self.turn(BreakerState::Open);
    }

    fn turn(&mut self, state: BreakerState) {
        self.state = state;
        self.epoch += 1;
        self.silent = 0;
        self.trial = false;
    }
}

impl BreakerState {
    /// Its name in answers and metrics.
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

    /// One call from its beginning to its end.
    fn call(breaker: &mut Breaker, outcome: Outcome) {
        let ticket = breaker.admit().unwrap();
        breaker.settle(ticket, outcome);
    }

    fn open() -> Breaker {
        let mut breaker = Breaker::default();
        call(&mut breaker, Outcome::Broken);
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker
    }

    #[test]
    fn three_silent_calls_in_a_row_open_it_and_an_answer_in_between_does_not_let_them() {
        let mut breaker = Breaker::default();
        for outcome in [Outcome::Silent, Outcome::Silent, Outcome::Answered, Outcome::Silent, Outcome::Unknown] {
            call(&mut breaker, outcome);
            assert_eq!(breaker.state(), BreakerState::Closed, "{outcome:?}");
        }
        call(&mut breaker, Outcome::Silent);
        assert_eq!(breaker.state(), BreakerState::Closed);
        call(&mut breaker, Outcome::Silent);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Open, 1));
        assert!(breaker.admit().is_none());
    }

    #[test]
    fn one_call_at_a_time_tries_a_server_that_is_back() {
        let mut breaker = open();
        breaker.reached();
        let trial = breaker.admit().unwrap();
        assert!(breaker.admit().is_none());
        // Its caller went away: the next one may try.
        breaker.settle(trial, Outcome::Unknown);
        let trial = breaker.admit().unwrap();
        breaker.settle(trial, Outcome::Answered);
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.admit().is_some() && breaker.admit().is_some());
    }

    #[test]
    fn what_was_asked_before_a_change_says_nothing_about_now() {
        let mut breaker = Breaker::default();
        let old = [(); 4].map(|()| breaker.admit().unwrap());
        assert!(breaker.settle(old[0], Outcome::Broken));
        assert!(!breaker.settle(old[1], Outcome::Answered), "a late answer does not close it");
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.reached();
        let trial = breaker.admit().unwrap();
        breaker.settle(old[2], Outcome::Silent);
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "nor does late silence open it");
        assert!(breaker.admit().is_none(), "nor does it end the trial of another");
        breaker.settle(trial, Outcome::Answered);
        breaker.settle(old[3], Outcome::Broken);
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Closed, 1));
        // A connection that was renewed while it worked: the old one breaks, and the new one does not.
        let old = breaker.admit().unwrap();
        breaker.reached();
        breaker.settle(old, Outcome::Broken);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn rests_double_up_to_a_second_and_begin_anew_after_an_answer() {
        let mut breaker = open();
        let mut rests = vec![breaker.rest().as_millis()];
        for _ in 0..9 {
            breaker.missed();
            rests.push(breaker.rest().as_millis());
        }
        assert_eq!(rests, [0, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        breaker.reached();
        call(&mut breaker, Outcome::Silent);
        assert_eq!(
            (breaker.state(), breaker.rest()),
            (BreakerState::Open, LONGEST_REST),
            "a trial that fails is no answer"
        );
        breaker.reached();
        call(&mut breaker, Outcome::Answered);
        call(&mut breaker, Outcome::Broken);
        assert_eq!((breaker.rest(), breaker.opened()), (Duration::ZERO, 3));
    }

    #[test]
    fn a_first_connection_that_fails_opens_it() {
        let mut breaker = Breaker::default();
        breaker.missed();
        assert_eq!((breaker.state(), breaker.opened(), breaker.rest()), (BreakerState::Open, 1, FIRST_REST));
        breaker.reached();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }
}
