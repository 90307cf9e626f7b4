//! `Matching`: the bottleneck of the service. A fixed number of workers, each busy with a rider for about 200 ms, behind a queue.
//! Queued work is done even for riders who have disconnected, since the service does not notice.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use hdrhistogram::Histogram;
use tidegate::Timer;
use tidegate::sync::{Mutex, MutexGuard};
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

pub(crate) struct Matching {
    workers: Arc<Semaphore>,
    state: Mutex<MatchingState>,
    timer: Arc<dyn Timer>,
}

/// What has happened to riders so far.
pub(crate) struct MatchingState {
    /// Riders waiting for a worker.
    pub(crate) waiting: u64,
    /// Riders matched, including those who had disconnected.
    pub(crate) matched: u64,
    /// Riders rejected because the queue was full.
    pub(crate) rejected: u64,
    /// Microseconds that riders waited for a worker.
    pub(crate) waits: Histogram<u64>,
    rng: Rng,
}

impl Matching {
    pub(crate) fn new(seed: u64, timer: Arc<dyn Timer>) -> Self {
        let (waits, rng) = (histogram(3), seeded_rng(seed, u64::MAX));
        let state = Mutex::new(MatchingState { waiting: 0, matched: 0, rejected: 0, waits, rng });
        Self { workers: Arc::new(Semaphore::new(WORKERS as usize)), state, timer }
    }

    /// Matches a rider once a worker is free. Returns `false` if the queue is full.
    pub(crate) async fn match_rider(self: &Arc<Self>) -> bool {
        {
            let mut state = self.state();
            if state.waiting >= MAX_QUEUE {
                state.rejected += 1;
                return false;
            }
            state.waiting += 1;
        }
        let (done, wait) = oneshot::channel();
        let (matching, enqueued) = (Arc::clone(self), self.timer.now());
        // In a task of its own, so that the work goes on after the caller has disconnected.
        tokio::spawn(async move {
            let worker = matching.workers.acquire().await;
            let match_time = {
                let mut state = matching.state();
                state.waiting -= 1;
                if worker.is_err() {
                    return;
                }
                state.waits.saturating_record(micros(matching.timer.now().since(enqueued)));
                random_duration(&mut state.rng, MIN_MATCH_TIME, MAX_MATCH_TIME)
            };
            matching.timer.sleep(match_time).await;
            matching.state().matched += 1;
            let _ = done.send(());
        });
        wait.await.is_ok()
    }

    /// Ends the phase: everyone in the queue is released.
    pub(crate) fn close(&self) {
        self.workers.close();
    }

    pub(crate) fn busy(&self) -> u32 {
        WORKERS.saturating_sub(u32::try_from(self.workers.available_permits()).unwrap_or(u32::MAX))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, MatchingState> {
        self.state.lock()
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

    fn waiting_and_matched(matching: &Matching) -> (u64, u64) {
        let state = matching.state();
        (state.waiting, state.matched)
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
        assert_eq!((matching.busy(), waiting_and_matched(&matching)), (WORKERS, (5, 0)));
        clock.advance(MAX_MATCH_TIME);
        settle().await;
        assert_eq!((matching.busy(), waiting_and_matched(&matching)), (5, (0, u64::from(WORKERS))));
        clock.advance(MAX_MATCH_TIME);
        settle().await;
        assert_eq!((matching.busy(), matching.state().matched), (0, u64::from(WORKERS) + 5));
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
        assert_eq!(matching.state().matched, 1);
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
        assert_eq!(matching.state().waiting, MAX_QUEUE);
        assert_eq!(matching.state().rejected, 0);
        assert!(!matching.match_rider().await);
        assert_eq!(matching.state().rejected, 1);
        matching.close();
        settle().await;
        assert_eq!(matching.state().waiting, 0);
    }
}
