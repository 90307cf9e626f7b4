//! Rebuilds and repairs: after them the store says what the ledger says.

use std::time::Duration;

use tidegate::StoreErrorKind;
use tidegate::spi::{AccountKey, LedgerStage, Outbox};

use super::super::LedgerService;
use super::fixture::{Fixture, TestStore, account, all_of, corrupt, until};

#[tokio::test]
async fn a_store_without_data_is_rebuilt_from_the_ledger_before_the_first_request() {
    let fixture = Fixture::new().await;
    let service = fixture.start();
    for (tenant, cost) in [("acme", 3), ("globex", 5), ("initech", 7)] {
        fixture.store.consume(tenant, cost).await;
    }
    service.flush_all().await.unwrap();
    fixture.store.lose();
    let report = service.prepare().await.unwrap();
    assert_eq!((report.replayed, report.rebuilt), (0, 1024));
    for (tenant, cost) in [("acme", 3), ("globex", 5), ("initech", 7)] {
        assert_eq!((fixture.store.used(tenant).await, fixture.ledger_used(tenant).await), (cost, cost));
    }
    assert_eq!(service.prepare().await.unwrap().rebuilt, 0);
}

#[tokio::test]
async fn a_partition_that_is_lost_later_fails_its_callers_and_is_rebuilt_in_the_background() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 3).await;
    service.confirm(vec![all_of(partition, 7)]).await.unwrap();
    fixture.store.lose();
    let error = service.confirm(vec![all_of(partition, 7)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rebuilding);
    until(|| async { fixture.store.generation(partition).await.is_some() }).await;
    assert_ne!(fixture.store.generation(partition).await, Some(7));
    assert_eq!(fixture.store.used("acme").await, 3);
}

/// The store loses an entry that was read but not posted, and another instance rebuilds the partition without it.
#[tokio::test]
async fn entries_that_are_posted_after_a_rebuild_are_added_to_the_rebuilt_state() {
    let fixture = Fixture::new().await;
    let (slow, quick) = (fixture.start(), fixture.start());
    let partition = account("acme").await.partition;
    fixture.store.consume("acme", 3).await;
    fixture.store.pause_reads();
    let confirmed = tokio::spawn({
        let slow = slow.clone();
        async move { slow.confirm(vec![all_of(partition, 7)]).await }
    });
    fixture.store.wait_for_paused_read().await;
    let lock = fixture.lock_ledger().await;
    fixture.store.let_reads_return();
    until(|| async { slow.stats().waiting == 1 }).await;
    fixture.store.lose();
    // It reads the ledger while the post of the other one waits for the lock.
    assert!(quick.state.rebuild(partition).await.unwrap());
    assert_eq!(fixture.store.used("acme").await, 0);
    lock.release().await;
    confirmed.await.unwrap().unwrap();
    // The next read shows the new generation.
    slow.flush_all().await.unwrap();
    until(|| async { fixture.store.used("acme").await == 3 }).await;
    assert_eq!(fixture.ledger_used("acme").await, 3);
}

/// Acme has used 30 units by the ledger, and none by the store.
async fn start_with_difference() -> (Fixture, LedgerService<TestStore>, AccountKey) {
    let fixture = Fixture::new().await;
    let (service, acme) = (fixture.start(), account("acme").await);
    fixture.store.consume("acme", 30).await;
    service.flush_all().await.unwrap();
    until(|| fixture.store.is_outbox_empty(acme.partition)).await;
    corrupt(&fixture.store, &acme).await;
    (fixture, service, acme)
}

#[tokio::test]
async fn a_repair_sets_the_store_to_the_ledger() {
    let (fixture, service, acme) = start_with_difference().await;
    assert_eq!(fixture.store.used("acme").await, 0);
    // What is under way is posted first, and not lost.
    fixture.store.consume("acme", 2).await;
    let report = service.repair(std::slice::from_ref(&acme)).await.unwrap();
    assert_eq!((report.repaired, report.busy), (1, Vec::new()));
    assert_eq!((fixture.store.used("acme").await, fixture.ledger_used("acme").await), (32, 32));
}

#[tokio::test]
async fn a_repair_of_a_partition_that_is_written_to_all_the_time_reports_its_accounts() {
    let fixture = Fixture::new().await;
    let (service, acme) = (fixture.start(), account("acme").await);
    fixture.store.set_busy(true);
    // Every read is followed by a write, so the outbox is never empty. Nothing is overwritten.
    assert_eq!(service.repair(std::slice::from_ref(&acme)).await.unwrap().busy, std::slice::from_ref(&acme));
    fixture.store.set_busy(false);
    assert_eq!(service.repair(&[acme]).await.unwrap().repaired, 1);
    let written = fixture.store.used("acme").await;
    assert!(written > 0);
    assert_eq!(fixture.ledger_used("acme").await, written);
}

#[tokio::test]
async fn a_repair_that_fails_or_is_busy_is_repeated() {
    let (fixture, service, acme) = start_with_difference().await;
    fixture.store.set_failing(true);
    assert!(service.repair(std::slice::from_ref(&acme)).await.is_err());
    fixture.store.set_failing(false);
    until(|| async { fixture.store.used("acme").await == 30 }).await;
    fixture.store.set_busy(true);
    assert_eq!(service.repair(std::slice::from_ref(&acme)).await.unwrap().busy, [acme]);
    fixture.store.set_busy(false);
    until(|| async { service.stats().repairs_waiting == 0 && service.stats().repairs >= 2 }).await;
}

#[tokio::test]
async fn a_rebuild_that_fails_is_repeated() {
    let fixture = Fixture::new().await;
    let mut options = fixture.options();
    options.ledger_timeout = Duration::from_millis(50);
    let (service, partition) = (fixture.start_with(options), account("acme").await.partition);
    fixture.store.consume("acme", 3).await;
    until(|| async { service.confirm(vec![all_of(partition, 7)]).await.is_ok() }).await;
    fixture.store.lose();
    fixture.store.set_failing(true);
    service.state.repairs.request_rebuild(partition);
    assert!(service.state.rebuild(partition).await.is_err());
    fixture.store.set_failing(false);
    until(|| async { fixture.store.generation(partition).await.is_some() }).await;
    assert_eq!(fixture.store.used("acme").await, 3);
    assert_eq!(fixture.store.current().read_outbox(partition, 1).await.unwrap().waiting, 0);
}

#[tokio::test]
async fn a_repair_that_was_dropped_is_left_to_a_task() {
    let (fixture, service, acme) = start_with_difference().await;
    drop(service.pending_repair(vec![acme]));
    until(|| async { fixture.store.used("acme").await == 30 }).await;
}
