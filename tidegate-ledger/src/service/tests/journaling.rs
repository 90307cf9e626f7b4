//! The journal: what was admitted without the store, and what a memory store had not flushed, counts once after any restart.

use std::time::Duration;

use tidegate::StoreErrorKind;
use tidegate::spi::LedgerStage;

use super::fixture::{Fixture, journaled, options, until};

#[tokio::test]
async fn what_was_admitted_without_the_store_reaches_the_ledger_and_then_the_store() {
    let fixture = Fixture::new().await;
    let service = fixture.start();
    fixture.store.set_failing(true);
    service.journal(vec![journaled("acme", 3).await]).unwrap();
    service.journal(vec![journaled("acme", 4).await, journaled("globex", 1).await]).unwrap();
    until(|| async { service.stats().entries_posted == 3 }).await;
    assert_eq!(fixture.ledger_used("acme").await, 7);
    assert_eq!(fixture.store.used("acme").await, 0);
    fixture.store.set_failing(false);
    until(|| async { fixture.journal.waiting() == 0 }).await;
    assert_eq!((fixture.store.used("acme").await, fixture.store.used("globex").await), (7, 1));
}

#[tokio::test]
async fn what_was_admitted_without_the_store_survives_a_crash_while_the_ledger_is_unavailable() {
    let fixture = Fixture::new().await;
    {
        let mut options = fixture.options();
        options.ledger_timeout = Duration::from_millis(50);
        let service = fixture.start_with(options);
        let lock = fixture.lock_ledger().await;
        service.journal(vec![journaled("acme", 3).await]).unwrap();
        until(|| async { service.stats().ledger_error.is_some() }).await;
        drop(service);
        lock.release().await;
    }
    let fixture = fixture.restart().await;
    let service = fixture.start();
    service.prepare().await.unwrap();
    assert_eq!((fixture.store.used("acme").await, fixture.ledger_used("acme").await), (3, 3));
    until(|| async { fixture.journal.waiting() == 0 }).await;
}

/// The process dies after the post, before the store has it: the account is repaired in the next run.
#[tokio::test]
async fn a_posted_entry_is_counted_once_and_its_account_repaired_after_a_crash() {
    let fixture = Fixture::new().await;
    let service = fixture.start();
    fixture.store.set_failing(true);
    for amount in [3, 4] {
        service.journal(vec![journaled("acme", amount).await]).unwrap();
    }
    // Only one entry is kept for the repair, so the journal does not fill while the store is down.
    until(|| async { service.stats().entries_posted == 2 && fixture.journal.waiting() == 1 }).await;
    drop(service);
    let fixture = fixture.restart().await;
    let service = fixture.start();
    service.prepare().await.unwrap();
    assert_eq!(service.stats().rebuilds, 1024);
    assert_eq!((fixture.store.used("acme").await, fixture.ledger_used("acme").await), (7, 7));
    assert_eq!(service.stats().entries_posted, 0);
    until(|| async { fixture.journal.waiting() == 0 }).await;
}

#[tokio::test]
async fn what_a_memory_store_had_not_flushed_counts_once_after_a_restart() {
    let fixture = Fixture::new().await;
    fixture.store.consume("acme", 3).await;
    fixture.store.consume("acme", 4).await;
    let fixture = fixture.restart().await;
    let service = fixture.start();
    service.prepare().await.unwrap();
    assert_eq!((fixture.store.used("acme").await, fixture.ledger_used("acme").await), (7, 7));
    fixture.store.consume("acme", 1).await;
    service.shutdown(Duration::from_mins(1)).await.unwrap();
    drop(service);
    let fixture = fixture.restart().await;
    assert_eq!(fixture.journal.recovery().entries, 0);
    fixture.start().prepare().await.unwrap();
    assert_eq!((fixture.store.used("acme").await, fixture.ledger_used("acme").await), (8, 8));
}

#[tokio::test]
async fn without_a_journal_nothing_is_admitted_without_the_store() {
    let fixture = Fixture::new().await;
    let service = fixture.start_with(options());
    let error = service.journal(vec![journaled("acme", 3).await]).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
}
