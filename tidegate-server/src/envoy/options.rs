//! `EnvoyOptions`: how files of the reference server are read and answered. It only holds the choices.

use tidegate::Secret;

use super::stats::Stats;

/// From which share of a limit on hits count as near it.
const NEAR: f32 = 0.8;

/// How such files are read and answered.
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
            near_limit: NEAR,
            headers: None,
            secret: Secret::default(),
            stats: Stats::default(),
        }
    }
}

impl EnvoyOptions {
    /// Refuses what the reference server would refuse, our own keys among it, and counts as it does.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Makes every limit a quota: a request is refused only if all of them are used up.
    pub fn quota(mut self, quota: bool) -> Self {
        self.quota = quota;
        self
    }

    /// Lets several files speak of one domain.
    pub fn merge_domains(mut self, merge: bool) -> Self {
        self.merge_domains = merge;
        self
    }

    /// From which share of a limit on hits count as near it: 0.8, unless this says otherwise. It is about numbers only.
    pub fn near_limit(mut self, share: f32) -> Self {
        self.near_limit = if share.is_nan() { NEAR } else { share.clamp(0.0, 1.0) };
        self
    }

    /// Adds header fields under these names to answers: the limit, what remains, and the seconds until it is whole again.
    pub fn headers(mut self, limit: &str, remaining: &str, reset: &str) -> Self {
        self.headers = Some([limit, remaining, reset].map(str::to_owned));
        self
    }

    /// Hashes descriptors with this secret instead of the public one.
    pub fn secret(mut self, secret: &Secret) -> Self {
        self.secret = secret.clone();
        self
    }

    /// Counts here what becomes of hits, instead of where nobody looks.
    pub fn stats(mut self, stats: &Stats) -> Self {
        self.stats = stats.clone();
        self
    }

    /// How many hits of a limit are not near it yet, with the precision of the reference server.
    pub(super) fn near(&self, requests: u32) -> u64 {
        (requests as f32 * self.near_limit).floor() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_begins_at_the_share_rounded_down() {
        let near = |share, requests| EnvoyOptions::default().near_limit(share).near(requests);
        assert_eq!([near(0.8, 10), near(0.8, 9), near(0.8, 1), near(0.8, 0)], [8, 7, 0, 0]);
        assert_eq!([near(0.5, 15), near(1.0, 15), near(7.0, 15), near(-1.0, 15)], [7, 15, 15, 0]);
        assert_eq!(near(f32::NAN, 10), 8);
    }
}
