//! Reservations across slots, while servers fail.

use std::sync::Arc;

use conformance::server::Kind;
use conformance::suite::{MAX_WAIT, wait_until_reachable};
use conformance::topology::Cluster;
use tidegate::Ending;
use tidegate::spi::{Adjustment, Store};

use super::{kill_clients, on_two_servers, pause_writes, remaining, request_of, resume, wait_for_paused_command};

/// One of two slots has lost its hold at a failover and is full. A repeated reservation is denied there, and what the first call has
/// reserved in the other slot stays: it is committed by the id that the caller has.
#[tokio::test]
async fn a_repeated_reservation_that_is_denied_in_one_slot_keeps_the_holds_of_the_first_call() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let (limiter, _) = on_two_servers(&cluster).await;
    let (store, request) = (limiter.store(), request_of("").with_cost(3));
    let mut reservation = limiter.reserve(&request, Some("k")).await.unwrap().take_grant();
    let all = limiter.plan(&request_of("").with_cost(5));
    store.forget(&[*all.checks()[1].key()]).await.unwrap();
    store.apply(&[Adjustment::charge(&all.checks()[1])]).await.outcomes().unwrap();
    assert!(!limiter.reserve(&request, Some("k")).await.unwrap().is_allowed());
    assert_eq!(remaining(&limiter, "").await, [2, 0]);
    limiter.end(&mut reservation, &Ending::Commit(2.into())).await.unwrap();
    assert_eq!(remaining(&limiter, "").await, [3, 0]);
    // A first reservation that is denied holds nothing.
    assert!(!limiter.reserve(&request, Some("other")).await.unwrap().is_allowed());
    assert_eq!(remaining(&limiter, "").await, [3, 0]);
}

/// A server fails in the middle of a reservation with an idempotency key. What the first one holds stays there for the repeat: a release that
/// arrives late would end the repeated reservation.
#[tokio::test]
async fn a_reservation_that_fails_in_one_slot_keeps_its_holds_for_the_repeat() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let (limiter, [_, mut second]) = on_two_servers(&cluster).await;
    let request = || request_of("").with_cost(3);
    pause_writes(&mut second);
    let limiter_of_task = Arc::clone(&limiter);
    let pending = tokio::spawn(async move { limiter_of_task.reserve(&request(), Some("k")).await });
    wait_for_paused_command(&mut second).await;
    kill_clients(&mut second);
    resume(&mut second);
    assert!(pending.await.unwrap().unwrap().degraded().is_some(), "the store has failed");
    wait_until_reachable(&limiter).await;
    assert_eq!(remaining(&limiter, "").await, [2, 5]);
    let mut reservation = limiter.reserve(&request(), Some("k")).await.unwrap().take_grant();
    assert_eq!(remaining(&limiter, "").await, [2, 2]);
    limiter.end(&mut reservation, &Ending::Commit(1.into())).await.unwrap();
    assert_eq!(remaining(&limiter, "").await, [4, 4]);
}

/// The second slot denies a reservation, and the release in the first fails. Unlike a refund, the end of a hold can be repeated: it is
/// sent again, so that nothing is missing for others until the hold has run out.
#[tokio::test]
async fn the_hold_of_a_denied_reservation_is_released_after_a_failure() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let (limiter, [mut first, mut second]) = on_two_servers(&cluster).await;
    let empty = limiter.plan(&request_of("").with_cost(5));
    limiter.store().apply(&[Adjustment::charge(&empty.checks()[1])]).await.outcomes().unwrap();
    pause_writes(&mut second);
    let limiter_of_task = Arc::clone(&limiter);
    let pending = tokio::spawn(async move { limiter_of_task.reserve(&request_of(""), None).await });
    wait_for_paused_command(&mut second).await;
    pause_writes(&mut first);
    resume(&mut second);
    wait_for_paused_command(&mut first).await;
    kill_clients(&mut first);
    resume(&mut first);
    assert!(!pending.await.unwrap().unwrap().is_allowed());
    wait_until_reachable(&limiter).await;
    let is_released = async { while remaining(&limiter, "").await != [5, 0] {} };
    tokio::time::timeout(MAX_WAIT, is_released).await.expect("the hold is released");
}
