//! `Schedule`: when requests are due, whatever the answers do. Pure: it waits for nobody.

use std::time::Duration;

use tidegate::Timestamp;

/// Requests at a fixed rate, from a beginning to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    begun: Timestamp,
    rate: u32,
    count: u64,
}

impl Schedule {
    /// `rate` requests a second for this long, at least one.
    pub(crate) fn new(begun: Timestamp, rate: u32, span: Duration) -> Self {
        let count = span.as_micros() * u128::from(rate) / 1_000_000;
        Self { begun, rate, count: u64::try_from(count).unwrap_or(u64::MAX).max(1) }
    }

    /// How many there are.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// When the request of this number is due, the first being 0; there is none after the last. Each is reckoned from the
    /// beginning, so that nothing adds up.
    pub(crate) fn due(&self, number: u64) -> Option<Timestamp> {
        let micros = u128::from(number) * 1_000_000 / u128::from(self.rate);
        (number < self.count).then(|| self.begun.plus(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))))
    }

    /// When the last one is due.
    pub(crate) fn end(&self) -> Timestamp {
        self.due(self.count - 1).unwrap_or(self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    #[test]
    fn requests_are_due_evenly_and_rounding_does_not_add_up() {
        let schedule = Schedule::new(START, 3, Duration::from_secs(1000));
        let after = |number| schedule.due(number).map(|due| due.since(START).as_micros());
        assert_eq!(schedule.count(), 3000);
        assert_eq!([after(0), after(1), after(2), after(3)], [Some(0), Some(333_333), Some(666_666), Some(1_000_000)]);
        assert_eq!((after(2997), after(2999), after(3000)), (Some(999_000_000), Some(999_666_666), None));
        assert_eq!(schedule.end().since(START), Duration::from_micros(999_666_666));
    }

    #[test]
    fn there_is_always_one_request() {
        let schedule = Schedule::new(START, 1, Duration::from_millis(10));
        assert_eq!((schedule.count(), schedule.due(0), schedule.due(1)), (1, Some(START), None));
        assert_eq!(schedule.end(), START);
    }
}
