//! `RequestLog`: the outcomes of all requests of a phase, with latencies counted from when requests were due. It only counts.

use std::collections::HashMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use tidegate::Timestamp;

use super::endpoint::Endpoint;
use crate::traffic::{histogram, micros};

pub(crate) struct RequestLog {
    start: Timestamp,
    pub(crate) in_flight: HashMap<u64, SentRequest>,
    last_id: u64,
    /// By [`ClientKind`], then by endpoint.
    counts: [[OutcomeCounts; Endpoint::ALL.len()]; ClientKind::ALL.len()],
    /// By the second in which requests of riders were due.
    pub(crate) seconds: Vec<OutcomeCounts>,
    pub(crate) rides: Vec<u32>,
    /// Microseconds from when a request was due to when it was sent, by [`ClientKind`].
    send_delays: [Histogram<u64>; ClientKind::ALL.len()],
}

/// The kind of client that sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    Rider,
    Bot,
    /// Drivers and clerks.
    Staff,
    /// The bot with many connections.
    Flood,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    pub(crate) client: ClientKind,
    /// The number of the rider.
    pub(crate) number: u32,
    pub(crate) endpoint: Endpoint,
    pub(crate) due: Timestamp,
    pub(crate) sent: Timestamp,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// Answered with success.
    Served,
    /// Refused by a limit: status 429.
    Refused,
    /// An error of the service or the connection.
    Failed,
    /// No response within the timeout of the client.
    TimedOut,
    /// In flight when the phase ended.
    CutOff,
}

/// Outcomes and latencies of some requests.
#[derive(Clone)]
pub(crate) struct OutcomeCounts {
    /// Microseconds of requests that no limit refused, whatever their outcome.
    pub(crate) allowed: Histogram<u64>,
    pub(crate) refused: Histogram<u64>,
    outcomes: [u64; 5],
}

impl RequestLog {
    pub(crate) fn new(start: Timestamp, duration: Duration, riders: u32) -> Self {
        let seconds = usize::try_from(duration.as_secs()).unwrap_or(usize::MAX).max(1);
        Self {
            start,
            in_flight: HashMap::new(),
            last_id: 0,
            counts: std::array::from_fn(|_| std::array::from_fn(|_| OutcomeCounts::new(3))),
            // There is one for each second, and two digits are enough for a plot.
            seconds: vec![OutcomeCounts::new(2); seconds],
            rides: vec![0; riders as usize],
            send_delays: std::array::from_fn(|_| histogram(3)),
        }
    }

    /// Adds a request that is sent now, and returns its ID.
    pub(crate) fn begin(&mut self, request: SentRequest) -> u64 {
        self.send_delays[request.client as usize].saturating_record(micros(request.sent.since(request.due)));
        self.last_id += 1;
        self.in_flight.insert(self.last_id, request);
        self.last_id
    }

    /// Records the outcome of a request. Has no effect the second time.
    pub(crate) fn end(&mut self, id: u64, now: Timestamp, outcome: RequestOutcome) {
        if let Some(request) = self.in_flight.remove(&id) {
            self.add(request, now, outcome);
        }
    }

    /// Ends the phase: requests in flight count with the time they have waited so far, which is less than they would have.
    pub(crate) fn cut_off(&mut self, now: Timestamp) {
        for (_, request) in std::mem::take(&mut self.in_flight) {
            self.add(request, now, RequestOutcome::CutOff);
        }
    }

    /// Sums the outcomes of these clients, for one endpoint or all.
    pub(crate) fn count(&self, clients: &[ClientKind], endpoint: Option<Endpoint>) -> OutcomeCounts {
        let mut sum = OutcomeCounts::new(3);
        for client in clients {
            for endpoint in Endpoint::ALL.into_iter().filter(|one| endpoint.is_none_or(|filter| filter == *one)) {
                sum.add(&self.counts[*client as usize][endpoint as usize]);
            }
        }
        sum
    }

    /// Microseconds from when requests of these clients were due to when they were sent.
    pub(crate) fn send_delays(&self, clients: &[ClientKind]) -> Histogram<u64> {
        let mut sum = histogram(3);
        for client in clients {
            // Adding fails only for different bounds.
            let _ = sum.add(&self.send_delays[*client as usize]);
        }
        sum
    }

    fn add(&mut self, request: SentRequest, now: Timestamp, outcome: RequestOutcome) {
        let latency = micros(now.since(request.due));
        self.counts[request.client as usize][request.endpoint as usize].record(outcome, latency);
        if request.client != ClientKind::Rider {
            return;
        }
        if outcome == RequestOutcome::Served
            && request.endpoint == Endpoint::Ride
            && let Some(rides) = self.rides.get_mut(request.number as usize)
        {
            *rides += 1;
        }
        let second = request.due.since(self.start).as_secs();
        let last = self.seconds.len() - 1;
        self.seconds[usize::try_from(second).unwrap_or(last).min(last)].record(outcome, latency);
    }
}

