//! `Ledger`: what became of every request of a phase, counted from when it was due. It only counts; what the numbers mean is
//! told by others.

use std::collections::HashMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use tidegate::Timestamp;

use super::endpoint::Endpoint;
use crate::traffic::{histogram, micros};

/// All requests of a phase.
pub(crate) struct Ledger {
    start: Timestamp,
    under_way: HashMap<u64, Begun>,
    begun: u64,
    /// By [`Party`], then by endpoint.
    counts: [[Count; Endpoint::ALL.len()]; 3],
    /// By the second in which riders' requests were due.
    seconds: Vec<Second>,
    /// How often each rider was matched.
    matched: Vec<u32>,
    /// Microseconds from when a request was due to when it was sent, by [`Party`].
    late: [Histogram<u64>; 3],
}

/// Whose requests they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    /// People, by their number.
    Rider(u32),
    Bot,
    /// Drivers and clerks.
    Staff,
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) party: Party,
    pub(crate) endpoint: Endpoint,
    pub(crate) due: Timestamp,
    pub(crate) sent: Timestamp,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was answered.
    Served,
    /// A limit refused it.
    Refused,
    /// The service or the connection failed.
    Failed,
    /// There was no answer for as long as there was patience.
    TimedOut,
    /// The phase ended before.
    CutOff,
}

/// What became of the requests of some kind.
#[derive(Clone)]
pub(crate) struct Count {
    /// Microseconds of all that no limit refused, however they ended.
    pub(crate) allowed: Histogram<u64>,
    /// Microseconds of those that one did.
    pub(crate) refused: Histogram<u64>,
    pub(crate) served: u64,
    pub(crate) failed: u64,
    pub(crate) timed_out: u64,
    pub(crate) cut_off: u64,
}

/// What became of the riders' requests that were due in one second.
#[derive(Clone)]
pub(crate) struct Second {
    pub(crate) allowed: Histogram<u64>,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
}

impl Ledger {
    pub(crate) fn new(start: Timestamp, span: Duration, riders: u32) -> Self {
        let seconds = usize::try_from(span.as_secs()).unwrap_or(usize::MAX).max(1);
        Self {
            start,
            under_way: HashMap::new(),
            begun: 0,
            counts: std::array::from_fn(|_| std::array::from_fn(|_| Count::new())),
            seconds: vec![Second::new(); seconds],
            matched: vec![0; riders as usize],
            late: std::array::from_fn(|_| histogram()),
        }
    }

    /// A request is sent; what was said is its number.
    pub(crate) fn begin(&mut self, request: Begun) -> u64 {
        self.late[request.party.place()].saturating_record(micros(request.sent.since(request.due)));
        self.begun += 1;
        self.under_way.insert(self.begun, request);
        self.begun
    }

    /// A request has ended.
    pub(crate) fn end(&mut self, number: u64, now: Timestamp, ended: Ended) {
        if let Some(request) = self.under_way.remove(&number) {
            self.add(request, now, ended);
        }
    }

    /// All that are still under way are cut off now. They count with the time that they have waited so far, which is less than
    /// they would have.
    pub(crate) fn cut_off(&mut self, now: Timestamp) {
        for (_, request) in std::mem::take(&mut self.under_way) {
            self.add(request, now, Ended::CutOff);
        }
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// What became of the requests of these, to all or one of the endpoints.
    pub(crate) fn count(&self, parties: &[Party], endpoint: Option<Endpoint>) -> Count {
        let mut sum = Count::new();
        for party in parties {
            for endpoint in Endpoint::ALL.into_iter().filter(|one| endpoint.is_none_or(|wanted| wanted == *one)) {
                sum.add(&self.counts[party.place()][endpoint as usize]);
            }
        }
        sum
    }

    pub(crate) fn seconds(&self) -> &[Second] {
        &self.seconds
    }

    /// How often each rider was matched.
    pub(crate) fn matched(&self) -> &[u32] {
        &self.matched
    }

    /// Microseconds from when requests of these were due to when they were sent.
    pub(crate) fn late(&self, parties: &[Party]) -> Histogram<u64> {
        let mut sum = histogram();
        for party in parties {
            // Both have the same bounds.
            let _ = sum.add(&self.late[party.place()]);
        }
        sum
    }

    fn add(&mut self, request: Begun, now: Timestamp, ended: Ended) {
        let took = micros(now.since(request.due));
        let count = &mut self.counts[request.party.place()][request.endpoint as usize];
        let times = if ended == Ended::Refused { &mut count.refused } else { &mut count.allowed };
        times.saturating_record(took);
        match ended {
            Ended::Served => count.served += 1,
            Ended::Refused => {}
            Ended::Failed => count.failed += 1,
            Ended::TimedOut => count.timed_out += 1,
            Ended::CutOff => count.cut_off += 1,
        }
        let Party::Rider(number) = request.party else { return };
        if ended == Ended::Served
            && request.endpoint == Endpoint::Ride
            && let Some(matched) = self.matched.get_mut(number as usize)
        {
            *matched += 1;
        }
        let second = request.due.since(self.start).as_secs();
        let last = self.seconds.len() - 1;
        let second = &mut self.seconds[usize::try_from(second).unwrap_or(last).min(last)];
        match ended {
            Ended::Refused => second.refused += 1,
            Ended::Served => second.served += 1,
            Ended::Failed | Ended::TimedOut | Ended::CutOff => second.failed += 1,
        }
        if ended != Ended::Refused {
            second.allowed.saturating_record(took);
        }
    }
}

// === impl Party ===

impl Party {
    /// Any rider, where it does not matter which.
    pub(crate) const RIDERS: Self = Self::Rider(0);

