//! `Limiter::acquire`: waiters are served in order of arrival, give up at their deadline, and consume nothing when they leave.
//! The tests move the clock; nothing really waits.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use conformance::suite::{AnyStore, StoreFixture, count_allowed, left, limits_with_window, on_every_store, until};
use tidegate::{AcquireOutcome, Limit, Limiter, ManualClock, Rate, Request, Rule, StoreError};
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Five workers wait for a bucket with one token per second and are served in order of arrival.
#[tokio::test]
async fn waiters_are_served_first_come_first_served() {
    on_every_store(async |fixture| {
        let queue = Queue::new(fixture, one_per_second(1));
        assert_eq!(count_allowed(&queue.limiter, 1, 1).await, 1);
        for worker in 1..=5 {
            // Each waiter sleeps until its deadline; the first one also until the next token.
            queue.join(worker, 1, MINUTE);
            until(|| fixture.clock.pending_sleeps() == worker as usize + 1).await;
        }
        for served in 1..=5 {
            fixture.clock.advance(SECOND);
            until(|| queue.served().len() == served).await;
            until(|| fixture.clock.pending_sleeps() == if served < 5 { 5 - served + 1 } else { 0 }).await;
        }
        assert_eq!(queue.served(), [1, 2, 3, 4, 5]);
    })
    .await;
}

/// The first waiter needs five tokens, those behind it one each. They do not overtake, or large requests would starve.
#[tokio::test]
async fn a_large_request_is_not_overtaken_by_small_ones() {
    on_every_store(async |fixture| {
        let queue = Queue::new(fixture, one_per_second(5));
        assert_eq!(count_allowed(&queue.limiter, 5, 1).await, 1);
        for (worker, cost) in [(1, 5), (2, 1), (3, 1)] {
            queue.join(worker, cost, MINUTE);
            until(|| fixture.clock.pending_sleeps() == worker as usize + 1).await;
        }
        for waited in 1..=7 {
            assert_eq!(queue.served().len(), usize::saturating_sub(waited, 5), "after {} seconds", waited - 1);
            fixture.clock.advance(SECOND);
            if waited >= 5 {
                until(|| queue.served().len() == waited - 4).await;
                until(|| fixture.clock.pending_sleeps() == if waited < 7 { 7 - waited + 1 } else { 0 }).await;
            }
        }
        assert_eq!(queue.served(), [1, 2, 3]);
    })
    .await;
}

/// Different subjects do not wait for each other, under one limit or two.
#[tokio::test]
async fn waiters_for_different_limits_do_not_block_each_other() {
    let one = Rule::new("api", one_per_second(1)).with_per(["user"]);
    for rule in [one.clone(), one.with_limit("burst", one_per_second(1))] {
        let fixture = StoreFixture::in_memory();
        let limiter = fixture.limiter_of([rule]);
        let (ann, bob) =
            (Request::new("").with_attribute("user", "ann"), Request::new("").with_attribute("user", "bob"));
        assert!(limiter.check(&ann).await.unwrap().is_allowed());
        let mut anns = pin!(limiter.acquire(&ann, MINUTE, &fixture.clock));
        assert!(poll(anns.as_mut()).is_pending());
        assert!(granted(pin!(limiter.acquire(&bob, MINUTE, &fixture.clock))));
    }
}

/// Time spent in the queue counts towards the deadline: a slot after the deadline is not taken.
#[tokio::test]
async fn a_slot_after_the_deadline_is_not_taken() {
    let fixture = StoreFixture::in_memory();
    let limiter = fixture.limiter(Limit::leaky_bucket(Rate::per_second(1).unwrap(), 2).unwrap());
    assert_eq!(count_allowed(&limiter, 1, 3).await, 3, "one goes at once, two wait");
    let request = Request::new("");
    let mut waiter = pin!(limiter.acquire(&request, Duration::from_secs(3), &fixture.clock));
    assert!(poll(waiter.as_mut()).is_pending(), "the queue has room in a second, and the slot comes in three");
    fixture.clock.advance(SECOND);
    assert!(poll(waiter.as_mut()).is_pending(), "it holds the slot that comes in two");
    let mut late = pin!(limiter.acquire(&request, Duration::from_millis(2500), &fixture.clock));
    let Poll::Ready(Ok(AcquireOutcome::Denied(_))) = poll(late.as_mut()) else { panic!("it would come in three") };
    fixture.clock.advance(2 * SECOND);
    assert!(granted(waiter));
}

