//! `Matching`: the part of the service that cannot do more. So many workers, each busy with a rider for a fifth of a second, and
//! a queue in front of them. What is in the queue is done, also for riders who have left: nobody told it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use tidegate::Timer;
use tokio::sync::{Semaphore, oneshot};

use super::draw::Draw;
use crate::traffic::{histogram, micros};

/// How many riders are matched at a time.
pub(crate) const WORKERS: u32 = 30;

/// How long one takes: a fifth of a second on average, which makes 150 riders a second.
const SHORTEST: Duration = Duration::from_millis(160);
const LONGEST: Duration = Duration::from_millis(240);

/// How many may wait. More than a minute of work: as in many services, nobody ever thought about it.
const QUEUE: u64 = 15_000;

/// A pool of workers with a queue.
pub(crate) struct Matching {
    workers: Arc<Semaphore>,
    waiting: AtomicU64,
    matched: AtomicU64,
    full: AtomicU64,
    /// How long riders waited for a worker, in microseconds.
    waits: Mutex<Histogram<u64>>,
    draw: Mutex<Draw>,
    timer: Arc<dyn Timer>,
}

impl Matching {
    pub(crate) fn new(seed: u64, timer: Arc<dyn Timer>) -> Self {
        Self {
            workers: Arc::new(Semaphore::new(WORKERS as usize)),
            waiting: AtomicU64::new(0),
            matched: AtomicU64::new(0),
            full: AtomicU64::new(0),
            waits: Mutex::new(histogram()),
            draw: Mutex::new(Draw::of(seed, u64::MAX)),
            timer,
        }
    }

    /// Matches a rider once a worker is free. Whether that was done: it is not if the queue is full.
    pub(crate) async fn matched(self: &Arc<Self>) -> bool {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= QUEUE {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.full.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let (tell, told) = oneshot::channel();
        let (matching, since) = (Arc::clone(self), self.timer.now());
        // A task of its own: whoever asked may leave, and the work stays.
        tokio::spawn(async move {
            let worker = matching.workers.acquire().await;
            matching.waiting.fetch_sub(1, Ordering::Relaxed);
            let Ok(_worker) = worker else { return };
            let waited = micros(matching.timer.now().since(since));
            matching.waits.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(waited);
            let busy = matching.draw.lock().unwrap_or_else(PoisonError::into_inner).between(SHORTEST, LONGEST);
            matching.timer.sleep(busy).await;
            matching.matched.fetch_add(1, Ordering::Relaxed);
            let _ = tell.send(());
        });
        told.await.is_ok()
    }

    /// Lets everybody in the queue go: the evening is over.
    pub(crate) fn close(&self) {
        self.workers.close();
    }

    /// How many wait for a worker.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many workers are busy.
    pub(crate) fn busy(&self) -> u32 {
        WORKERS.saturating_sub(u32::try_from(self.workers.available_permits()).unwrap_or(u32::MAX))
    }

    /// How many riders were matched, whether they were still there or not.
    pub(crate) fn done(&self) -> u64 {
        self.matched.load(Ordering::Relaxed)
    }

    /// How many found the queue full.
    pub(crate) fn turned_away(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// How long riders waited for a worker, in microseconds.
    pub(crate) fn waits(&self) -> Histogram<u64> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use tidegate::ManualClock;

    use super::*;

    /// Lets every task go as far as it can without time passing.
    async fn settle() {
        for _ in 0..QUEUE * 4 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn as_many_as_there_are_workers_are_matched_at_a_time_and_the_others_wait() {
        let clock = ManualClock::default();
        let matching = Arc::new(Matching::new(1, Arc::new(clock.clone())));
        for _ in 0..WORKERS + 5 {
            let matching = Arc::clone(&matching);
            tokio::spawn(async move { matching.matched().await });
        }
        settle().await;
        assert_eq!((matching.busy(), matching.waiting(), matching.done()), (WORKERS, 5, 0));
        clock.advance(LONGEST);
        settle().await;
        assert_eq!((matching.busy(), matching.waiting(), matching.done()), (5, 0, u64::from(WORKERS)));
        clock.advance(LONGEST);
        settle().await;
        assert_eq!((matching.busy(), matching.done()), (0, u64::from(WORKERS) + 5));
    }

    /// This is what makes retries so dear: the first request of who has left is still worked on before the second.
    #[tokio::test]
    async fn the_work_for_a_rider_who_has_left_is_done_all_the_same() {
        let clock = ManualClock::default();
        let matching = Arc::new(Matching::new(1, Arc::new(clock.clone())));
        let asked = tokio::spawn({
            let matching = Arc::clone(&matching);
            async move { matching.matched().await }
        });
        settle().await;
        asked.abort();
        clock.advance(LONGEST);
        settle().await;
        assert_eq!(matching.done(), 1);
    }

    #[tokio::test]
    async fn a_full_queue_turns_riders_away_and_a_closed_one_lets_them_go() {
        let matching = Arc::new(Matching::new(1, Arc::new(ManualClock::default())));
        let mut asked = tokio::task::JoinSet::new();
        // Those who get a worker leave the queue, so that some more fit.
        for _ in 0..QUEUE + u64::from(WORKERS) {
            let matching = Arc::clone(&matching);
            asked.spawn(async move { matching.matched().await });
            if asked.len() == WORKERS as usize {
                settle().await;
            }
        }
        settle().await;
        assert_eq!((matching.waiting(), matching.turned_away()), (QUEUE, 0));
        assert!(!matching.matched().await);
        assert_eq!(matching.turned_away(), 1);
        matching.close();
        settle().await;
        assert_eq!(matching.waiting(), 0);
    }
}
