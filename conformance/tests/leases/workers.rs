//! `Limiter::hold`: a worker keeps its slot as long as it works, even if the store is emptied, and learns when it is lost.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use conformance::suite::{AnyStore, StoreFixture, left, on_every_store, until};
use tidegate::grants::{GrantError, Retake};
use tidegate::{Clock, Grant, Limiter, ManualClock, Request, Rule, Timestamp};
use tokio::sync::oneshot::{Sender, channel};
use tokio::task::JoinHandle;

use crate::leases::{LEASE, hold, slots, take, wait_for_left};

#[tokio::test]
async fn a_worker_holds_its_slot_as_long_as_it_works_and_releases_it_at_the_end() {
    on_every_store(async |fixture| {
        let limiter = Arc::new(fixture.limiter(slots(1)));
        let lease = hold(&*limiter).await;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (worker, clock) = (Arc::clone(&limiter), fixture.clock.clone());
        let working = tokio::spawn(async move { worker.hold(lease, &clock, stopped).await });
        for _ in 0..20 {
            until(|| fixture.clock.pending_sleeps() == 1).await;
            assert_eq!(left(&*limiter).await, 0);
            fixture.clock.advance(LEASE / 3);
            until_renewed(&limiter, &fixture.clock).await;
        }
        stop.send("done").unwrap();
        assert_eq!(working.await.unwrap().unwrap().unwrap(), "done");
        wait_for_left(&limiter, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_dropped_or_panics_releases_its_slot() {
    on_every_store(async |fixture| {
        let limiter = Arc::new(fixture.limiter(slots(1)));
        let lease = hold(&*limiter).await;
        let (worker, clock) = (Arc::clone(&limiter), fixture.clock.clone());
        let panicking = tokio::spawn(async move {
            worker.hold(lease, &clock, async { panic!("a worker fails") }).await.map(|(): ()| ())
        });
        assert!(panicking.await.unwrap_err().is_panic());
        wait_for_left(&limiter, 1).await;
        let lease = hold(&*limiter).await;
        {
            let mut working = pin!(limiter.hold(lease, &fixture.clock, pending::<()>()));
            assert!(working.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        wait_for_left(&limiter, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_has_lost_its_slot_is_stopped_and_told_so() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(slots(1));
        let lease = hold(&limiter).await;
        let mut working = pin!(limiter.hold(lease, &fixture.clock, pending::<()>()));
        assert!(working.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        fixture.clock.advance(LEASE);
        assert!(matches!(working.await, Err(GrantError::NotHeld)));
        assert_eq!(left(&limiter).await, 1);
    })
    .await;
}

/// A worker that runs until it is stopped.
struct Worker {
    stop: Option<Sender<()>>,
    result: JoinHandle<Result<(), GrantError>>,
}

impl Worker {
    /// Starts a worker, and waits until it sleeps until its first renewal.
    async fn start(limiter: &Arc<Limiter<AnyStore>>, lease: Grant, timer: &ManualClock) -> Self {
        let (stop, stopped) = channel();
        let (limiter, clock, sleeps) = (Arc::clone(limiter), timer.clone(), timer.pending_sleeps());
        let result = tokio::spawn(async move { limiter.hold(lease, &clock, stopped).await.map(|_| ()) });
        until(|| timer.pending_sleeps() > sleeps).await;
        Self { stop: Some(stop), result }
    }

    /// Whether it works until it is stopped.
    async fn works(mut self) -> bool {
        drop(self.stop.take());
        self.result.await.unwrap().is_ok()
    }
}

/// The limiter, and the lease of a worker whose slot the store has lost.
async fn lose_slot(fixture: &StoreFixture, max: u64) -> (Arc<Limiter<AnyStore>>, Worker) {
    let limiter = Arc::new(fixture.limiter(slots(max)));
    let lease = hold(&*limiter).await;
    let worker = Worker::start(&limiter, lease, &fixture.clock).await;
    limiter.forget(&Request::new("")).await.unwrap();
    (limiter, worker)
}

#[tokio::test]
async fn a_worker_whose_slot_the_store_has_lost_takes_it_again_if_there_is_room() {
    on_every_store(async |fixture| {
        let (limiter, worker) = lose_slot(fixture, 2).await;
        let _other = hold(&*limiter).await;
        fixture.clock.advance(LEASE / 3);
        until(|| fixture.clock.pending_sleeps() == 1).await;
        assert_eq!(left(&*limiter).await, 0);
        assert!(!take(&*limiter).await.is_allowed());
        assert!(worker.works().await);
        wait_for_left(&limiter, 1).await;
    })
    .await;
}

/// At most the limit is counted: the other one has taken the only slot.
#[tokio::test]
async fn a_worker_whose_slot_the_store_has_lost_and_another_has_taken_is_stopped() {
    on_every_store(async |fixture| {
        let (limiter, worker) = lose_slot(fixture, 1).await;
        let other = hold(&*limiter).await;
        fixture.clock.advance(LEASE / 3);
        assert!(matches!(worker.result.await.unwrap(), Err(GrantError::NotHeld)));
        limiter.renew(&other, Retake::No).await.unwrap();
        assert_eq!(left(&*limiter).await, 0);
    })
    .await;
}

/// The worker measures time by its own clock.
#[tokio::test]
async fn a_clock_of_the_store_that_jumps_stops_no_worker_if_there_is_room() {
    on_every_store(async |fixture| {
        let (limiter, timer) = (Arc::new(fixture.limiter(slots(1))), ManualClock::default());
        let worker = Worker::start(&limiter, hold(&*limiter).await, &timer).await;
        let start = fixture.clock.now();
        for jump in [10 * LEASE, 30 * LEASE] {
            fixture.clock.set(start.plus(jump));
            assert_eq!(left(&*limiter).await, 1, "its slot has run out");
            timer.advance(LEASE / 3);
            until(|| timer.pending_sleeps() == 1).await;
            assert_eq!(left(&*limiter).await, 0, "it was taken again");
        }
        fixture.clock.set(Timestamp::from_micros(start.as_micros() - 3_600_000_000));
        timer.advance(LEASE / 3);
        until(|| timer.pending_sleeps() == 1).await;
        assert!(!take(&*limiter).await.is_allowed());
        assert!(worker.works().await);
    })
    .await;
}

#[tokio::test]
async fn workers_above_a_lowered_limit_are_stopped_at_their_next_renewal() {
    on_every_store(async |fixture| {
        let wide = fixture.limiter_of([Rule::new("r", slots(3))]);
        let narrow = Arc::new(fixture.limiter_of([Rule::new("r", slots(2))]));
        let mut workers = Vec::new();
        for _ in 0..3 {
            workers.push(Worker::start(&narrow, hold(&wide).await, &fixture.clock).await);
        }
        fixture.clock.advance(LEASE / 3);
        until(|| fixture.clock.pending_sleeps() == 2 && workers.iter().any(|worker| worker.result.is_finished())).await;
        let mut working = 0;
        for worker in workers {
            working += u32::from(worker.works().await);
        }
        assert_eq!(working, 2);
        wait_for_left(&narrow, 2).await;
    })
    .await;
}

/// Waits until the worker that was woken by the clock sleeps again, and its slot was renewed now.
async fn until_renewed(limiter: &Limiter<AnyStore>, clock: &ManualClock) {
    until(|| clock.pending_sleeps() == 1).await;
    let reset = limiter.peek(&Request::new("")).await.unwrap().reset_after();
    assert_eq!(reset, Some(LEASE));
}