/// A request that cannot pass before its deadline, or never, is denied without waiting.
#[tokio::test]
async fn a_wait_beyond_the_deadline_is_denied_at_once() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(5, 10 * SECOND) {
            let limiter = fixture.limiter(limit);
            assert_eq!(count_allowed(&limiter, 5, 1).await, 1);
            let retry = limiter.check(&Request::new("").with_cost(4)).await.unwrap().retry_after().unwrap();
            for (cost, wait) in [(4, retry.saturating_sub(Duration::from_micros(1))), (4, Duration::ZERO), (6, MINUTE)]
            {
                let denied = limiter.acquire(&Request::new("").with_cost(cost), wait, &fixture.clock).await.unwrap();
                let AcquireOutcome::Denied(decision) = denied else { panic!("{limit:?} {cost} {wait:?}: {denied:?}") };
                assert_eq!(decision.is_permanent(), cost == 6, "{limit:?}");
            }
            assert_eq!(fixture.clock.pending_sleeps(), 0, "{limit:?}");
            assert_eq!(left(&limiter).await, 0, "{limit:?}");
            fixture.clock.advance(MINUTE);
        }
    })
    .await;
}

/// A waiter whose deadline passes in the queue leaves without a token; the others stay.
#[tokio::test]
async fn a_waiter_that_times_out_consumes_nothing() {
    let fixture = StoreFixture::in_memory();
    let limiter = fixture.limiter(one_per_second(1));
    assert_eq!(count_allowed(&limiter, 1, 1).await, 1);
    let request = Request::new("");
    let mut first = pin!(limiter.acquire(&request, MINUTE, &fixture.clock));
    let mut hurried = pin!(limiter.acquire(&request, SECOND / 2, &fixture.clock));
    let mut third = pin!(limiter.acquire(&request, MINUTE, &fixture.clock));
    assert!(
        poll(first.as_mut()).is_pending() && poll(hurried.as_mut()).is_pending() && poll(third.as_mut()).is_pending()
    );
    fixture.clock.advance(SECOND / 2);
    assert!(matches!(poll(hurried.as_mut()), Poll::Ready(Ok(AcquireOutcome::TimedOut))));
    fixture.clock.advance(SECOND / 2);
    assert!(poll(third.as_mut()).is_pending());
    assert!(granted(first));
    assert!(poll(third.as_mut()).is_pending(), "the token of the one who left was never taken, nor given to two");
    fixture.clock.advance(SECOND);
    assert!(granted(third));
}

/// The first waiter and one in the middle are cancelled. The next ones proceed, and no token is lost.
#[tokio::test]
async fn a_dropped_waiter_consumes_nothing_and_the_next_proceeds() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(1, SECOND) {
            let queue = Queue::new(fixture, limit);
            assert_eq!(count_allowed(&queue.limiter, 1, 1).await, 1);
            let wait = queue.limiter.check(&Request::new("")).await.unwrap().retry_after().unwrap();
            let mut workers = Vec::new();
            for worker in 1..=4 {
                workers.push(queue.join(worker, 1, MINUTE));
                until(|| fixture.clock.pending_sleeps() == worker as usize + 1).await;
            }
            for (dropped, sleeping) in [(0, 4), (2, 3)] {
                workers[dropped].abort();
                until(|| workers[dropped].is_finished() && fixture.clock.pending_sleeps() == sleeping).await;
            }
            fixture.clock.advance(wait);
            until(|| queue.served().len() == 1 && fixture.clock.pending_sleeps() == 2).await;
            fixture.clock.advance(4 * SECOND);
            until(|| queue.served().len() == 2).await;
            assert_eq!(queue.served(), [2, 4], "{limit:?}");
            fixture.clock.advance(MINUTE);
        }
    })
    .await;
}

