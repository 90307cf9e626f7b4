//! `Times`: how long calls took, as a histogram of Prometheus that nobody has to wait for. It forgets the single call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Up to which microsecond each part counts: from a twentieth of a millisecond to a second, and all above.
const BOUNDS: [u64; 14] =
    [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// How long calls took. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Arc<Parts>);

#[derive(Debug, Default)]
struct Parts {
    /// The last is for all that took longer than the last bound.
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Times {
    /// One more call.
    pub(crate) fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let part = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        self.0.counts[part].fetch_add(1, Ordering::Relaxed);
        self.0.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

impl TypedMetric for Times {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Times {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = BOUNDS.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let parts: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // The sum of what is shown, so that the parts and the whole agree while others count on.
        let count = parts.iter().map(|(_, count)| count).sum();
        let seconds = self.0.micros.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(seconds, count, &parts, None)
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
    fn it_reads_as_any_histogram_does() {
        let (times, mut registry) = (Times::default(), Registry::default());
        registry.register("took", "Time", times.clone());
        for micros in [0, 50, 51, 1_000_000, 1_500_000] {
            times.add(Duration::from_micros(micros));
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
