//! Confirmation: nobody is told that an entry is durable which is not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tidegate::StoreErrorKind;
use tidegate::spi::LedgerStage;

use super::super::flusher::Flusher;
use super::super::state::ServiceState;
use super::fixture::{Fixture, account, all_of, until};

#[tokio::test]
async fn a_confirmed_entry_is_in_the_ledger_and_leaves_the_outbox() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 3).await;
    service.confirm(vec![all_of(partition, 7)]).await.unwrap();
    assert_eq!(fixture.ledger_used("acme").await, 3);
    until(|| fixture.store.is_outbox_empty(partition)).await;
    assert_eq!((service.stats().entries_posted, service.stats().entries_repeated), (1, 0));
    until(|| async { fixture.journal.waiting() == 0 }).await;
    service.confirm(vec![all_of(partition, 7)]).await.unwrap();
    service.confirm(Vec::new()).await.unwrap();
}

#[tokio::test]
async fn nobody_is_confirmed_before_the_ledger_has_committed() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 3).await;
    let lock = fixture.lock_ledger().await;
    let mut confirmed = service.confirm(vec![all_of(partition, 7)]);
    assert!((&mut confirmed).now_or_never().is_none());
    until(|| async { service.stats().waiting == 1 }).await;
    assert!((&mut confirmed).now_or_never().is_none());
    lock.release().await;
    confirmed.await.unwrap();
    assert_eq!(fixture.ledger_used("acme").await, 3);
}

/// A flush that has read the outbox already does not contain the entry of a caller that comes later.
#[tokio::test]
async fn a_caller_that_comes_during_a_flush_is_confirmed_by_the_next_one() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 1).await;
    fixture.store.pause_reads();
    let first = tokio::spawn({
        let service = service.clone();
        async move { service.confirm(vec![all_of(partition, 7)]).await }
    });
    fixture.store.wait_for_paused_read().await;
    fixture.store.consume("acme", 2).await;
    let mut second = service.confirm(vec![all_of(partition, 7)]);
    assert!((&mut second).now_or_never().is_none());
    fixture.store.let_reads_return();
    first.await.unwrap().unwrap();
    second.await.unwrap();
    assert_eq!(fixture.ledger_used("acme").await, 3);
}

#[tokio::test]
async fn a_caller_that_goes_away_changes_nothing() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 1).await;
    assert!(service.confirm(vec![all_of(partition, 7)]).now_or_never().is_none());
    service.confirm(vec![all_of(partition, 7)]).await.unwrap();
    assert_eq!(fixture.ledger_used("acme").await, 1);
}

#[tokio::test]
async fn a_caller_whose_generation_was_replaced_gets_an_error_and_others_do_not() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 1).await;
    let (lost, kept) =
        tokio::join!(service.confirm(vec![all_of(partition, 6)]), service.confirm(vec![all_of(partition, 7)]));
    let lost = lost.unwrap_err();
    assert_eq!((lost.kind(), lost.is_possibly_applied()), (StoreErrorKind::Rebuilding, true));
    kept.unwrap();
}

#[tokio::test]
async fn a_long_outbox_is_posted_to_its_end_in_batches_before_a_caller_is_confirmed() {
    let fixture = Fixture::new().await;
    let service = fixture.start_with(fixture.options().with_batch(2));
    let partition = account("acme").await.partition;
    for _ in 0..9 {
        fixture.store.consume("acme", 1).await;
    }
    service.confirm(vec![all_of(partition, 7)]).await.unwrap();
    assert_eq!(fixture.ledger_used("acme").await, 9);
    assert_eq!((service.stats().posts, service.stats().entries_repeated), (5, 0));
}

#[tokio::test]
async fn partitions_that_are_wanted_together_are_posted_together() {
    let fixture = Fixture::new().await;
    let service = fixture.start();
    let mut partitions = Vec::new();
    for tenant in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"] {
        fixture.store.consume(tenant, 1).await;
        partitions.push(all_of(account(tenant).await.partition, 7));
    }
    service.confirm(partitions).await.unwrap();
    let stats = service.stats();
    assert_eq!((stats.posts, stats.entries_posted), (1, 12));
}

#[tokio::test]
async fn an_unavailable_ledger_fails_callers_and_later_has_every_entry_once() {
    let fixture = Fixture::new().await;
    let mut options = fixture.options();
    options.ledger_timeout = Duration::from_millis(50);
    let (service, partition) = (fixture.start_with(options), account("acme").await.partition);
    fixture.store.consume("acme", 1).await;
    let lock = fixture.lock_ledger().await;
    let error = service.confirm(vec![all_of(partition, 7)]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Unavailable, true));
    assert!(service.stats().ledger_error.is_some());
    assert!(service.ready().is_err_and(|error| !error.is_possibly_applied()));
    fixture.store.consume("acme", 2).await;
    let at_once = service.confirm(vec![all_of(partition, 7)]).now_or_never();
    assert!(at_once.is_some_and(|result| result.is_err()), "it does not wait while the ledger is unavailable");
    assert!(!fixture.store.is_outbox_empty(partition).await);
    lock.release().await;
    // On a busy machine the ledger may be too slow once more.
    until(|| async { service.confirm(vec![all_of(partition, 7)]).await.is_ok() }).await;
    assert_eq!(fixture.ledger_used("acme").await, 3);
    until(|| fixture.store.is_outbox_empty(partition)).await;
    until(|| async { service.ready().is_ok() }).await;
}

#[tokio::test]
async fn a_failing_store_fails_callers_and_recovers() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 1).await;
    fixture.store.set_failing(true);
    assert!(service.confirm(vec![all_of(partition, 7)]).await.unwrap_err().is_possibly_applied());
    fixture.store.set_failing(false);
    service.confirm(vec![all_of(partition, 7)]).await.unwrap();
    assert_eq!(fixture.ledger_used("acme").await, 1);
}