/// A leaky bucket assigns slots at once. A waiter that leaves before its slot gives it back if it is the last one.
#[tokio::test]
async fn the_last_slot_of_a_leaky_bucket_is_refunded_when_its_waiter_leaves() {
    on_every_store(async |fixture| {
        let queue = Queue::new(fixture, Limit::leaky_bucket(Rate::per_second(1).unwrap(), 5).unwrap());
        let mut workers = Vec::new();
        for worker in 0..4 {
            workers.push(queue.join(worker, 1, MINUTE));
            // The first passes at once; each other one sleeps until its deadline and until its slot.
            until(|| fixture.clock.pending_sleeps() == 2 * worker as usize).await;
        }
        assert_eq!((queue.served(), left(&queue.limiter).await), (vec![0], 2));
        workers[3].abort();
        until(|| workers[3].is_finished()).await;
        await_left(&queue.limiter, 3).await;
        workers[1].abort();
        until(|| workers[1].is_finished() && fixture.clock.pending_sleeps() == 2).await;
        fixture.clock.advance(SECOND);
        assert_eq!(left(&queue.limiter).await, 4, "the place in the middle stays taken, and a second has passed");
        fixture.clock.advance(SECOND);
        until(|| queue.served().len() == 2).await;
        assert_eq!(queue.served(), [0, 2]);
    })
    .await;
}

/// A slot beyond the caller's deadline is not taken.
#[tokio::test]
async fn a_slot_beyond_the_deadline_is_denied_and_not_taken() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(Limit::leaky_bucket(Rate::per_second(1).unwrap(), 5).unwrap());
        assert_eq!(count_allowed(&limiter, 1, 3).await, 3);
        let request = Request::new("");
        tokio::select! {
            late = limiter.acquire(&request, Duration::from_micros(2_999_999), &fixture.clock) => {
                assert!(matches!(&late, Ok(AcquireOutcome::Denied(_))), "{late:?}");
            }
            // One sleep is the deadline; a second one would be a wait.
            () = until(|| fixture.clock.pending_sleeps() > 1) => panic!("it waits for a slot after its deadline"),
        }
        assert_eq!(left(&limiter).await, 3);
    })
    .await;
}

/// Nine workers at three per second, on every kind of limit: all are served in order.
#[tokio::test]
async fn waiting_works_on_every_limit() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(3, SECOND) {
            let queue = Queue::new(fixture, limit);
            for worker in 0..9 {
                queue.join(worker, 1, 60 * MINUTE);
            }
            for _ in 0..1_000 {
                if queue.served().len() == 9 {
                    break;
                }
                fixture.clock.advance(SECOND / 10);
                tokio::task::yield_now().await;
                let _ = left(&queue.limiter).await; // on a server, as long as one question takes
            }
            assert_eq!(queue.served(), (0..9).collect::<Vec<_>>(), "{limit:?}");
            fixture.clock.advance(MINUTE);
        }
    })
    .await;
}

/// A request that no rule matches does not wait, and needs no store.
#[tokio::test]
async fn a_request_without_a_rule_is_granted_at_once() {
    let fixture = StoreFixture::in_memory();
    let limiter = fixture.limiter_of([Rule::new("login", one_per_second(1)).with_action("login")]);
    assert!(granted(pin!(limiter.acquire(&Request::new("other"), Duration::ZERO, &fixture.clock))));
}

// === Helpers ===

fn one_per_second(capacity: u64) -> Limit {
    Limit::token_bucket(capacity, Rate::per_second(1).unwrap()).unwrap()
}

/// A limiter and the workers it has served so far.
struct Queue {
    limiter: Arc<Limiter<AnyStore>>,
    clock: ManualClock,
    served: Arc<Mutex<Vec<u32>>>,
}

impl Queue {
    fn new(fixture: &StoreFixture, limit: Limit) -> Self {
        let limiter = Arc::new(fixture.limiter(limit));
        Self { limiter, clock: fixture.clock.clone(), served: Arc::default() }
    }

    fn join(&self, worker: u32, cost: u64, max_wait: Duration) -> JoinHandle<()> {
        let (limiter, clock, served) = (Arc::clone(&self.limiter), self.clock.clone(), Arc::clone(&self.served));
        tokio::spawn(async move {
            match limiter.acquire(&Request::new("").with_cost(cost), max_wait, &clock).await.unwrap() {
                AcquireOutcome::Granted(_) => served.lock().unwrap().push(worker),
                other => panic!("worker {worker}: {other:?}"),
            }
        })
    }

    fn served(&self) -> Vec<u32> {
        self.served.lock().unwrap().clone()
    }
}

/// Waits for a background refund.
async fn await_left(limiter: &Limiter<AnyStore>, amount: u64) {
    for _ in 0..100_000 {
        if left(limiter).await == amount {
            return;
        }
    }
    panic!("the slot was not given back");
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn granted(future: Pin<&mut impl Future<Output = Result<AcquireOutcome, StoreError>>>) -> bool {
    matches!(poll(future), Poll::Ready(Ok(AcquireOutcome::Granted(_))))
}
