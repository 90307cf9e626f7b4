//! `Stats`: what became of hits, under the names by which dashboards know the reference server. It counts, and decides nothing.
//!
//! A limit holds its [`Counters`], which it was given when it was read, so that counting is a few additions. Only where the
//! author of a file asked for values of requests in a name (`detailed_metric`, `value_to_metric`) are they looked up, and there
//! are at most [`MOST_SERIES`] of those: what comes after them is counted as `other` of its domain.

mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// The most series whose names hold values of requests, domains that nobody configured among them.
pub const MOST_SERIES: usize = 10_000;

/// The longest name of such a series, in bytes.
const LONGEST_NAME: usize = 256;

/// The name for what has no series of its own.
const OTHER: &str = "other";

/// The upper ends of the response times that are told apart, in microseconds.
const TIMES: [u64; 14] =
    [50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];

/// What became of hits. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stats(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    limits: RwLock<Series<Counters>>,
    unknown_domains: RwLock<Series<Number>>,
    service: Calls,
}

/// Counters by the domain and the descriptors, each as `key` or `key_value`.
#[derive(Debug)]
struct Series<C> {
    known: BTreeMap<Vec<String>, Arc<C>>,
    /// How many of them are named after what a request brought.
    runtime: usize,
}

/// What became of the hits of one limit.
#[derive(Debug, Default)]
pub(super) struct Counters {
    total_hits: Number,
    over_limit: Number,
    near_limit: Number,
    within_limit: Number,
    shadow_mode: Number,
    /// The reference server refuses some hits from memory. There is nothing of the kind here, and dashboards ask for it.
    over_limit_with_local_cache: Number,
}

#[derive(Debug, Default)]
struct Calls {
    total_requests: Number,
    service_error: Number,
    redis_error: Number,
    global_shadow_mode: Number,
    config_load_success: Number,
    config_load_error: Number,
    times: [Number; TIMES.len()],
    /// In microseconds.
    time: Number,
}

/// A number that only grows.
#[derive(Debug, Default)]
struct Number(AtomicU64);

/// What happened to a whole request, or to a configuration.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    ServiceError,
    StoreError,
    GlobalShadow,
    ConfigLoaded,
    ConfigRefused,
}

/// Some hits, and the counter that they met.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    pub(super) number: u64,
    /// What the counter stood at before them.
    pub(super) before: u64,
    pub(super) limit: u64,
    /// How many hits are not near the limit yet.
    pub(super) near: u64,
    pub(super) over: bool,
    pub(super) shadow: bool,
}

/// Counting
impl Stats {
    /// The counters of a limit of a file.
    pub(super) fn of_limit(&self, name: Vec<String>) -> Arc<Counters> {
        if let Some(known) = self.0.limits.read().unwrap_or_else(PoisonError::into_inner).known.get(&name) {
            return Arc::clone(known);
        }
        let mut limits = self.0.limits.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(limits.known.entry(name).or_default())
    }

    /// The counters of a limit of `domain` under values of a request.
    pub(super) fn of_values(&self, domain: &str, name: Vec<String>) -> Arc<Counters> {
        found(&self.0.limits, name, &[domain, OTHER])
    }

    pub(super) fn domain_not_found(&self, domain: &str) {
        found(&self.0.unknown_domains, vec![domain.to_owned()], &[OTHER]).add(1);
    }

    pub(super) fn request(&self, took: Duration) {
        let (service, micros) = (&self.0.service, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        service.total_requests.add(1);
        service.time.add(micros);
        if let Some(time) = service.times.get(TIMES.partition_point(|end| *end < micros)) {
            time.add(1);
        }
    }

    pub(super) fn count(&self, event: Event) {
        let service = &self.0.service;
        let counter = match event {
            Event::ServiceError => &service.service_error,
            Event::StoreError => &service.redis_error,
            Event::GlobalShadow => &service.global_shadow_mode,
            Event::ConfigLoaded => &service.config_load_success,
            Event::ConfigRefused => &service.config_load_error,
        };
        counter.add(1);
    }
}

// === impl Counters ===

impl Counters {
    /// Counts hits. Those of one request may be partly within the limit, partly near it, and partly over it.
    pub(super) fn add(&self, hits: Hits) {
        let Hits { number, before, limit, near, over, shadow } = hits;
        let after = before.saturating_add(number);
        self.total_hits.add(number);
        if !over {
            self.within_limit.add(number);
            self.near_limit.add(after.saturating_sub(near).min(number));
            return;
        }
        match after.saturating_sub(limit) {
            beyond if before < limit && beyond > 0 => {
                self.over_limit.add(beyond);
                self.near_limit.add(limit - before.max(near).min(limit));
            }
            _ => self.over_limit.add(number),
        }
        if shadow {
            self.shadow_mode.add(number);
        }
    }

