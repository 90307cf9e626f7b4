//! `Histogram`: a lock-free Prometheus histogram of durations.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The number of upper bounds of a histogram.
const BOUNDS: usize = 14;

/// Upper bounds of the buckets for calls to the store.
const CALL_BOUNDS_MICROS: [u64; BOUNDS] =
    [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// Durations by bucket, by default for calls to the store. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Histogram(Arc<HistogramBuckets>);

#[derive(Debug)]
struct HistogramBuckets {
    /// Upper bounds of the buckets.
    bounds_micros: &'static [u64; BOUNDS],
    /// The last one counts durations beyond the last bound.
    counts: [AtomicU64; BOUNDS + 1],
    sum_micros: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::with_bounds(&CALL_BOUNDS_MICROS)
    }
}

impl Histogram {
    /// A histogram with these upper bounds.
    pub(crate) fn with_bounds(bounds_micros: &'static [u64; BOUNDS]) -> Self {
        Self(Arc::new(HistogramBuckets { bounds_micros, counts: Default::default(), sum_micros: AtomicU64::new(0) }))
    }

    /// Counts a duration.
    pub(crate) fn observe(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.0.bounds_micros.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.0.bounds_micros.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // The sum of the buckets read above, so that they agree with it while other threads count.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let seconds = self.0.sum_micros.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn the_text_of_a_histogram_has_cumulative_buckets_a_count_and_a_sum() {
        let (histogram, mut registry) = (Histogram::default(), Registry::default());
        registry.register("took", "Time", histogram.clone());
        for micros in [0, 50, 51, 1_000_000, 1_500_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE took histogram\n",
            "took_sum 2.500101\n",
            "took_count 5\n",
            "took_bucket{le=\"0.00005\"} 2\n",
            "took_bucket{le=\"0.0001\"} 3\n",
            "took_bucket{le=\"0.5\"} 3\n",
            "took_bucket{le=\"1.0\"} 4\n",
            "took_bucket{le=\"+Inf\"} 5\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
