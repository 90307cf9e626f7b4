//! `Silence`: judges whether a server is silent. A pure state machine: it reads no clock and does no I/O.
//!
//! Only time in which this process itself was able to notice a reply counts against the server. While a command is
//! unanswered, ticks follow each other. A tick counts if it fired on time and the read that followed it gave no byte. A tick
//! that fired late proves that this process was busy, and counts for nothing.
//!
//! A server is silent if it sent no byte for one budget of counted ticks, or if the oldest command is unanswered for four
//! budgets, whatever drips. The oldest command is timed from when it became the oldest: a server that answers one command
//! after the other, each within its budget, is never silent, however many commands wait in line.

use std::time::Duration;

use tokio::time::Instant;

/// A budget is this many ticks long.
const TICKS_PER_BUDGET: u32 = 10;

/// The shortest tick, and the resolution of the runtime's timers.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// A tick that fires later than this is not counted: 1 ms, and the resolution of the timer.
const MAX_TICK_LATENESS: Duration = Duration::from_millis(2);

/// The oldest command may be unanswered for this many budgets while bytes arrive.
pub(crate) const MAX_UNANSWERED_BUDGETS: u32 = 4;

/// A position on the scale of counted time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CountedTime(Duration);

/// Counts the time in which a server could have been heard.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    counted: CountedTime,
    /// When the last byte arrived.
    last_byte: CountedTime,
    /// When the last reply was complete.
    last_reply: CountedTime,
    tick: Option<Tick>,
}

/// The next tick.
#[derive(Clone, Copy, Debug)]
struct Tick {
    at: Instant,
    interval: Duration,
}

impl Silence {
    /// The position of a command that is sent now.
    pub(crate) fn mark(&self) -> CountedTime {
        // The tick under way began earlier, so it does not count for this command.
        CountedTime(self.counted.0 + self.tick.map_or(Duration::ZERO, |tick| tick.interval))
    }

    /// Records that a byte has arrived.
    pub(crate) fn record_byte(&mut self) {
        self.last_byte = self.mark();
    }

    /// Records that a reply is complete, so that the next command is the oldest.
    pub(crate) fn record_reply(&mut self) {
        self.last_reply = self.mark();
    }

    /// Starts the next tick for commands whose shortest budget is `budget`, unless an earlier one is under way. Returns when
    /// it fires.
    pub(crate) fn start_tick(&mut self, now: Instant, budget: Duration) -> Instant {
        let interval = tick_interval(budget);
        match self.tick {
            Some(tick) if tick.at <= now + interval => tick.at,
            _ => {
                let at = now + interval;
                self.tick = Some(Tick { at, interval });
                at
            }
        }
    }

    /// Ends the tick under way, which fired at `now`, after everything readable was read. It counts if it was on time; bytes
    /// that were read have moved [`last_byte`](Self::record_byte) past it.
    pub(crate) fn finish_tick(&mut self, now: Instant) {
        if let Some(tick) = self.tick.take()
            && now.saturating_duration_since(tick.at) <= MAX_TICK_LATENESS
        {
            self.counted.0 += tick.interval;
        }
    }

    /// Whether a command with this budget, sent at `sent`, has heard no byte for its budget.
    pub(crate) fn is_silent(&self, sent: CountedTime, budget: Duration) -> bool {
        self.elapsed(sent.max(self.last_byte)) >= budget
    }

    /// Whether the oldest command, sent at `sent` with this budget, has been unanswered for too long.
    pub(crate) fn is_overdue(&self, sent: CountedTime, budget: Duration) -> bool {
        self.elapsed(sent.max(self.last_reply)) >= budget.saturating_mul(MAX_UNANSWERED_BUDGETS)
    }

    fn elapsed(&self, since: CountedTime) -> Duration {
        self.counted.0.saturating_sub(since.0)
    }
}

