//! What the tests of the outbox share: gates, subjects, reservations, and reading entries.

use std::ops::Range;
use std::time::Duration;

use conformance::server::{Kind, Server};
use conformance::suite::{START, long_timeout_options};
use tidegate::limits::{Period, Periods};
use tidegate::rules::LedgerMode;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::algorithm::{HoldOp, Op, TakePosition};
use tidegate::spi::{
    AccountKey, Check, EntryId, EntryKind, Gate, GateState, LeaseOwner, Outbox, OutboxEntry, ReservationTerms, Subject,
};
use tidegate::{Limit, ManualClock, Rule, StoreError, StoreErrorKind, Timestamp};
use tidegate_redis::RedisStore;

pub(super) const HARD_LIMIT: u64 = 100;
pub(super) const GENERATION: u64 = 4_242;
pub(super) const TTL: Duration = Duration::from_secs(7_200);
/// More than the entries of any test.
pub(super) const ALL: usize = 1_000_000;

/// A server, a store with rebuilt partitions, and its clock.
pub(super) async fn start(kind: Kind) -> (Server, RedisStore, ManualClock) {
    let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
    let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
    for partition in 0..10 {
        assert_eq!(store.rebuild_partition(partition, GENERATION, &[]).await.unwrap(), GENERATION);
    }
    (server, store, clock)
}

pub(super) fn quota() -> Limit {
    Limit::quota_with_grace(HARD_LIMIT - 10, 10, Periods::utc(Period::Day)).unwrap()
}

pub(super) fn gate(rule: &str) -> Gate {
    let limit = if rule == "api" { Limit::quota(HARD_LIMIT, Periods::utc(Period::Day)).unwrap() } else { quota() };
    let rule = Rule::new(rule, limit).with_per(["subject"]).with_ledger(LedgerMode::Async);
    Gate::new(rule, "", limit)
}

/// A subject in the partition with this number.
pub(super) fn subject(number: u128) -> Subject {
    Subject::from_hash(number << 96 | number)
}

pub(super) fn owner(number: u64) -> LeaseOwner {
    LeaseOwner::from_number(number).unwrap()
}

pub(super) fn commit(number: u64, cost: u64) -> Op {
    let position = ReservationTerms::new(owner(number), TTL, true).position();
    Op::Hold(HoldOp::Commit { cost, position })
}

pub(super) fn release(number: u64) -> Op {
    Op::Hold(HoldOp::Release { position: ReservationTerms::new(owner(number), TTL, true).position() })
}

pub(super) fn position_of(at: Timestamp) -> TakePosition {
    match quota() {
        Limit::Quota(quota) => quota.position_at(at),
        _ => unreachable!("it is a quota"),
    }
}

pub(super) fn gate_state(check: &Check<'_>) -> GateState {
    let key = AccountKey::from_key(check.key());
    GateState { key, state: QuotaState::default(), hard_limit: HARD_LIMIT, holds: Vec::new() }
}

pub(super) fn flush(server: &Server) {
    let _: () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
}

/// The kind, amount and held units of each entry.
pub(super) fn amounts(entries: &[OutboxEntry]) -> Vec<(EntryKind, i64, u64)> {
    assert!(entries.iter().all(|entry| entry.late_amount == 0));
    entries.iter().map(|entry| (entry.kind, entry.amount, entry.held)).collect()
}

pub(super) async fn read_state(store: &RedisStore, check: &Check<'_>) -> Option<QuotaState> {
    let key = AccountKey::from_key(check.key());
    store.read_states(key.partition, std::slice::from_ref(&key)).await.unwrap().unwrap().1[0]
}

/// Reads and acknowledges the entries of the first partitions.
pub(super) async fn drain(store: &RedisStore) -> Vec<OutboxEntry> {
    drain_all(store, 0..10).await
}

pub(super) async fn drain_all(store: &RedisStore, partitions: Range<u16>) -> Vec<OutboxEntry> {
    let mut entries = Vec::new();
    for partition in partitions {
        entries.extend(drain_partition(store, partition).await);
    }
    entries
}

pub(super) async fn drain_partition(store: &impl Outbox, partition: u16) -> Vec<OutboxEntry> {
    let entries = store.read_outbox(partition, ALL).await.unwrap().entries;
    let ids: Vec<EntryId> = entries.iter().map(|entry| entry.id).collect();
    store.acknowledge(partition, &ids).await.unwrap();
    entries
}

pub(super) fn assert_rebuilding(result: &Result<(), StoreError>) {
    let error = result.as_ref().unwrap_err();
    let facts = (error.kind(), error.is_possibly_applied(), error.is_transient());
    assert_eq!(facts, (StoreErrorKind::Rebuilding, false, true), "{error}");
}
