//! `Stats`: counters of hits and requests, under the metric names of the reference server, so that its dashboards work.
//!
//! A limit gets its [`LimitCounters`] when its file is loaded, so that counting is a few additions. Only names with values of
//! requests (`detailed_metric`, `value_to_metric`) are looked up while serving. There are at most [`MAX_SERIES`] of those; the
//! rest is counted as `other` of its domain.

mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::sync::RwLock;

/// Maximum number of series with values of requests in their names, including those of unknown domains.
pub const MAX_SERIES: usize = 10_000;

/// Maximum length of such a name.
const MAX_NAME_BYTES: usize = 256;

/// The name of the series for everything over the maximum.
const OTHER: &str = "other";

/// Upper bounds of the response time histogram, in microseconds.
const BUCKETS_MICROS: [u64; 14] =
    [50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];

/// Statistics of the Envoy service. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Stats(Arc<StatsInner>);

#[derive(Debug, Default)]
struct StatsInner {
    limits: RwLock<SeriesMap<LimitCounters>>,
    unknown_domains: RwLock<SeriesMap<StatCounter>>,
    service: ServiceCounters,
}

/// Counters by domain and descriptors, each as `key` or `key_value`.
#[derive(Debug)]
struct SeriesMap<C> {
    by_name: BTreeMap<Vec<String>, Arc<C>>,
    /// Number of series that are named after values of requests.
    dynamic_count: usize,
}

/// The counters of one limit.
#[derive(Debug, Default)]
pub(super) struct LimitCounters {
    total_hits: StatCounter,
    over_limit: StatCounter,
    near_limit: StatCounter,
    within_limit: StatCounter,
    shadow_mode: StatCounter,
    /// Always 0: the reference server denies some hits from a local cache, which does not exist here. Dashboards expect it.
    over_limit_with_local_cache: StatCounter,
}

/// The counters of the service as a whole.
#[derive(Debug, Default)]
struct ServiceCounters {
    total_requests: StatCounter,
    service_error: StatCounter,
    redis_error: StatCounter,
    global_shadow_mode: StatCounter,
    config_load_success: StatCounter,
    config_load_error: StatCounter,
    response_time_buckets: [StatCounter; BUCKETS_MICROS.len()],
    response_micros: StatCounter,
}

/// A counter that never decreases.
#[derive(Debug, Default)]
struct StatCounter(AtomicU64);

/// An event of the service, or of its configuration.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    ServiceError,
    StoreError,
    GlobalShadow,
    ConfigLoaded,
    ConfigRejected,
}

/// Hits of one descriptor, with the state of their limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    pub(super) count: u64,
    /// Hits counted before these.
    pub(super) before: u64,
    pub(super) limit: u64,
    /// Hits above this number are near the limit.
    pub(super) near_threshold: u64,
    pub(super) over: bool,
    pub(super) shadow: bool,
}

/// Counting
impl Stats {
    /// The counters of a configured limit.
    pub(super) fn limit_counters(&self, name: Vec<String>) -> Arc<LimitCounters> {
        if let Some(counters) = self.0.limits.read().by_name.get(&name) {
            return Arc::clone(counters);
        }
        let mut limits = self.0.limits.write();
        Arc::clone(limits.by_name.entry(name).or_default())
    }

    /// The counters of a limit of `domain`, under a name with values of the request.
    pub(super) fn value_counters(&self, domain: &str, name: Vec<String>) -> Arc<LimitCounters> {
        get_or_other(&self.0.limits, name, &[domain, OTHER])
    }

    pub(super) fn count_unknown_domain(&self, domain: &str) {
        get_or_other(&self.0.unknown_domains, vec![domain.to_owned()], &[OTHER]).add(1);
    }

    pub(super) fn record_request(&self, response_time: Duration) {
        let (service, micros) = (&self.0.service, u64::try_from(response_time.as_micros()).unwrap_or(u64::MAX));
        service.total_requests.add(1);
        service.response_micros.add(micros);
        let bucket = BUCKETS_MICROS.partition_point(|bound| *bound < micros);
        if let Some(bucket) = service.response_time_buckets.get(bucket) {
            bucket.add(1);
        }
    }

    pub(super) fn count(&self, event: Event) {
        let service = &self.0.service;
        let counter = match event {
            Event::ServiceError => &service.service_error,
            Event::StoreError => &service.redis_error,
            Event::GlobalShadow => &service.global_shadow_mode,
            Event::ConfigLoaded => &service.config_load_success,
            Event::ConfigRejected => &service.config_load_error,
        };
        counter.add(1);
    }
}

