//! `Limiter::acquire` on concurrency limits, on every store. The order, the back-off and the deadline are tested in virtual time with the
//! library.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use conformance::suite::{left, on_every_store};
use tidegate::{AcquireOutcome, Ending, ManualClock, Request, Rule};

use crate::leases::{LEASE, hold, slots, wait_for_left};

/// The first interval after which a caller asks again.
const POLL: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_caller_that_waits_gets_the_slot_that_another_releases_without_a_delay() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(slots(1));
        let mut lease = hold(&limiter).await;
        let request = Request::new("");
        let mut waiting = pin!(limiter.acquire(&request, LEASE / 2, &fixture.clock));
        assert!(poll_until_sleeping(&mut waiting, &fixture.clock).await);
        limiter.end(&mut lease, &Ending::Release).await.unwrap();
        assert!(
            matches!(waiting.await.unwrap(), AcquireOutcome::Granted(decision) if decision.checks()[0].is_consumed())
        );
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_waits_finds_the_slot_that_another_instance_releases() {
    on_every_store(async |fixture| {
        let [here, elsewhere] = [(); 2].map(|()| fixture.limiter_of([Rule::new("r", slots(1))]));
        let mut lease = hold(&elsewhere).await;
        let request = Request::new("");
        let mut waiting = pin!(here.acquire(&request, LEASE / 2, &fixture.clock));
        assert!(poll_until_sleeping(&mut waiting, &fixture.clock).await);
        elsewhere.end(&mut lease, &Ending::Release).await.unwrap();
        fixture.clock.advance(POLL);
        assert!(
            matches!(waiting.await.unwrap(), AcquireOutcome::Granted(decision) if decision.checks()[0].is_consumed())
        );
    })
    .await;
}

/// It goes away during its first call, at an unknown moment: before, while or after the store decides.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_held() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(slots(1));
        let request = Request::new("");
        for polls in 0..20 {
            {
                let mut waiting = pin!(limiter.acquire(&request, LEASE, &fixture.clock));
                for _ in 0..polls {
                    if waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                        // The decision was received, and dropped by the caller.
                        limiter.forget(&request).await.unwrap();
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            wait_for_left(&limiter, 1).await;
        }
        assert_eq!(left(&limiter).await, 1);
    })
    .await;
}

/// Polls until the future sleeps twice: until its deadline, and until it asks again.
async fn poll_until_sleeping<F: Future + Unpin>(future: &mut F, clock: &ManualClock) -> bool {
    while clock.pending_sleeps() < 2 {
        if std::pin::Pin::new(&mut *future).poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return false;
        }
        tokio::task::yield_now().await;
    }
    true
}