impl ClientKind {
    pub(crate) const ALL: [Self; 4] = [Self::Rider, Self::Bot, Self::Staff, Self::Flood];
}

// === impl OutcomeCounts ===

impl OutcomeCounts {
    fn new(digits: u8) -> Self {
        Self { allowed: histogram(digits), refused: histogram(digits), outcomes: [0; 5] }
    }

    fn record(&mut self, outcome: RequestOutcome, micros: u64) {
        let histogram = if outcome == RequestOutcome::Refused { &mut self.refused } else { &mut self.allowed };
        histogram.saturating_record(micros);
        self.outcomes[outcome as usize] += 1;
    }

    fn add(&mut self, other: &Self) {
        // Adding fails only for different bounds.
        let _ = self.allowed.add(&other.allowed);
        let _ = self.refused.add(&other.refused);
        for (sum, count) in self.outcomes.iter_mut().zip(other.outcomes) {
            *sum += count;
        }
    }

    /// Error responses and timeouts.
    pub(crate) fn failures(&self) -> u64 {
        self.count(&[RequestOutcome::Failed, RequestOutcome::TimedOut])
    }

    /// The share of failed requests among those that were neither refused nor cut off.
    pub(crate) fn failure_rate(&self) -> f64 {
        self.failures() as f64 / (self.count(&[RequestOutcome::Served]) + self.failures()).max(1) as f64
    }

    /// The requests that ended in one of these ways.
    pub(crate) fn count(&self, outcomes: &[RequestOutcome]) -> u64 {
        outcomes.iter().map(|outcome| self.outcomes[*outcome as usize]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::RequestOutcome::{CutOff, Failed, Refused, Served, TimedOut};
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn at(millis: u64) -> Timestamp {
        START.plus(Duration::from_millis(millis))
    }

    fn ride(client: ClientKind, due: u64) -> SentRequest {
        SentRequest { client, number: 1, endpoint: Endpoint::Ride, due: at(due), sent: at(due + 1) }
    }

    #[test]
    fn latency_counts_from_when_a_request_was_due() {
        let mut request_log = RequestLog::new(START, Duration::from_secs(3), 2);
        let id = request_log.begin(ride(ClientKind::Rider, 500));
        request_log.end(id, at(1500), Served);
        let count = request_log.count(&[ClientKind::Rider], None);
        assert_eq!(
            (
                count.count(&[Served]),
                count.allowed.max() / 1000,
                request_log.send_delays(&[ClientKind::Rider]).max() / 1000
            ),
            (1, 1000, 1)
        );
        assert!(request_log.send_delays(&[ClientKind::Bot, ClientKind::Staff]).is_empty());
        let served = |second: usize| request_log.seconds[second].count(&[Served]);
        assert_eq!((served(0), served(1)), (1, 0));
        assert_eq!(request_log.rides, [0, 1]);
    }

    #[test]
    fn a_refusal_is_not_a_failure_and_has_its_own_latencies() {
        let mut request_log = RequestLog::new(START, Duration::from_secs(3), 1);
        for outcome in [Refused, Served, Failed, TimedOut] {
            let id = request_log.begin(ride(ClientKind::Rider, 0));
            request_log.end(id, at(9), outcome);
            request_log.end(id, at(10), outcome);
        }
        let count = request_log.count(&[ClientKind::Rider], Some(Endpoint::Ride));
        assert_eq!((count.allowed.len(), count.refused.len()), (3, 1), "each request ends once");
        assert!((count.failure_rate() - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(request_log.count(&[ClientKind::Rider], Some(Endpoint::Fare)).allowed.len(), 0);
        assert_eq!(request_log.count(&[ClientKind::Bot], None).allowed.len(), 0);
    }

    /// Trap: leaving out requests in flight would count only fast responses, and an overload would look harmless.
    #[test]
    fn requests_in_flight_at_the_end_count_with_the_time_they_have_waited() {
        let mut request_log = RequestLog::new(START, Duration::from_secs(3), 1);
        request_log.begin(ride(ClientKind::Rider, 0));
        request_log.begin(ride(ClientKind::Bot, 1000));
        request_log.cut_off(at(3000));
        assert_eq!(request_log.in_flight.len(), 0);
        let count = request_log.count(&[ClientKind::Rider, ClientKind::Bot], None);
        assert_eq!((count.count(&[CutOff]), count.count(&[Served])), (2, 0));
        // The histogram is exact to three digits.
        assert_eq!((count.allowed.max() / 10_000, count.allowed.min() / 10_000), (300, 199));
        assert!(count.failure_rate() < f64::EPSILON, "the outcome of a cut-off request is unknown");
    }
}
