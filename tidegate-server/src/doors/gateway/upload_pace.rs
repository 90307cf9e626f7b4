//! `UploadPace`: whether the client of an upload keeps the pace. It samples who must act next, so it needs no clock: the time in
//! which the upstream does not read is not the client's.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

use super::GatewayOptions;
use super::upload::{UploadProgress, UploadStage};
use crate::listen::Pace;

/// Longest interval between two samples.
const MAX_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest interval between two samples.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The time that an upload has taken.
pub(super) struct UploadPace {
    /// None for a request without a body.
    ticks: Option<Interval>,
    interval: Duration,
    pace: Pace,
    total_timeout: Duration,
    total: Duration,
    /// How long the client has kept the gateway waiting.
    waited: Duration,
    /// Bytes at the last sample.
    bytes: u64,
}

impl UploadPace {
    /// The pace of an upload that begins now.
    pub(super) fn new(options: &GatewayOptions, progress: UploadProgress) -> Self {
        let pace = Pace::new(options.client_timeout, options.min_rate);
        let interval = options.client_timeout.min(options.upload_timeout).clamp(MIN_INTERVAL, MAX_INTERVAL);
        let ticks = (progress.stage != UploadStage::Complete).then(|| {
            let mut ticks = tokio::time::interval(interval);
            // The first tick is immediate.
            ticks.reset();
            // The time in which the server itself stood still is not the client's.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Self {
            ticks,
            interval,
            pace,
            total_timeout: options.upload_timeout,
            total: Duration::ZERO,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Waits until the next sample is due.
    pub(super) async fn tick(&mut self) {
        match &mut self.ticks {
            Some(ticks) => {
                ticks.tick().await;
            }
            None => std::future::pending().await,
        }
    }

    /// Takes a sample. Returns whether the upload may go on.
    pub(super) fn allows(&mut self, progress: UploadProgress) -> bool {
        if progress.stage == UploadStage::Complete {
            return true;
        }
        self.total += self.interval;
        let new_bytes = progress.bytes - std::mem::replace(&mut self.bytes, progress.bytes);
        self.waited = self.pace.wait_after(self.waited, new_bytes);
        if progress.stage == UploadStage::WaitingForClient {
            self.waited += self.interval;
        }
        self.total <= self.total_timeout && self.pace.allows(self.waited)
    }
}

#[cfg(test)]
mod tests {
    use super::UploadStage::{Complete, WaitingForClient, WaitingForUpstream};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The sample that ends an upload, counted from one.
    fn ends_at(options: &GatewayOptions, sample: impl Fn(u64) -> (UploadStage, u64)) -> Option<u64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let mut pace = UploadPace::new(options, UploadProgress { stage: WaitingForUpstream, bytes: 0 });
        (1..=10_000).find(|number| {
            let (stage, bytes) = sample(*number);
            !pace.allows(UploadProgress { stage, bytes })
        })
    }

    #[test]
    fn a_client_that_drips_its_body_is_cut_off_and_one_at_the_minimum_rate_is_not() {
        let options = GatewayOptions::new().with_upload_pace(60 * SECOND, 100);
        assert_eq!(ends_at(&options, |number| (WaitingForClient, number / 19)), Some(61), "a byte each 19 seconds");
        let options = options.with_upload_timeout(100_000 * SECOND);
        assert_eq!(ends_at(&options, |number| (WaitingForClient, number * 100)), None);
        assert_eq!(ends_at(&options, |number| (WaitingForClient, number * 50)), Some(120));
    }

    #[test]
    fn the_time_of_a_slow_upstream_is_not_the_clients() {
        let options = GatewayOptions::new().with_upload_timeout(100_000 * SECOND);
        assert_eq!(ends_at(&options, |_| (WaitingForUpstream, 1)), None);
        assert_eq!(ends_at(&options, |_| (Complete, 1)), None);
    }

    #[test]
    fn an_upload_has_a_total_timeout_at_any_rate() {
        let options = GatewayOptions::new().with_upload_timeout(90 * SECOND);
        assert_eq!(ends_at(&options, |number| (WaitingForClient, number << 20)), Some(91));
    }

    #[test]
    fn without_a_minimum_rate_each_byte_starts_the_time_anew() {
        let options = GatewayOptions::new().with_upload_pace(60 * SECOND, 0).with_upload_timeout(100_000 * SECOND);
        assert_eq!(ends_at(&options, |number| (WaitingForClient, number / 19)), None);
        assert_eq!(ends_at(&options, |_| (WaitingForClient, 7)), Some(61));
    }
}