    /// The counters by name, in the order in which they are shown.
    fn each(&self) -> [(&'static str, u64); 6] {
        [
            ("total_hits", self.total_hits.value()),
            ("over_limit", self.over_limit.value()),
            ("near_limit", self.near_limit.value()),
            ("within_limit", self.within_limit.value()),
            ("shadow_mode", self.shadow_mode.value()),
            ("over_limit_with_local_cache", self.over_limit_with_local_cache.value()),
        ]
    }
}

impl Number {
    fn add(&self, more: u64) {
        // A single request may claim any number; what is counted must not go down.
        self.0.fetch_add(more.min(u64::from(u32::MAX)), Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The series of this name, if it is short and there is room for it, else the one for all others.
fn found<C: Default>(series: &RwLock<Series<C>>, name: Vec<String>, others: &[&str]) -> Arc<C> {
    if let Some(known) = series.read().unwrap_or_else(PoisonError::into_inner).known.get(&name) {
        return Arc::clone(known);
    }
    let mut series = series.write().unwrap_or_else(PoisonError::into_inner);
    let short = name.iter().map(String::len).sum::<usize>() <= LONGEST_NAME;
    if !short || series.runtime >= MOST_SERIES {
        let others = others.iter().map(|part| (*part).to_owned()).collect();
        return Arc::clone(series.known.entry(others).or_default());
    }
    series.runtime += usize::from(!series.known.contains_key(&name));
    Arc::clone(series.known.entry(name).or_default())
}

impl<C> Default for Series<C> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), runtime: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(number: u64, before: u64, over: bool) -> Hits {
        Hits { number, before, limit: 10, near: 8, over, shadow: false }
    }

    fn counted(hits: Hits) -> [u64; 4] {
        let counters = Counters::default();
        counters.add(hits);
        let [(_, total), (_, over), (_, near), (_, within), ..] = counters.each();
        [total, over, near, within]
    }

    #[test]
    fn an_addend_is_split_between_within_near_and_over() {
        let cases = [
            (hits(1, 0, false), [1, 0, 0, 1]),
            (hits(8, 0, false), [8, 0, 0, 8]),
            (hits(1, 8, false), [1, 0, 1, 1]),
            // From 6 to 9: one of three is above 8.
            (hits(3, 6, false), [3, 0, 1, 3]),
            (hits(10, 0, false), [10, 0, 2, 10]),
            (hits(1, 10, true), [1, 1, 0, 0]),
            (hits(7, 25, true), [7, 7, 0, 0]),
            // From 5 to 13: three are over, and those from 8 to 10 were near.
            (hits(8, 5, true), [8, 3, 2, 0]),
            (hits(8, 9, true), [8, 7, 1, 0]),
            (hits(0, 10, true), [0, 0, 0, 0]),
            (hits(1 << 20, 9, true), [1 << 20, (1 << 20) - 1, 1, 0]),
            (hits(u64::MAX, 9, true), [u64::from(u32::MAX), u64::from(u32::MAX), 1, 0]),
        ];
        for (hits, expected) in cases {
            assert_eq!(counted(hits), expected, "{hits:?}");
        }
    }

    #[test]
    fn what_has_no_room_is_counted_together() {
        let stats = Stats::default();
        let name = |value: String| vec!["edge".to_owned(), value];
        for number in 0..MOST_SERIES + 100 {
            stats.of_values("edge", name(format!("user_{number}"))).add(hits(1, 0, false));
        }
        stats.of_values("edge", name("user_7".to_owned())).add(hits(1, 0, false));
        stats.of_values("edge", name("long".repeat(LONGEST_NAME))).add(hits(1, 0, false));
        let lines = stats.lines();
        assert!(lines.contains("ratelimit.service.rate_limit.edge.user_7.total_hits: 2\n"));
        assert!(lines.contains("ratelimit.service.rate_limit.edge.other.total_hits: 101\n"));
        assert_eq!(lines.matches(".total_hits: ").count(), MOST_SERIES + 1);
        for number in 0..MOST_SERIES + 5 {
            stats.domain_not_found(&format!("d{number}"));
        }
        assert!(stats.lines().contains("ratelimit.service.rate_limit.other.domain_not_found: 5\n"));
    }
}
