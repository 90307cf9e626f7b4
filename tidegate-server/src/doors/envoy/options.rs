//! `EnvoyOptions`: settings of an [`EnvoyConfig`](super::EnvoyConfig). It only holds the values.

use tidegate::Secret;

use super::stats::Stats;

/// Default share of a limit from which on hits count as near it.
const DEFAULT_NEAR_LIMIT_RATIO: f32 = 0.8;

/// Settings of an [`EnvoyConfig`](super::EnvoyConfig).
#[derive(Clone, Debug)]
pub struct EnvoyOptions {
    pub(super) strict: bool,
    pub(super) quota: bool,
    pub(super) merge_domains: bool,
    pub(super) near_limit: f32,
    pub(super) headers: Option<[String; 3]>,
    pub(super) secret: Secret,
    pub(super) stats: Stats,
}

impl Default for EnvoyOptions {
    fn default() -> Self {
        Self {
            strict: false,
            quota: false,
            merge_domains: false,
            near_limit: DEFAULT_NEAR_LIMIT_RATIO,
            headers: None,
            secret: Secret::default(),
            stats: Stats::default(),
        }
    }
}

impl EnvoyOptions {
    /// Accepts only the keys of the reference server, and counts as it does.
    pub fn with_strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Makes every limit a quota: a request is denied only if all of them are exhausted.
    pub fn with_quota(mut self, quota: bool) -> Self {
        self.quota = quota;
        self
    }

    /// Allows several files for one domain.
    pub fn with_merge_domains(mut self, merge: bool) -> Self {
        self.merge_domains = merge;
        self
    }

    /// The share of a limit from which on hits count as near it in the statistics: 0.8 by default.
    pub fn with_near_limit(mut self, ratio: f32) -> Self {
        self.near_limit = if ratio.is_nan() { DEFAULT_NEAR_LIMIT_RATIO } else { ratio.clamp(0.0, 1.0) };
        self
    }

    /// Adds response headers with these names: the limit, the remaining hits, and the seconds until the reset.
    pub fn with_headers(mut self, limit: &str, remaining: &str, reset: &str) -> Self {
        self.headers = Some([limit, remaining, reset].map(str::to_owned));
        self
    }

    /// Hashes descriptors with this secret. The default secret is public.
    pub fn with_secret(mut self, secret: &Secret) -> Self {
        self.secret = secret.clone();
        self
    }

    /// Counts hits in these statistics, which the caller can read.
    pub fn with_stats(mut self, stats: &Stats) -> Self {
        self.stats = stats.clone();
        self
    }

    /// The number of hits above which hits count as near the limit, with the precision of the reference server.
    pub(super) fn near_threshold(&self, requests: u32) -> u64 {
        (requests as f32 * self.near_limit).floor() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_near_threshold_is_rounded_down() {
        let near = |ratio, requests| EnvoyOptions::default().with_near_limit(ratio).near_threshold(requests);
        assert_eq!([near(0.8, 10), near(0.8, 9), near(0.8, 1), near(0.8, 0)], [8, 7, 0, 0]);
        assert_eq!([near(0.5, 15), near(1.0, 15), near(7.0, 15), near(-1.0, 15)], [7, 15, 15, 0]);
        assert_eq!(near(f32::NAN, 10), 8);
    }
}
