//! A ledger that is opened after the service was started: nothing is decided by the store and nothing is posted before, and nothing is lost.

use tidegate::StoreErrorKind;
use tidegate::spi::{LedgerStage, PARTITIONS};

use super::super::{LedgerService, ServiceError};
use super::fixture::{Fixture, TestStore, journaled, options, until};
use crate::{Ledger, LedgerError, LedgerErrorKind, LedgerUrl};

/// A service on a ledger that is not open.
fn start_unopened(fixture: &Fixture) -> (LedgerService<TestStore>, Ledger) {
    let ledger = Ledger::unopened(&LedgerUrl::Sqlite("ledger.db".into()), LedgerError::timed_out());
    let options = options().with_journal(fixture.journal.clone());
    (LedgerService::start(ledger.clone(), fixture.store.clone(), options).unwrap(), ledger)
}

#[tokio::test]
async fn a_ledger_that_is_opened_late_has_what_was_admitted_before_once() {
    let fixture = Fixture::unprepared().await;
    let (service, ledger) = start_unopened(&fixture);
    service.journal(vec![journaled("acme", 3).await]).unwrap();
    let is_unavailable = |error: &LedgerError| error.kind() == LedgerErrorKind::Unavailable;
    let prepared = service.prepare().await;
    assert!(matches!(&prepared, Err(ServiceError::Ledger(error)) if is_unavailable(error)), "{prepared:?}");
    assert!(ledger.ping().await.is_err_and(|error| is_unavailable(&error)));
    assert_eq!(service.stats().ledger_error, Some(LedgerErrorKind::Unavailable));
    assert_eq!(service.verified().unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert_eq!(fixture.ledger_used("acme").await, 0);

    ledger.adopt(&fixture.ledger);
    assert_eq!(service.verified().unwrap_err().kind(), StoreErrorKind::Rebuilding, "the store was not compared yet");
    service.prepare().await.unwrap();
    service.verified().unwrap();
    assert_eq!((fixture.ledger_used("acme").await, fixture.store.used("acme").await), (3, 3));
    until(|| async { fixture.journal.waiting() == 0 }).await;
    assert_eq!(service.stats().ledger_error, None);
}

/// Its secret may be another one: then these entries belong to nobody.
#[tokio::test]
async fn nothing_reaches_a_ledger_that_does_not_fit() {
    let fixture = Fixture::unprepared().await;
    let (service, ledger) = start_unopened(&fixture);
    service.journal(vec![journaled("acme", 3).await]).unwrap();
    ledger.set_unopened_error(LedgerError::mismatch("another secret"));
    assert_eq!(service.verified().unwrap_err().kind(), StoreErrorKind::Mismatch);
    assert!(service.flush_all().await.is_err() && service.prepare().await.is_err());
    assert_eq!(service.stats().ledger_error, Some(LedgerErrorKind::Mismatch));
    assert_eq!((fixture.journal.waiting(), fixture.ledger_used("acme").await), (1, 0));
}

#[tokio::test]
async fn a_store_that_went_back_is_rebuilt_from_a_ledger_that_is_opened_late_before_it_decides() {
    let fixture = Fixture::new().await;
    let before = fixture.start();
    before.prepare().await.unwrap();
    fixture.store.consume("acme", 5).await;
    before.flush_all().await.unwrap();
    drop(before);
    // The copy has the generation, and nothing of what was used.
    fixture.store.go_back(7).await;
    let (service, ledger) = start_unopened(&fixture);
    ledger.adopt(&fixture.ledger);
    assert!(service.verified().is_err());
    let report = service.prepare().await.unwrap();
    assert!(service.verified().is_ok() && report.rebuilt > 0 && report.rebuilt <= PARTITIONS.into());
    assert_eq!(fixture.store.used("acme").await, 5);
}
