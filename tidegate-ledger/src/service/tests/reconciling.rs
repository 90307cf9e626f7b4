//! Reconciliation: it finds what differs, and only that.

use std::time::Duration;

use tidegate::spi::{LedgerStage, Outbox};

use super::fixture::{Fixture, account, all_of, corrupt, until};
use crate::{AccountUnits, LedgerErrorKind, ServiceError};

#[tokio::test]
async fn differences_are_listed_and_repaired_only_when_that_is_asked_for() {
    let fixture = Fixture::new().await;
    let (service, acme) = (fixture.start(), account("acme").await);
    fixture.store.consume("acme", 30).await;
    fixture.store.consume("globex", 5).await;
    assert_eq!(service.reconcile(false).await.unwrap().differences, 0, "entries under way are no differences");
    until(|| fixture.store.is_outbox_empty(acme.partition)).await;
    corrupt(&fixture.store, &acme).await;
    let report = service.reconcile(false).await.unwrap();
    assert_eq!((report.accounts, report.differences, report.repaired), (2, 1, 0));
    let [difference] = &report.listed[..] else { panic!("there is one difference") };
    assert_eq!((&difference.key, difference.rule.as_str()), (&acme, "units"));
    assert_eq!(difference.gate, Some(AccountUnits { total: 0, debt: 0 }));
    assert_eq!(difference.ledger, AccountUnits { total: 30, debt: 0 });
    assert_eq!(fixture.store.used("acme").await, 0);
    let report = service.reconcile(true).await.unwrap();
    assert_eq!((report.differences, report.repaired), (1, 1));
    assert_eq!(fixture.store.used("acme").await, 30);
    assert_eq!(service.reconcile(true).await.unwrap().differences, 0);
    assert_eq!(service.stats().differences, 2);
}

#[tokio::test]
async fn a_state_of_an_old_period_that_the_store_has_forgotten_is_no_difference() {
    let fixture = Fixture::new().await;
    let service = fixture.start();
    fixture.store.consume("acme", 30).await;
    service.flush_all().await.unwrap();
    fixture.store.lose();
    fixture.clock.advance(Duration::from_hours(240));
    for partition in 0..1024 {
        fixture.store.current().rebuild_partition(partition, 8, &[]).await.unwrap();
    }
    assert_eq!(service.reconcile(false).await.unwrap().differences, 0);
}

#[tokio::test]
async fn lost_partitions_are_listed_and_rebuilt_only_when_that_is_asked_for() {
    let fixture = Fixture::new().await;
    let (service, partition) = (fixture.start(), account("acme").await.partition);
    fixture.store.consume("acme", 30).await;
    service.confirm(vec![all_of(partition, 7)]).await.unwrap();
    fixture.store.lose();
    let report = service.reconcile(false).await.unwrap();
    assert_eq!((report.lost.len(), report.repaired), (1024, 0));
    assert_eq!(fixture.store.generation(partition).await, None);
    let report = service.reconcile(true).await.unwrap();
    assert_eq!((report.lost.len(), report.repaired), (1024, 1024));
    assert_eq!(fixture.store.used("acme").await, 30);
}

#[tokio::test]
async fn two_reconciliations_at_once_are_refused() {
    let fixture = Fixture::new().await;
    let service = fixture.start();
    let _lock = fixture.ledger.reconcile_lock().await.unwrap();
    let error = service.reconcile(true).await.unwrap_err();
    assert!(matches!(&error, ServiceError::Ledger(error) if error.kind() == LedgerErrorKind::Busy), "{error}");
}

#[tokio::test]
async fn a_reconcile_goes_on_after_the_store_has_not_answered_for_a_moment() {
    let fixture = Fixture::new().await;
    let hour = Duration::from_hours(1);
    let service = fixture.start_with(fixture.options().with_flush_interval(hour).with_sweep_interval(hour));
    fixture.store.consume("acme", 30).await;
    service.flush_all().await.unwrap();
    assert_eq!(service.stats().reconciled_partitions, 0);
    fixture.store.set_failing(true);
    let reconcile = tokio::spawn({
        let service = service.clone();
        async move { service.reconcile(false).await }
    });
    // Nothing else calls the store.
    fixture.store.wait_for_failed_call().await;
    fixture.store.set_failing(false);
    let report = reconcile.await.unwrap().unwrap();
    assert_eq!((report.accounts, report.differences), (1, 0));
    assert_eq!(service.stats().reconciled_partitions, 1024);
}