    const fn place(self) -> usize {
        match self {
            Self::Rider(_) => 0,
            Self::Bot => 1,
            Self::Staff => 2,
        }
    }
}

// === impl Count ===

impl Count {
    fn new() -> Self {
        Self { allowed: histogram(), refused: histogram(), served: 0, failed: 0, timed_out: 0, cut_off: 0 }
    }

    fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.allowed.add(&other.allowed);
        let _ = self.refused.add(&other.refused);
        self.served += other.served;
        self.failed += other.failed;
        self.timed_out += other.timed_out;
        self.cut_off += other.cut_off;
    }

    /// Those that failed, of those that ended by themselves and were not refused.
    pub(crate) fn failure_rate(&self) -> f64 {
        let failures = self.failed + self.timed_out;
        failures as f64 / (self.served + failures).max(1) as f64
    }
}

// === impl Second ===

impl Second {
    fn new() -> Self {
        // One such for each second: two digits are enough for a line in a plot.
        let allowed = Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("an hour of microseconds by two digits");
        Self { allowed, served: 0, refused: 0, failed: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn at(millis: u64) -> Timestamp {
        START.plus(Duration::from_millis(millis))
    }

    fn ride(party: Party, due: u64) -> Begun {
        Begun { party, endpoint: Endpoint::Ride, due: at(due), sent: at(due + 1) }
    }

    #[test]
    fn time_counts_from_when_a_request_was_due() {
        let mut ledger = Ledger::new(START, Duration::from_secs(3), 2);
        let number = ledger.begin(ride(Party::Rider(1), 500));
        ledger.end(number, at(1500), Ended::Served);
        let count = ledger.count(&[Party::RIDERS], None);
        assert_eq!(
            (count.served, count.allowed.max() / 1000, ledger.late(&[Party::RIDERS]).max() / 1000),
            (1, 1000, 1)
        );
        assert!(ledger.late(&[Party::Bot, Party::Staff]).is_empty());
        assert_eq!((ledger.seconds()[0].served, ledger.seconds()[1].served), (1, 0));
        assert_eq!(ledger.matched(), [0, 1]);
    }

    #[test]
    fn a_refusal_is_no_failure_and_has_its_own_times() {
        let mut ledger = Ledger::new(START, Duration::from_secs(3), 1);
        for ended in [Ended::Refused, Ended::Served, Ended::Failed, Ended::TimedOut] {
            let number = ledger.begin(ride(Party::Rider(0), 0));
            ledger.end(number, at(9), ended);
            ledger.end(number, at(10), ended);
        }
        let count = ledger.count(&[Party::RIDERS], Some(Endpoint::Ride));
        assert_eq!((count.allowed.len(), count.refused.len()), (3, 1), "each ends once");
        assert!((count.failure_rate() - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(ledger.count(&[Party::RIDERS], Some(Endpoint::Fare)).allowed.len(), 0);
        assert_eq!(ledger.count(&[Party::Bot], None).allowed.len(), 0);
    }

    /// Trap: who leaves out what has not ended yet sees the quick answers only, and finds an overload harmless.
    #[test]
    fn what_still_waits_at_the_end_counts_with_the_time_it_has_waited() {
        let mut ledger = Ledger::new(START, Duration::from_secs(3), 1);
        ledger.begin(ride(Party::Rider(0), 0));
        ledger.begin(ride(Party::Bot, 1000));
        ledger.cut_off(at(3000));
        assert_eq!(ledger.under_way(), 0);
        let count = ledger.count(&[Party::RIDERS, Party::Bot], None);
        assert_eq!((count.cut_off, count.served), (2, 0));
        // Three digits are told apart.
        assert_eq!((count.allowed.max() / 10_000, count.allowed.min() / 10_000), (300, 199));
        assert!(count.failure_rate() < f64::EPSILON, "nobody knows how it would have ended");
    }
}
