//! Stores that go back to an older copy of themselves: nobody is confirmed whose entry is lost, and the copy is rebuilt.

use std::time::Duration;

use tidegate::StoreErrorKind;
use tidegate::spi::{EntryId, LedgerStage, Outbox};

use super::super::LedgerService;
use super::fixture::{Fixture, TestStore, account, all_of, only, until};

/// Consumes, and returns the entry of it.
async fn consume(store: &TestStore, partition: u16, cost: u64) -> EntryId {
    store.consume("acme", cost).await;
    store.last_entry(partition).await
}

/// Waits until the partition has another generation, and the store says what the ledger says.
async fn assert_rebuilt(fixture: &Fixture, service: &LedgerService<TestStore>, partition: u16, used: u64) {
    until(|| async { fixture.store.generation(partition).await.is_some_and(|generation| generation != 7) }).await;
    assert_eq!((fixture.store.used("acme").await, fixture.ledger_used("acme").await), (used, used));
    assert_eq!(service.stats().older_copies, 1);
}

#[tokio::test]
async fn a_caller_whose_entry_was_lost_before_it_was_read_is_not_confirmed() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    let lost = consume(&fixture.store, partition, 3).await;
    fixture.store.go_back(7).await;
    // Its outbox is empty, as if everything were in the ledger.
    let error = service.confirm(vec![only(lost)]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Rebuilding, true));
    assert_eq!(fixture.ledger_used("acme").await, 0);
    fixture.clock.advance(Duration::from_secs(1));
    let kept = consume(&fixture.store, partition, 2).await;
    service.confirm(vec![only(kept)]).await.unwrap();
    let both = service.confirm(vec![only(kept), only(lost)]).await;
    assert_eq!(both.unwrap_err().kind(), StoreErrorKind::Rebuilding);
    // Neither the store nor the ledger has the entry, so there is nothing to rebuild.
    assert_eq!((fixture.ledger_used("acme").await, service.stats().older_copies), (2, 0));
}

#[tokio::test]
async fn a_caller_whose_entry_another_instance_has_posted_is_confirmed() {
    let fixture = Fixture::new().await;
    let (service, other) = (fixture.start(), fixture.start());
    let partition = account("acme").await.partition;
    let entry = consume(&fixture.store, partition, 3).await;
    other.flush_all().await.unwrap();
    until(|| fixture.store.is_outbox_empty(partition)).await;
    service.confirm(vec![only(entry)]).await.unwrap();
    // Even if the store has lost its generation since.
    fixture.store.lose();
    service.confirm(vec![only(entry)]).await.unwrap();
    assert_eq!(service.confirm(vec![all_of(partition, 7)]).await.unwrap_err().kind(), StoreErrorKind::Rebuilding);
}

#[tokio::test]
async fn a_store_behind_what_was_seen_of_it_is_rebuilt() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    let entry = consume(&fixture.store, partition, 3).await;
    service.confirm(vec![only(entry)]).await.unwrap();
    until(|| fixture.store.is_outbox_empty(partition)).await;
    fixture.store.go_back(7).await;
    assert_eq!(fixture.store.used("acme").await, 0);
    assert_eq!(service.confirm(vec![all_of(partition, 7)]).await.unwrap_err().kind(), StoreErrorKind::Rebuilding);
    assert_rebuilt(&fixture, &service, partition, 3).await;
}

/// What is written after a failover is later than everything before.
#[tokio::test]
async fn a_store_that_was_written_to_since_is_rebuilt_with_what_was_written() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    let entry = consume(&fixture.store, partition, 3).await;
    service.confirm(vec![only(entry)]).await.unwrap();
    until(|| fixture.store.is_outbox_empty(partition)).await;
    fixture.store.go_back(7).await;
    fixture.clock.advance(Duration::from_secs(1));
    let later = consume(&fixture.store, partition, 4).await;
    // It is in the ledger, and stays there.
    service.confirm(vec![only(later)]).await.unwrap();
    assert_rebuilt(&fixture, &service, partition, 7).await;
}

#[tokio::test]
async fn an_instance_that_has_not_posted_what_was_lost_finds_it_in_the_ledger() {
    let fixture = Fixture::new().await;
    let (other, service) = (fixture.start(), fixture.start());
    let partition = account("acme").await.partition;
    service.flush_all().await.unwrap();
    let entry = consume(&fixture.store, partition, 3).await;
    other.confirm(vec![only(entry)]).await.unwrap();
    other.shutdown(Duration::from_mins(1)).await.unwrap();
    fixture.store.go_back(7).await;
    fixture.clock.advance(Duration::from_secs(1));
    consume(&fixture.store, partition, 4).await;
    service.flush_all().await.unwrap();
    assert_rebuilt(&fixture, &service, partition, 7).await;
}

#[tokio::test]
async fn a_store_that_went_back_while_no_instance_ran_is_rebuilt_before_the_first_request() {
    let fixture = Fixture::new().await;
    let partition = account("acme").await.partition;
    let before = fixture.start();
    consume(&fixture.store, partition, 3).await;
    before.shutdown(Duration::from_mins(1)).await.unwrap();
    fixture.store.go_back(7).await;
    let service = fixture.start();
    assert!(service.prepare().await.unwrap().rebuilt > 0);
    assert_eq!((fixture.store.used("acme").await, fixture.ledger_used("acme").await), (3, 3));
    assert_eq!(service.stats().older_copies, 1);
}

#[tokio::test]
async fn a_server_that_takes_over_with_everything_stays_as_it_is() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start_with(fixture.options().with_batch(2)), account("acme").await.partition);
    for _ in 0..7 {
        consume(&fixture.store, partition, 1).await;
    }
    service.flush_all().await.unwrap();
    // Entries are in the ledger and in the outbox: their acknowledgement was lost.
    let entry = consume(&fixture.store, partition, 1).await;
    consume(&fixture.store, partition, 1).await;
    let waiting = fixture.store.current().read_outbox(partition, 10).await.unwrap().entries;
    fixture.ledger.post(&waiting).await.unwrap();
    fixture.store.fail_over();
    service.confirm(vec![only(entry)]).await.unwrap();
    service.flush_all().await.unwrap();
    let fresh = fixture.start_with(fixture.options().with_batch(2));
    fresh.prepare().await.unwrap();
    assert_eq!((service.stats().older_copies, fresh.stats().older_copies), (0, 0));
    assert_eq!((fixture.store.generation(partition).await, fixture.store.used("acme").await), (Some(7), 9));
    assert_eq!(fixture.ledger_used("acme").await, 9);
}