/// A tenth of the budget, in whole milliseconds, since timers are no finer.
fn tick_interval(budget: Duration) -> Duration {
    let micros = (budget / TICKS_PER_BUDGET).as_micros().max(1);
    let millis = u64::try_from(micros.div_ceil(TIMER_RESOLUTION.as_micros())).unwrap_or(u64::MAX);
    Duration::from_millis(millis.min(3_600_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(25);

    /// A clock that ticks as the task does: each tick fires `late` after its time.
    struct Ticker {
        silence: Silence,
        now: Instant,
    }

    impl Ticker {
        fn new() -> Self {
            Self { silence: Silence::default(), now: crate::timer::now() }
        }

        fn tick(&mut self, late: Duration) {
            let at = self.silence.start_tick(self.now, BUDGET);
            self.now = at + late;
            self.silence.finish_tick(self.now);
            self.silence.start_tick(self.now, BUDGET);
        }

        /// Ticks on time until `is_over`, and returns how long that took.
        fn tick_until(&mut self, is_over: impl Fn(&Silence) -> bool) -> Duration {
            let started = self.now;
            while !is_over(&self.silence) {
                assert!(self.now - started < BUDGET * 10, "it never ends");
                self.tick(Duration::ZERO);
            }
            self.now - started
        }
    }

    #[test]
    fn a_server_without_a_byte_for_one_budget_is_silent_and_not_before() {
        let mut ticker = Ticker::new();
        ticker.silence.start_tick(ticker.now, BUDGET);
        let sent = ticker.silence.mark();
        let took = ticker.tick_until(|silence| silence.is_silent(sent, BUDGET));
        assert!((BUDGET..BUDGET * 3 / 2).contains(&took), "{took:?}");
    }

    #[test]
    fn a_command_sent_within_a_tick_has_its_whole_budget() {
        for into_tick in 0..3 {
            let mut ticker = Ticker::new();
            let at = ticker.silence.start_tick(ticker.now, BUDGET);
            let sent_at = ticker.now + Duration::from_millis(into_tick);
            let sent = ticker.silence.mark();
            ticker.now = at;
            ticker.silence.finish_tick(at);
            ticker.tick_until(|silence| silence.is_silent(sent, BUDGET));
            assert!(ticker.now - sent_at >= BUDGET, "{into_tick} ms into a tick: {:?}", ticker.now - sent_at);
        }
    }

    #[test]
    fn late_ticks_never_count() {
        let mut ticker = Ticker::new();
        let sent = ticker.silence.mark();
        for _ in 0..1_000 {
            ticker.tick(MAX_TICK_LATENESS + Duration::from_micros(1));
            assert!(!ticker.silence.is_silent(sent, BUDGET) && !ticker.silence.is_overdue(sent, BUDGET));
        }
        for _ in 0..20 {
            ticker.tick(MAX_TICK_LATENESS);
        }
        assert!(ticker.silence.is_silent(sent, BUDGET), "a tick may be as late as the timer is coarse");
    }

    #[test]
    fn a_byte_ends_the_silence_but_does_not_answer_the_oldest_command() {
        let mut ticker = Ticker::new();
        let sent = ticker.silence.mark();
        let started = ticker.now;
        while !ticker.silence.is_overdue(sent, BUDGET) {
            ticker.silence.record_byte();
            ticker.tick(Duration::ZERO);
            assert!(!ticker.silence.is_silent(sent, BUDGET), "it drips");
        }
        let took = ticker.now - started;
        assert!((BUDGET * 4..BUDGET * 5).contains(&took), "{took:?}");
    }

    #[test]
    fn commands_in_line_are_timed_from_the_previous_reply() {
        let mut ticker = Ticker::new();
        let sent = ticker.silence.mark();
        for _ in 0..100 {
            // One reply just under each budget, for a long line of commands sent at once.
            for _ in 0..7 {
                ticker.tick(Duration::ZERO);
                assert!(!ticker.silence.is_silent(sent, BUDGET) && !ticker.silence.is_overdue(sent, BUDGET));
            }
            ticker.silence.record_byte();
            ticker.silence.record_reply();
        }
    }

    #[test]
    fn a_shorter_budget_shortens_the_tick_under_way() {
        let (mut silence, now) = (Silence::default(), crate::timer::now());
        let late = silence.start_tick(now, Duration::from_secs(5));
        let early = silence.start_tick(now, BUDGET);
        assert_eq!((late - now, early - now), (Duration::from_millis(500), Duration::from_millis(3)));
        assert_eq!(silence.start_tick(now, Duration::from_secs(5)), early);
        for (budget, interval) in [(1, 1), (10, 1), (11, 2), (15, 2), (25, 3), (60, 6)] {
            assert_eq!(tick_interval(Duration::from_millis(budget)), Duration::from_millis(interval));
        }
    }
}
