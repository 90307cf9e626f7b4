//! `Pacing`: how many rounds of plans may be under way. A pure function of measured times.
//!
//! Plans that arrive while a round is under way wait for it and are decided together. As few rounds are under way as keep a
//! plan from waiting longer than [`MAX_COMBINE_WAIT`] to be sent: one or two on a near server, more on a far one. Rounds that
//! a slow server answers one after the other gain nothing from being sent early, and the later ones would be overdue; so no
//! more are under way than it answers within half a budget.

use std::time::Duration;

/// The longest time that a plan waits for others while another round could be sent.
pub(crate) const MAX_COMBINE_WAIT: Duration = Duration::from_millis(1);

/// The most rounds under way.
pub(crate) const MAX_ROUNDS: usize = 8;

/// The weight of the past in the averages, of which the latest time has one part.
const AVERAGE_PARTS: u32 = 8;

/// Measured times of the rounds to one server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacing {
    /// From sending a round to its last reply, if no other were under way.
    round_trip: Duration,
    /// Between the last replies of two rounds that were under way together.
    gap: Duration,
}

impl Pacing {
    /// Records a round that took `elapsed`. `ahead` rounds were under way when it was sent; if any, the last of them was
    /// answered `gap` before this one.
    pub(crate) fn record(&mut self, elapsed: Duration, ahead: usize, gap: Duration) {
        if ahead > 0 {
            self.gap = average(self.gap, gap);
        }
        let waited = self.gap.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX));
        self.round_trip = average(self.round_trip, elapsed.saturating_sub(waited));
    }

    /// How many rounds may be under way to a server with this `budget`.
    pub(crate) fn max_rounds(&self, budget: Duration) -> usize {
        let needed = self.round_trip.as_micros().div_ceil(MAX_COMBINE_WAIT.as_micros());
        let answered_in_time = match self.gap.as_micros() {
            // Two rounds under way measure it.
            0 => 2,
            gap => (budget / 2).as_micros() / gap,
        };
        usize::try_from(needed.min(answered_in_time)).unwrap_or(MAX_ROUNDS).clamp(1, MAX_ROUNDS)
    }
}

fn average(average: Duration, latest: Duration) -> Duration {
    if average.is_zero() { latest } else { (average * (AVERAGE_PARTS - 1) + latest) / AVERAGE_PARTS }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(25);

    fn rounds_after(round_trip_micros: u64, gap_micros: u64) -> usize {
        let mut pacing = Pacing::default();
        for _ in 0..50 {
            let ahead = pacing.max_rounds(BUDGET) - 1;
            let gap = Duration::from_micros(gap_micros);
            let elapsed = Duration::from_micros(round_trip_micros) + gap * u32::try_from(ahead).unwrap();
            pacing.record(elapsed, ahead, gap);
        }
        pacing.max_rounds(BUDGET)
    }

    #[test]
    fn a_near_server_gets_one_round_at_a_time_and_a_far_one_several() {
        assert_eq!(Pacing::default().max_rounds(BUDGET), 1);
        assert_eq!(rounds_after(150, 50), 1);
        assert_eq!(rounds_after(1_500, 50), 2);
        assert_eq!(rounds_after(5_000, 50), 5);
        assert_eq!(rounds_after(20_000, 50), MAX_ROUNDS);
    }

    #[test]
    fn a_server_that_answers_slowly_one_after_the_other_gets_one_round_at_a_time() {
        assert_eq!(rounds_after(24_000, 24_000), 1);
        assert!(rounds_after(4_000, 4_000) <= 3);
    }

    #[test]
    fn only_rounds_behind_others_tell_how_fast_the_server_answers() {
        let (round_trip, gap) = (Duration::from_millis(5), Duration::from_millis(24));
        let mut pacing = Pacing::default();
        pacing.record(round_trip, 0, gap);
        assert_eq!(pacing.max_rounds(BUDGET), 2, "a round alone was not answered after another");
        pacing.record(round_trip + gap, 1, gap);
        assert_eq!(pacing.max_rounds(BUDGET), 1);
    }
}
