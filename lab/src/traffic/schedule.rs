//! `Schedule`: when requests are due, independent of the responses. Pure.

use std::time::Duration;

use tidegate::Timestamp;

/// Requests at a fixed rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    start: Timestamp,
    rate_per_second: u32,
    count: u64,
}

impl Schedule {
    /// `rate_per_second` requests a second for `duration`, at least one request.
    pub(crate) fn new(start: Timestamp, rate_per_second: u32, duration: Duration) -> Self {
        let count = duration.as_micros() * u128::from(rate_per_second) / 1_000_000;
        Self { start, rate_per_second, count: u64::try_from(count).unwrap_or(u64::MAX).max(1) }
    }

    /// The number of requests.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// When a request is due, counting from 0; `None` after the last. Computed from the start, so rounding errors do not add
    /// up.
    pub(crate) fn due(&self, number: u64) -> Option<Timestamp> {
        let micros = u128::from(number) * 1_000_000 / u128::from(self.rate_per_second);
        (number < self.count).then(|| self.start.plus(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))))
    }

    /// When all requests are due, in order.
    pub(crate) fn times(self) -> impl Iterator<Item = Timestamp> {
        (0..self.count).filter_map(move |number| self.due(number))
    }

    /// When the last request is due.
    pub(crate) fn end(&self) -> Timestamp {
        self.due(self.count - 1).unwrap_or(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    #[test]
    fn requests_are_evenly_spaced_and_rounding_errors_do_not_add_up() {
        let schedule = Schedule::new(START, 3, Duration::from_secs(1000));
        let after = |number| schedule.due(number).map(|due| due.since(START).as_micros());
        assert_eq!(schedule.count(), 3000);
        assert_eq!([after(0), after(1), after(2), after(3)], [Some(0), Some(333_333), Some(666_666), Some(1_000_000)]);
        assert_eq!((after(2997), after(2999), after(3000)), (Some(999_000_000), Some(999_666_666), None));
        assert_eq!(schedule.end().since(START), Duration::from_micros(999_666_666));
    }

    #[test]
    fn a_schedule_has_at_least_one_request() {
        let schedule = Schedule::new(START, 1, Duration::from_millis(10));
        assert_eq!((schedule.count(), schedule.due(0), schedule.due(1)), (1, Some(START), None));
        assert_eq!(schedule.end(), START);
    }
}
