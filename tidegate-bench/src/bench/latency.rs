//! `Latencies`: how long answers took, from when their requests were due, and how far the load itself is to blame. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tidegate::Timestamp;

use crate::traffic::{histogram, micros};

/// The load has fallen behind if every hundredth request was this late or later by its own fault.
const TOO_LATE: Duration = Duration::from_millis(1);

/// The quantiles that are told, with their names.
const QUANTILES: [(&str, f64); 4] = [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p99_9_us", 0.999)];

/// What was found of the requests of one schedule.
pub(crate) struct Latencies {
    /// Microseconds from when a request was due to the end of its answer.
    answered: Histogram<u64>,
    /// Microseconds from when a request was due, and a connection free, to when it was sent.
    late: Histogram<u64>,
    /// How many were due while no connection was free.
    crowded: u64,
    statuses: BTreeMap<u16, u64>,
    unanswered: u64,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

/// The times of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// When it was due.
    pub(crate) due: Timestamp,
    /// When the connection that it took was free.
    pub(crate) free: Timestamp,
    /// When it was sent.
    pub(crate) sent: Timestamp,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self {
            answered: histogram(),
            late: histogram(),
            crowded: 0,
            statuses: BTreeMap::new(),
            unanswered: 0,
            first: None,
            last: None,
        }
    }

    /// A request was answered, or it will never be.
    pub(crate) fn add(&mut self, times: Times, ended: Timestamp, status: Option<u16>) {
        self.crowded += u64::from(times.free > times.due);
        self.late.saturating_record(micros(times.sent.since(times.due.max(times.free))));
        self.first = Some(self.first.map_or(times.sent, |first| first.min(times.sent)));
        self.last = self.last.max(Some(times.sent));
        match status {
            Some(status) => {
                self.answered.saturating_record(micros(ended.since(times.due)));
                *self.statuses.entry(status).or_default() += 1;
            }
            None => self.unanswered += 1,
        }
    }

    /// A request was never sent, since those before it had no answer for too long.
    pub(crate) fn give_up(&mut self, number: u64) {
        self.unanswered += number;
    }

    /// How many requests have no answer.
    pub(crate) const fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// How many answers there were, by their status.
    pub(crate) const fn statuses(&self) -> &BTreeMap<u16, u64> {
        &self.statuses
    }

    /// The median, the 90th, the 99th and the 99.9th percentile, and the longest, in microseconds.
    pub(crate) fn micros(&self) -> [u64; 5] {
        let [a, b, c, d] = QUANTILES.map(|(_, quantile)| self.answered.value_at_quantile(quantile));
        [a, b, c, d, self.answered.max()]
    }

    /// What spoils the figures and is not the server's fault, or perhaps not.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.fell_behind() {
            let late = self.late.value_at_quantile(0.99);
            doubts.push(format!(
                "the load fell behind its own schedule (1 % of the requests left {late} µs late or later), so the latencies \
                 are partly its own; lower --rate"
            ));
        }
        let percent = self.crowded * 100 / self.late.len().max(1);
        if percent > 0 {
            doubts.push(format!(
                "{percent} % of the requests were due while all connections waited for answers; that wait counts, and more \
                 --connections would show whether the server can do better"
            ));
        }
        doubts
    }

    pub(crate) fn json(&self) -> Value {
        let mut json = json!({
            "requests": self.answered.len() + self.unanswered,
            "unanswered": self.unanswered,
            "statuses": self.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect::<serde_json::Map<_, _>>(),
            "sent_per_second": self.sent_per_second(),
            "max_us": self.answered.max(),
            "late_p99_us": self.late.value_at_quantile(0.99),
            "late_max_us": self.late.max(),
            "crowded": self.crowded,
            "fell_behind": self.fell_behind(),
        });
        for (name, quantile) in QUANTILES {
            json[name] = json!(self.answered.value_at_quantile(quantile));
        }
        json
    }

    /// How many requests a second were really sent.
    pub(crate) fn sent_per_second(&self) -> Option<f64> {
        let span = self.last?.since(self.first?);
        let between = self.late.len().saturating_sub(1) as f64;
        (!span.is_zero()).then(|| (between / span.as_secs_f64()).round())
    }

    fn fell_behind(&self) -> bool {
        self.late.value_at_quantile(0.99) >= micros(TOO_LATE)
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

    /// What one connection finds at a server that takes `answer` for the request that is sent at a given time.
    fn through_one_connection(schedule: Schedule, answer: impl Fn(Timestamp) -> u64) -> Latencies {
        let (mut found, mut free) = (Latencies::new(), START);
        for due in (0..schedule.count()).filter_map(|number| schedule.due(number)) {
            let sent = due.max(free);
            let ended = sent.plus(Duration::from_micros(answer(sent)));
            found.add(Times { due, free, sent }, ended, Some(200));
            free = ended;
        }
        found
    }

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut found = Latencies::new();
        for latency in 1..=1000 {
            found.add(Times { due: START, free: START, sent: START }, at(latency), Some(200));
        }
        assert_eq!(found.micros(), [500, 900, 990, 999, 1000]);
        assert_eq!((found.doubts(), found.statuses()[&200]), (Vec::new(), 1000));
    }

    /// Trap: a load that waits for the answer before it plans the next request sends nothing while the server stands
    /// still, and then finds one slow answer among thousands of fast ones.
    #[test]
    fn a_server_that_stands_still_is_slow_for_all_that_were_due_meanwhile() {
        let schedule = Schedule::new(START, 1000, Duration::from_secs(10));
        let standstill = |sent: Timestamp| if sent == at(5_000_000) { 1_000_000 } else { 100 };
        let found = through_one_connection(schedule, standstill);
        let [median, ninetieth, .., longest] = found.micros();
        assert_eq!(median, 100);
        assert!((999_000..=1_001_000).contains(&longest), "{longest}");
        assert!(ninetieth > 50_000, "a tenth of the time had to be waited for, not one request: {ninetieth}");
        assert!(!found.fell_behind(), "the load is not to blame");
        let [doubt] = &found.doubts()[..] else { panic!("{:?}", found.doubts()) };
        assert!(doubt.contains("all connections waited"), "{doubt}");
    }

    #[test]
    fn a_load_that_falls_behind_says_so() {
        let mut found = Latencies::new();
        for number in 0..100 {
            let due = at(number * 1000);
            let sent = at(number * 3000);
            found.add(Times { due, free: START, sent }, sent.plus(Duration::from_micros(50)), Some(200));
        }
        assert!(found.fell_behind() && found.json()["fell_behind"] == json!(true));
        assert!(found.doubts()[0].contains("fell behind its own schedule"), "{:?}", found.doubts());
        assert_eq!(found.sent_per_second(), Some(333.0));
    }

    #[test]
    fn what_was_not_answered_counts_and_has_no_latency() {
        let mut found = Latencies::new();
        let times = Times { due: START, free: START, sent: START };
        found.add(times, at(10_000_000), None);
        found.add(times, at(70), Some(429));
        found.give_up(3);
        let json = found.json();
        assert_eq!((&json["requests"], &json["unanswered"], &json["max_us"]), (&json!(5), &json!(4), &json!(70)));
        assert_eq!(json["statuses"], json!({ "429": 1 }));
    }
}
