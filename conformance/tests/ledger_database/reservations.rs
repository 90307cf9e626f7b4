//! Reservations: their beginnings and ends in any order, and those that run out.

use tidegate::Timestamp;
use tidegate::spi::{EntryKind, GateHold, GateHoldStatus, OutboxEntry};
use tidegate_ledger::{ExportQuery, Ledger, UsageQuery};

use crate::ledger_database::{TestDatabase, account, entry, on_both_databases};

on_both_databases!(
    a_reservation_is_open_until_it_ends_in_any_order_of_entries,
    an_owner_reserves_again_after_the_end,
    a_reservation_that_ran_out_expires_once,
    an_ended_reservation_is_remembered_until_it_would_have_run_out,
    an_end_that_a_store_forgets_is_not_restored,
);

const SECOND: u64 = 1_000_000;

fn reserve(owner: u64, at: u64, held: u64) -> OutboxEntry {
    let expires_at = Timestamp::from_micros(at + 60 * SECOND);
    OutboxEntry { owner, held, expires_at, ..entry(EntryKind::Reserve, at) }
}

fn end(kind: EntryKind, owner: u64, at: u64, amount: i64) -> OutboxEntry {
    // The time of the end asks to remember it.
    OutboxEntry { owner, amount, expires_at: Timestamp::from_micros(at), ..entry(kind, at) }
}

async fn holds(ledger: &Ledger) -> Vec<GateHold> {
    ledger.gate_states_of(&[account(1)]).await.unwrap().remove(0).holds
}

fn hold(owner: u64, at: u64, units: u64, status: GateHoldStatus) -> GateHold {
    let at_time = Timestamp::from_micros(at);
    GateHold { owner, at: at_time, expires_at: Timestamp::from_micros(at + 60 * SECOND), units, status }
}

async fn a_reservation_is_open_until_it_ends_in_any_order_of_entries(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[reserve(1, SECOND, 5), end(EntryKind::Commit, 2, 3 * SECOND, 4)]).await.unwrap();
    assert_eq!(holds(&ledger).await, [hold(1, SECOND, 5, GateHoldStatus::Open)]);
    let usage = ledger.usage(&UsageQuery::default()).await.unwrap();
    assert_eq!((usage[0].consumed, usage[0].reserved), (4, 5));
    ledger.post(&[reserve(2, 2 * SECOND, 6), end(EntryKind::Release, 1, 4 * SECOND, 0)]).await.unwrap();
    let expected = [hold(1, SECOND, 0, GateHoldStatus::Released), hold(2, 2 * SECOND, 4, GateHoldStatus::Committed)];
    assert_eq!(holds(&ledger).await, expected);
    // Consumption that is given back has no owner, and ends nothing.
    ledger.post(&[reserve(3, 3 * SECOND, 7), end(EntryKind::Release, 0, 9 * SECOND, -1)]).await.unwrap();
    assert_eq!(holds(&ledger).await[2], hold(3, 3 * SECOND, 7, GateHoldStatus::Open));
    let usage = ledger.usage(&UsageQuery::default()).await.unwrap();
    assert_eq!((usage[0].consumed, usage[0].reserved), (3, 7));
}

async fn an_owner_reserves_again_after_the_end(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let (first, released, second) =
        (reserve(1, SECOND, 5), end(EntryKind::Release, 1, 2 * SECOND, 0), reserve(1, 3 * SECOND, 8));
    for entries in [[&first, &released, &second], [&second, &released, &first], [&released, &second, &first]] {
        for entry in entries {
            let mut entry = entry.clone();
            entry.id.generation += 1;
            ledger.post(&[entry]).await.unwrap();
        }
        assert_eq!(holds(&ledger).await, [hold(1, 3 * SECOND, 8, GateHoldStatus::Open)]);
    }
    ledger.post(&[end(EntryKind::Commit, 1, 4 * SECOND, 7)]).await.unwrap();
    assert_eq!(holds(&ledger).await, [hold(1, 3 * SECOND, 7, GateHoldStatus::Committed)]);
}

async fn a_reservation_that_ran_out_expires_once(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let entries = [reserve(1, SECOND, 5), reserve(2, 2 * SECOND, 6), reserve(3, 50 * SECOND, 7)];
    ledger.post(&entries).await.unwrap();
    let expire = |seconds: u64, max| ledger.expire_reservations(Timestamp::from_micros(seconds * SECOND), max);
    assert_eq!(expire(60, 10).await, Ok(0));
    let (first, second) = futures_util::future::join(Box::pin(expire(100, 1)), Box::pin(expire(100, 10))).await;
    let rest = expire(100, 10).await.unwrap();
    assert_eq!(first.unwrap() + second.unwrap() + rest, 2);
    assert_eq!(expire(100, 10).await, Ok(0));
    assert_eq!(holds(&ledger).await, [hold(3, 50 * SECOND, 7, GateHoldStatus::Open)]);
    // What is posted again does not come back.
    ledger.post(&entries).await.unwrap();
    assert_eq!(holds(&ledger).await.len(), 1);
    let exported = ledger.export(&ExportQuery::default()).await.unwrap();
    let expired: Vec<_> = exported.iter().filter(|entry| entry.kind == EntryKind::Expire).collect();
    assert_eq!(
        expired.iter().map(|entry| (entry.owner, entry.held, entry.amount)).collect::<Vec<_>>(),
        [(1, 5, 0), (2, 6, 0)]
    );
    let usage = ledger.usage(&UsageQuery::default()).await.unwrap();
    assert_eq!((usage.len(), usage[0].consumed, usage[0].reserved), (1, 0, 7));
}

async fn an_ended_reservation_is_remembered_until_it_would_have_run_out(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[reserve(1, SECOND, 5), end(EntryKind::Commit, 1, 2 * SECOND, 4)]).await.unwrap();
    assert_eq!(ledger.expire_reservations(Timestamp::from_micros(60 * SECOND), 10).await, Ok(0));
    assert_eq!(holds(&ledger).await, [hold(1, SECOND, 4, GateHoldStatus::Committed)]);
    assert_eq!(ledger.expire_reservations(Timestamp::from_micros(61 * SECOND), 10).await, Ok(0));
    assert_eq!(holds(&ledger).await, []);
    let exported = ledger.export(&ExportQuery::default()).await.unwrap();
    assert!(exported.iter().all(|entry| entry.kind != EntryKind::Expire), "it did not run out: {exported:?}");
}

async fn an_end_that_a_store_forgets_is_not_restored(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let forgotten = OutboxEntry { expires_at: Timestamp::default(), ..end(EntryKind::Release, 1, 2 * SECOND, 0) };
    ledger.post(&[forgotten]).await.unwrap();
    ledger.post(&[reserve(1, SECOND, 5)]).await.unwrap();
    assert_eq!(holds(&ledger).await, []);
    ledger.post(&[reserve(1, 3 * SECOND, 6)]).await.unwrap();
    assert_eq!(holds(&ledger).await, [hold(1, 3 * SECOND, 6, GateHoldStatus::Open)]);
}