#[tokio::test]
async fn a_caller_waits_no_longer_than_its_budget() {
    let fixture = Fixture::new().await;
    let service = fixture.start_with(fixture.options().with_budget(Duration::from_millis(20)));
    let partition = account("acme").await.partition;
    fixture.store.consume("acme", 1).await;
    fixture.store.pause_reads();
    let error = service.confirm(vec![all_of(partition, 7)]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Unavailable, true));
    until(|| async {
        service.confirm(vec![all_of(partition, 7)]).now_or_never().is_some_and(|result| result.is_err())
    })
    .await;
    fixture.store.let_reads_return();
    until(|| async { service.confirm(vec![all_of(partition, 7)]).await.is_ok() }).await;
    assert_eq!(fixture.ledger_used("acme").await, 1);
}

#[tokio::test]
async fn two_services_on_one_outbox_count_each_entry_once() {
    let fixture = Fixture::new().await;
    let (one, other) = (fixture.start(), fixture.start());
    let partition = account("acme").await.partition;
    for _ in 0..20 {
        fixture.store.consume("acme", 1).await;
        let (first, second) =
            tokio::join!(one.confirm(vec![all_of(partition, 7)]), other.confirm(vec![all_of(partition, 7)]));
        first.unwrap();
        second.unwrap();
    }
    assert_eq!(fixture.ledger_used("acme").await, 20);
    assert_eq!(one.stats().entries_posted + other.stats().entries_posted, 20);
}

#[tokio::test]
async fn entries_that_nobody_waits_for_are_posted_at_intervals() {
    let fixture = Fixture::new().await;
    let service = fixture.start_with(fixture.options().with_flush_interval(Duration::from_millis(1)));
    fixture.store.consume("acme", 4).await;
    until(|| async { service.stats().entries_posted == 1 }).await;
    assert_eq!(fixture.ledger_used("acme").await, 4);
}

/// The instance that wrote the entry is gone, so nobody names its partition.
#[tokio::test]
async fn entries_of_a_crashed_instance_are_found_by_the_sweep() {
    let fixture = Fixture::new().await;
    fixture.store.consume("acme", 4).await;
    assert_eq!(tidegate::spi::Outbox::take_written_partitions(&fixture.store).len(), 1);
    let tick = Duration::from_millis(1);
    let service = fixture.start_with(fixture.options().with_flush_interval(tick).with_sweep_interval(16 * tick));
    until(|| async { service.stats().entries_posted == 1 }).await;
    assert_eq!(fixture.ledger_used("acme").await, 4);
}

#[tokio::test]
async fn the_lag_is_the_age_of_the_oldest_entry_that_waits() {
    let fixture = Fixture::new().await;
    let mut options = fixture.options();
    options.ledger_timeout = Duration::from_millis(50);
    let (service, partition) = (fixture.start_with(options), account("acme").await.partition);
    fixture.store.consume("acme", 1).await;
    let lock = fixture.lock_ledger().await;
    service.confirm(vec![all_of(partition, 7)]).await.unwrap_err();
    fixture.clock.advance(Duration::from_secs(7));
    assert_eq!((service.stats().lag, service.stats().waiting), (Duration::from_secs(7), 1));
    lock.release().await;
    until(|| async { service.stats().waiting == 0 }).await;
    assert_eq!(service.stats().lag, Duration::ZERO);
}

#[tokio::test]
async fn a_shutdown_flushes_everything_and_fails_later_callers() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 5).await;
    service.shutdown(Duration::from_mins(1)).await.unwrap();
    assert_eq!(fixture.ledger_used("acme").await, 5);
    assert!(fixture.store.is_outbox_empty(partition).await);
    assert_eq!(fixture.journal.waiting(), 0);
    assert_eq!(service.confirm(vec![all_of(partition, 7)]).await.unwrap_err().kind(), StoreErrorKind::Unavailable);
}

/// Batches of one entry, so that a round reaches few partitions.
#[tokio::test]
async fn who_waits_is_served_before_others_and_these_in_turn() {
    let fixture = Fixture::new().await;
    let options = fixture.options().with_batch(1);
    let state = Arc::new(ServiceState::new(fixture.ledger.clone(), fixture.store.clone(), options));
    let mut flusher = Flusher::new(state.clone());
    let mut partitions = BTreeSet::new();
    let mut tenants = (0..).map(|number| format!("tenant-{number}"));
    while partitions.len() < 30
        && let Some(tenant) = tenants.next()
    {
        if partitions.insert(account(&tenant).await.partition) {
            fixture.store.consume(&tenant, 1).await;
        }
    }
    let partitions: Vec<u16> = partitions.into_iter().collect();
    state.queue.want(partitions.clone());
    let last = partitions[29];
    let mut waiting = state.queue.join_partitions([last]);
    flusher.run_round().await;
    waiting[0].try_recv().unwrap().unwrap();
    // Reads that began together may have found more. With a backlog, fewer begin together.
    let posted = || state.counters.posted.load(Ordering::Relaxed);
    let posted_before = posted();
    flusher.run_round().await;
    assert!(posted() - posted_before <= 3, "{} after {posted_before}", posted());
    // Somebody writes to the first one all the time; the others have their turn none the less.
    for _ in 0..5 {
        state.queue.want([partitions[0]]);
        flusher.run_round().await;
    }
    for partition in &partitions[1..16] {
        assert_eq!(fixture.ledger.last_entry(*partition, 7).await.unwrap().map(|id| id.partition), Some(*partition));
    }
}
