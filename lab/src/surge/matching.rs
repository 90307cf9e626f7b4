//! `Matching`: the bottleneck of the service. A fixed number of workers, each busy with a rider for about 200 ms, behind a queue.
//! Queued work is done even for riders who have disconnected, since the service does not notice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use hdrhistogram::Histogram;
use tidegate::Timer;
use tokio::sync::{Semaphore, oneshot};

use super::rng::{random_duration, seeded_rng};
use crate::traffic::{histogram, micros};

/// Riders matched at the same time.
pub(crate) const WORKERS: u32 = 30;

/// Time to match one rider: 200 ms on average, so 150 riders a second.
const MIN_MATCH_TIME: Duration = Duration::from_millis(160);
const MAX_MATCH_TIME: Duration = Duration::from_millis(240);

/// Riders that may wait: more than a minute of work, as in many services whose queue was never tuned.
const MAX_QUEUE: u64 = 15_000;

/// A worker pool with a queue.
pub(crate) struct Matching {
    workers: Arc<Semaphore>,
    waiting: AtomicU64,
    matched: AtomicU64,
    rejected: AtomicU64,
    /// Microseconds that riders waited for a worker.
    waits: Mutex<Histogram<u64>>,
    rng: Mutex<Rng>,
    timer: Arc<dyn Timer>,
}

impl Matching {
    pub(crate) fn new(seed: u64, timer: Arc<dyn Timer>) -> Self {
        Self {
            workers: Arc::new(Semaphore::new(WORKERS as usize)),
            waiting: AtomicU64::new(0),
            matched: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            waits: Mutex::new(histogram(3)),
            rng: Mutex::new(seeded_rng(seed, u64::MAX)),
            timer,
        }
    }

    /// Matches a rider once a worker is free. Returns `false` if the queue is full.
    pub(crate) async fn match_rider(self: &Arc<Self>) -> bool {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_QUEUE {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let (done, wait) = oneshot::channel();
        let (matching, enqueued) = (Arc::clone(self), self.timer.now());
        // In a task of its own, so that the work goes on after the caller has disconnected.
        tokio::spawn(async move {
            let worker = matching.workers.acquire().await;
            matching.waiting.fetch_sub(1, Ordering::Relaxed);
            let Ok(_worker) = worker else { return };
            let waited = micros(matching.timer.now().since(enqueued));
            matching.waits.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(waited);
            let match_time = {
                let mut rng = matching.rng.lock().unwrap_or_else(PoisonError::into_inner);
                random_duration(&mut rng, MIN_MATCH_TIME, MAX_MATCH_TIME)
            };
            matching.timer.sleep(match_time).await;
            matching.matched.fetch_add(1, Ordering::Relaxed);
            let _ = done.send(());
        });
        wait.await.is_ok()
    }

    /// Ends the phase: everyone in the queue is released.
    pub(crate) fn close(&self) {
        self.workers.close();
    }

    /// Riders waiting for a worker.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Busy workers.
    pub(crate) fn busy(&self) -> u32 {
        WORKERS.saturating_sub(u32::try_from(self.workers.available_permits()).unwrap_or(u32::MAX))
    }

    /// Riders matched, including those who had disconnected.
    pub(crate) fn matched_count(&self) -> u64 {
        self.matched.load(Ordering::Relaxed)
    }

    /// Riders rejected because the queue was full.
    pub(crate) fn rejected_count(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Microseconds that riders waited for a worker.
    pub(crate) fn waits(&self) -> Histogram<u64> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use tidegate::ManualClock;

    use super::*;

    /// Runs every task as far as it gets without time passing.
    async fn settle() {
        for _ in 0..MAX_QUEUE * 4 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn each_worker_matches_one_rider_at_a_time_and_the_others_wait() {
        let clock = ManualClock::default();
        let matching = Arc::new(Matching::new(1, Arc::new(clock.clone())));
        for _ in 0..WORKERS + 5 {
            let matching = Arc::clone(&matching);
            tokio::spawn(async move { matching.match_rider().await });
        }
        settle().await;
        assert_eq!((matching.busy(), matching.waiting(), matching.matched_count()), (WORKERS, 5, 0));
        clock.advance(MAX_MATCH_TIME);
        settle().await;
        assert_eq!((matching.busy(), matching.waiting(), matching.matched_count()), (5, 0, u64::from(WORKERS)));
        clock.advance(MAX_MATCH_TIME);
        settle().await;
        assert_eq!((matching.busy(), matching.matched_count()), (0, u64::from(WORKERS) + 5));
    }

    /// This is why retries are expensive: the abandoned first request is processed before the second.
    #[tokio::test]
    async fn the_work_for_a_disconnected_rider_is_still_done() {
        let clock = ManualClock::default();
        let matching = Arc::new(Matching::new(1, Arc::new(clock.clone())));
        let request = tokio::spawn({
            let matching = Arc::clone(&matching);
            async move { matching.match_rider().await }
        });
        settle().await;
        request.abort();
        clock.advance(MAX_MATCH_TIME);
        settle().await;
        assert_eq!(matching.matched_count(), 1);
    }

    #[tokio::test]
    async fn a_full_queue_rejects_riders_and_a_closed_one_releases_them() {
        let matching = Arc::new(Matching::new(1, Arc::new(ManualClock::default())));
        let mut requests = tokio::task::JoinSet::new();
        // Riders with a worker leave the queue, so that more fit.
        for _ in 0..MAX_QUEUE + u64::from(WORKERS) {
            let matching = Arc::clone(&matching);
            requests.spawn(async move { matching.match_rider().await });
            if requests.len() == WORKERS as usize {
                settle().await;
            }
        }
        settle().await;
        assert_eq!((matching.waiting(), matching.rejected_count()), (MAX_QUEUE, 0));
        assert!(!matching.match_rider().await);
        assert_eq!(matching.rejected_count(), 1);
        matching.close();
        settle().await;
        assert_eq!(matching.waiting(), 0);
    }
}
