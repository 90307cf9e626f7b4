//! `Latencies`: response times counted from when requests were due, and how far the load generator itself delayed them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tidegate::Timestamp;

use crate::traffic::{histogram, micros};

/// The load fell behind its schedule if 1 % of the requests left this late or later while a connection was free.
const MAX_SEND_DELAY: Duration = Duration::from_millis(1);

/// The reported quantiles, with their JSON names.
const QUANTILES: [(&str, f64); 4] = [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p99_9_us", 0.999)];

/// The results of one schedule.
pub(crate) struct Latencies {
    /// Microseconds from when a request was due to the end of its response.
    latency: Histogram<u64>,
    /// Microseconds from when a request was due and a connection was free to when it was sent.
    send_delay: Histogram<u64>,
    /// Requests that were due while no connection was free.
    saturated: u64,
    /// Responses by status.
    pub(super) statuses: BTreeMap<u16, u64>,
    /// Requests without a response.
    pub(super) unanswered: u64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

/// When a request was due, could be sent, and was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    pub(crate) due: Timestamp,
    /// When its connection became free.
    pub(crate) free: Timestamp,
    pub(crate) sent: Timestamp,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self {
            latency: histogram(3),
            send_delay: histogram(3),
            saturated: 0,
            statuses: BTreeMap::new(),
            unanswered: 0,
            first: None,
            last: None,
        }
    }

    /// Adds a request that was sent. `status` is `None` if it got no response.
    pub(crate) fn add(&mut self, times: RequestTimes, completed: Timestamp, status: Option<u16>) {
        self.saturated += u64::from(times.free > times.due);
        self.send_delay.saturating_record(micros(times.sent.since(times.due.max(times.free))));
        self.first = Some(self.first.map_or(times.sent, |first| first.min(times.sent)));
        self.last = self.last.max(Some(times.sent));
        match status {
            Some(status) => {
                self.latency.saturating_record(micros(completed.since(times.due)));
                *self.statuses.entry(status).or_default() += 1;
            }
            None => self.unanswered += 1,
        }
    }

    /// The 50th, 90th, 99th and 99.9th percentile and the maximum, in microseconds.
    pub(crate) fn micros(&self) -> [u64; 5] {
        let [a, b, c, d] = QUANTILES.map(|(_, quantile)| self.latency.value_at_quantile(quantile));
        [a, b, c, d, self.latency.max()]
    }

    /// Reasons to doubt the latencies that do not lie with the server, or may not.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.fell_behind() {
            let delay = self.send_delay.value_at_quantile(0.99);
            warnings.push(format!(
                "the load generator fell behind its schedule (1 % of the requests left at least {delay} µs late), so it \
                 causes part of the latencies; lower --rate"
            ));
        }
        let percent = self.saturated * 100 / self.send_delay.len().max(1);
        if percent > 0 {
            warnings.push(format!(
                "{percent} % of the requests were due while all connections waited for responses; that wait counts as \
                 latency; more --connections show whether the server is faster than that"
            ));
        }
        warnings
    }

    pub(crate) fn json(&self) -> Value {
        let mut json = json!({
            "requests": self.latency.len() + self.unanswered,
            "unanswered": self.unanswered,
            "statuses": self.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect::<serde_json::Map<_, _>>(),
            "sent_per_second": self.sent_per_second(),
            "max_us": self.latency.max(),
            "late_p99_us": self.send_delay.value_at_quantile(0.99),
            "late_max_us": self.send_delay.max(),
            "crowded": self.saturated,
            "fell_behind": self.fell_behind(),
        });
        for (name, quantile) in QUANTILES {
            json[name] = json!(self.latency.value_at_quantile(quantile));
        }
        json
    }

    /// The rate at which requests were really sent.
    pub(crate) fn sent_per_second(&self) -> Option<f64> {
        let duration = self.last?.since(self.first?);
        let intervals = self.send_delay.len().saturating_sub(1) as f64;
        (!duration.is_zero()).then(|| (intervals / duration.as_secs_f64()).round())
    }

    fn fell_behind(&self) -> bool {
        self.send_delay.value_at_quantile(0.99) >= micros(MAX_SEND_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Schedule;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn at(micros: u64) -> Timestamp {
        START.plus(Duration::from_micros(micros))
    }

    /// The latencies over one connection, with a server that takes `response_micros` for a request sent at a given time.
    fn over_one_connection(schedule: Schedule, response_micros: impl Fn(Timestamp) -> u64) -> Latencies {
        let (mut latencies, mut free) = (Latencies::new(), START);
        for due in schedule.times() {
            let sent = due.max(free);
            let completed = sent.plus(Duration::from_micros(response_micros(sent)));
            latencies.add(RequestTimes { due, free, sent }, completed, Some(200));
            free = completed;
        }
        latencies
    }

    #[test]
    fn percentiles_match_the_recorded_latencies() {
        let mut latencies = Latencies::new();
        for latency in 1..=1000 {
            latencies.add(RequestTimes { due: START, free: START, sent: START }, at(latency), Some(200));
        }
        assert_eq!(latencies.micros(), [500, 900, 990, 999, 1000]);
        assert_eq!((latencies.warnings(), latencies.statuses[&200]), (Vec::new(), 1000));
    }

    /// Trap (coordinated omission): a load that waits for the response before it plans the next request sends nothing while
    /// the server stalls, and then reports one slow response among thousands of fast ones.
    #[test]
    fn a_stalled_server_is_slow_for_every_request_due_during_the_stall() {
        let schedule = Schedule::new(START, 1000, Duration::from_secs(10));
        let stall = |sent: Timestamp| if sent == at(5_000_000) { 1_000_000 } else { 100 };
        let latencies = over_one_connection(schedule, stall);
        let [median, ninetieth, .., longest] = latencies.micros();
        assert_eq!(median, 100);
        assert!((999_000..=1_001_000).contains(&longest), "{longest}");
        assert!(ninetieth > 50_000, "a tenth of the requests waited, not one: {ninetieth}");
        assert!(!latencies.fell_behind(), "the load kept its schedule");
        let [warning] = &latencies.warnings()[..] else { panic!("{:?}", latencies.warnings()) };
        assert!(warning.contains("all connections waited"), "{warning}");
    }

    #[test]
    fn a_load_that_falls_behind_its_schedule_reports_it() {
        let mut latencies = Latencies::new();
        for number in 0..100 {
            let due = at(number * 1000);
            let sent = at(number * 3000);
            latencies.add(RequestTimes { due, free: START, sent }, sent.plus(Duration::from_micros(50)), Some(200));
        }
        assert!(latencies.fell_behind() && latencies.json()["fell_behind"] == json!(true));
        assert!(latencies.warnings()[0].contains("fell behind its schedule"), "{:?}", latencies.warnings());
        assert_eq!(latencies.sent_per_second(), Some(333.0));
    }

    #[test]
    fn requests_without_a_response_are_counted_but_have_no_latency() {
        let mut latencies = Latencies::new();
        let times = RequestTimes { due: START, free: START, sent: START };
        latencies.add(times, at(10_000_000), None);
        latencies.add(times, at(70), Some(429));
        latencies.unanswered += 3;
        let json = latencies.json();
        assert_eq!((&json["requests"], &json["unanswered"], &json["max_us"]), (&json!(5), &json!(4), &json!(70)));
        assert_eq!(json["statuses"], json!({ "429": 1 }));
    }
}