// === impl LimitCounters ===

impl LimitCounters {
    /// Counts hits, which may be partly within the limit, partly near it, and partly over it.
    pub(super) fn add(&self, hits: Hits) {
        let Hits { count, before, limit, near_threshold, over, shadow } = hits;
        let after = before.saturating_add(count);
        self.total_hits.add(count);
        if !over {
            self.within_limit.add(count);
            self.near_limit.add(after.saturating_sub(near_threshold).min(count));
            return;
        }
        let over_limit = match after.saturating_sub(limit) {
            excess if before < limit && excess > 0 => {
                self.near_limit.add(limit - before.max(near_threshold).min(limit));
                excess
            }
            _ => count,
        };
        self.over_limit.add(over_limit);
        if shadow {
            self.shadow_mode.add(over_limit);
        }
    }

    /// The names and values of all counters, in output order.
    fn values(&self) -> [(&'static str, u64); 6] {
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

impl StatCounter {
    fn add(&self, count: u64) {
        // A request may claim any number of hits; the cap keeps the counter from wrapping around.
        self.0.fetch_add(count.min(u64::from(u32::MAX)), Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The series of this name, or that of all others if the name is too long or there are too many series.
fn get_or_other<C: Default>(series: &RwLock<SeriesMap<C>>, name: Vec<String>, others: &[&str]) -> Arc<C> {
    if let Some(counters) = series.read().by_name.get(&name) {
        return Arc::clone(counters);
    }
    let mut series = series.write();
    let is_short = name.iter().map(String::len).sum::<usize>() <= MAX_NAME_BYTES;
    if !is_short || series.dynamic_count >= MAX_SERIES {
        let others = others.iter().map(|part| (*part).to_owned()).collect();
        return Arc::clone(series.by_name.entry(others).or_default());
    }
    series.dynamic_count += usize::from(!series.by_name.contains_key(&name));
    Arc::clone(series.by_name.entry(name).or_default())
}

impl<C> Default for SeriesMap<C> {
    fn default() -> Self {
        Self { by_name: BTreeMap::new(), dynamic_count: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(count: u64, before: u64, over: bool) -> Hits {
        Hits { count, before, limit: 10, near_threshold: 8, over, shadow: false }
    }

    fn counts_after(hits: Hits) -> [u64; 4] {
        let counters = LimitCounters::default();
        counters.add(hits);
        let [(_, total), (_, over), (_, near), (_, within), ..] = counters.values();
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
            assert_eq!(counts_after(hits), expected, "{hits:?}");
        }
    }

    #[test]
    fn shadow_mode_counts_only_the_hits_over_the_limit() {
        for (count, before, over, expected) in [(8, 5, true, 3), (7, 25, true, 7), (1, 10, true, 1), (3, 6, false, 0)] {
            let counters = LimitCounters::default();
            counters.add(Hits { shadow: true, ..hits(count, before, over) });
            let values = counters.values();
            let value = |name: &str| values.iter().find(|(counter, _)| *counter == name).map(|(_, value)| *value);
            assert_eq!(value("shadow_mode"), Some(expected), "{count} hits after {before}");
            assert_eq!(value("over_limit"), Some(expected), "{count} hits after {before}");
        }
    }

    #[test]
    fn series_over_the_maximum_are_counted_as_other() {
        let stats = Stats::default();
        let name = |value: String| vec!["edge".to_owned(), value];
        for count in 0..MAX_SERIES + 100 {
            stats.value_counters("edge", name(format!("user_{count}"))).add(hits(1, 0, false));
        }
        stats.value_counters("edge", name("user_7".to_owned())).add(hits(1, 0, false));
        stats.value_counters("edge", name("long".repeat(MAX_NAME_BYTES))).add(hits(1, 0, false));
        let lines = stats.lines();
        assert!(lines.contains("ratelimit.service.rate_limit.edge.user_7.total_hits: 2\n"));
        assert!(lines.contains("ratelimit.service.rate_limit.edge.other.total_hits: 101\n"));
        assert_eq!(lines.matches(".total_hits: ").count(), MAX_SERIES + 1);
        for count in 0..MAX_SERIES + 5 {
            stats.count_unknown_domain(&format!("d{count}"));
        }
        assert!(stats.lines().contains("ratelimit.service.rate_limit.other.domain_not_found: 5\n"));
    }
}
