//! Entries count once, and their sums are those of the naive ledger.

use fastrand::Rng;
use tidegate::Timestamp;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{EntryId, EntryKind, GateState, OutboxEntry, Subject};
use tidegate_ledger::{ExportQuery, Posted};

use crate::ledger_database::model::NaiveLedger;
use crate::ledger_database::{PARTITION, STEM, TestDatabase, account, consume, entry, on_both_databases};

on_both_databases!(
    a_repeated_entry_counts_once,
    concurrent_posters_of_overlapping_batches_count_each_entry_once,
    sums_equal_those_of_a_naive_ledger_in_any_order,
    debt_is_carried_over_idle_periods_and_changes_with_late_amounts,
    a_late_amount_counts_in_the_period_before,
    an_account_moves_to_the_partition_of_its_latest_entry,
    entries_of_limits_that_this_version_does_not_know_are_kept,
    entries_are_found_by_their_ids_and_the_last_one_by_its_partition,
);

async fn a_repeated_entry_counts_once(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let entries = [consume(100, 3), consume(100, 4)];
    assert_eq!(ledger.post(&entries).await, Ok(Posted { inserted: 2, repeated: 0 }));
    let more = [entries[1].clone(), consume(100, 1), entries[0].clone(), entries[0].clone()];
    assert_eq!(ledger.post(&more).await, Ok(Posted { inserted: 1, repeated: 3 }));
    assert_eq!(ledger.post(&entries).await, Ok(Posted { inserted: 0, repeated: 2 }));
    // A new process sees the same.
    let state = database.ledger().await.gate_states(PARTITION).await.unwrap().remove(0);
    assert_eq!(state.state, QuotaState { index: 100, used: 8, ..QuotaState::default() });
    assert_eq!((state.key, state.hard_limit), (account(1), 10));
    assert_eq!(ledger.post(&[]).await, Ok(Posted::default()));
    assert_eq!(ledger.gate_states(PARTITION + 1).await, Ok(Vec::new()));
}

async fn entries_are_found_by_their_ids_and_the_last_one_by_its_partition(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let at = |partition, millis, sequence| EntryId { generation: u64::MAX >> 11, partition, millis, sequence };
    // More than one statement looks for, in partitions and sequences whose next number has more digits.
    let there: Vec<EntryId> = (0..450).map(|number| at(255 + number % 2, 255, u64::from(number))).collect();
    let entries: Vec<OutboxEntry> = there.iter().map(|id| OutboxEntry { id: *id, ..consume(100, 1) }).collect();
    let mut late = entries[7].clone();
    (late.id, late.late_amount) = (at(255, 256, u64::MAX), 3);
    ledger.post(&[entries, vec![late.clone()]].concat()).await.unwrap();
    let absent = [at(255, 255, 450), at(257, 255, 0), EntryId { generation: 7, ..there[0] }, at(255, 256, 0)];
    let asked: Vec<EntryId> = absent.into_iter().chain(there.iter().copied()).chain([late.id]).collect();
    let found = ledger.contains(&asked).await.unwrap();
    assert_eq!(found, asked.iter().map(|id| !absent.contains(id)).collect::<Vec<_>>());
    assert_eq!(ledger.contains(&[]).await, Ok(Vec::new()));
    let last = async |partition, generation| ledger.last_entry(partition, generation).await.unwrap();
    assert_eq!(last(255, u64::MAX >> 11).await, Some(late.id));
    assert_eq!(last(256, u64::MAX >> 11).await, there.last().copied());
    assert_eq!((last(254, u64::MAX >> 11).await, last(257, u64::MAX >> 11).await), (None, None));
    assert_eq!(last(255, 7).await, None);
}

async fn concurrent_posters_of_overlapping_batches_count_each_entry_once(database: &TestDatabase) {
    let mut rng = Rng::with_seed(7);
    let entries: Vec<OutboxEntry> = (0..400).map(|_| random_entry(&mut rng)).collect();
    let posters = (0..4_u64).map(|seed| {
        let mut rng = Rng::with_seed(seed);
        let batches: Vec<Vec<OutboxEntry>> = (0..25)
            .map(|_| {
                let mut batch = rng.choose_multiple(entries.iter().cloned(), 40);
                rng.shuffle(&mut batch);
                batch
            })
            .chain(entries.chunks(100).map(<[OutboxEntry]>::to_vec))
            .collect();
        async move {
            let ledger = database.ledger().await;
            let mut inserted = 0;
            for batch in batches {
                inserted += ledger.post(&batch).await.unwrap().inserted;
            }
            inserted
        }
    });
    let inserted: u64 = futures_util::future::join_all(posters).await.into_iter().sum();
    assert_eq!(inserted, 400);
    assert_equal_to_model(database, &entries).await;
}

async fn sums_equal_those_of_a_naive_ledger_in_any_order(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let mut model = NaiveLedger::default();
    let mut rng = Rng::with_seed(3);
    let mut posted: Vec<OutboxEntry> = Vec::new();
    for _ in 0..120 {
        let mut batch: Vec<OutboxEntry> = (0..rng.usize(1..6)).map(|_| random_entry(&mut rng)).collect();
        batch.extend(rng.choice(&posted).cloned());
        ledger.post(&batch).await.unwrap();
        model.post(&batch);
        posted.extend(batch);
        let keys = [1, 2, 3].map(account);
        let expected: Vec<GateState> = keys.iter().map(|key| model.gate_state(key)).collect();
        assert_eq!(ledger.gate_states_of(&keys).await.unwrap(), expected);
    }
    assert_equal_to_model(database, &posted).await;
}

async fn assert_equal_to_model(database: &TestDatabase, entries: &[OutboxEntry]) {
    let mut model = NaiveLedger::default();
    model.post(entries);
    let mut states = database.ledger().await.gate_states(PARTITION).await.unwrap();
    states.sort_by_key(|state| state.key.clone());
    let expected: Vec<GateState> = [1, 2, 3].map(|number| model.gate_state(&account(number))).into();
    assert_eq!(states, expected);
}

/// An entry of one of three accounts in one of a dozen periods, some of them far apart.
fn random_entry(rng: &mut Rng) -> OutboxEntry {
    let at = rng.u64(1_000_000..2_000_000_000);
    let kind = match rng.u8(..10) {
        0..6 => EntryKind::Consume,
        6..8 => EntryKind::Reserve,
        8 => EntryKind::Commit,
        _ => EntryKind::Release,
    };
    let period = if rng.bool() { rng.u64(100..108) } else { *rng.choice(&[90, 112, 113, 140]).unwrap() };
    let is_hold = kind != EntryKind::Consume;
    OutboxEntry {
        subject: Subject::from_hash(rng.u128(1..=3)),
        period,
        amount: if kind == EntryKind::Reserve { 0 } else { rng.i64(-3..25) },
        late_amount: if kind != EntryKind::Reserve && rng.u8(..6) == 0 { rng.i64(-3..9) } else { 0 },
        held: if kind == EntryKind::Reserve { rng.u64(1..9) } else { 0 },
        owner: if is_hold { rng.u64(1..8) } else { 0 },
        expires_at: Timestamp::from_micros(match kind {
            EntryKind::Reserve => at + 1_000,
            EntryKind::Consume => 0,
            _ => at * u64::from(rng.bool()),
        }),
        hard_limit: rng.u64(8..12),
        ..entry(kind, at)
    }
}

async fn debt_is_carried_over_idle_periods_and_changes_with_late_amounts(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let state = async || ledger.gate_states_of(&[account(1)]).await.unwrap().remove(0).state;
    ledger.post(&[consume(100, 37)]).await.unwrap();
    assert_eq!(state().await, QuotaState { index: 100, used: 10, debt: 27, previous: 0, carried: 0 });
    ledger.post(&[consume(103, 1)]).await.unwrap();
    assert_eq!(state().await, QuotaState { index: 103, used: 8, debt: 0, previous: 10, carried: 7 });
    // An old period changes: the debt of those after it does, too.
    ledger.post(&[consume(101, 4)]).await.unwrap();
    assert_eq!(state().await, QuotaState { index: 103, used: 10, debt: 2, previous: 10, carried: 11 });
    ledger.post(&[consume(100, -30)]).await.unwrap();
    assert_eq!(state().await, QuotaState { index: 103, used: 1, debt: 0, previous: 0, carried: 0 });
}

async fn a_late_amount_counts_in_the_period_before(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let both = OutboxEntry { late_amount: 12, ..consume(101, 3) };
    let late_only = OutboxEntry { late_amount: 1, ..consume(101, 0) };
    let posted = ledger.post(&[both.clone(), late_only.clone()]).await;
    assert_eq!(posted, Ok(Posted { inserted: 2, repeated: 0 }));
    assert_eq!(ledger.post(&[late_only, both.clone()]).await, Ok(Posted { inserted: 0, repeated: 2 }));
    let state = ledger.gate_states(PARTITION).await.unwrap().remove(0).state;
    assert_eq!(state, QuotaState { index: 101, used: 6, debt: 0, previous: 10, carried: 3 });
    let entries = ledger.export(&ExportQuery::default()).await.unwrap();
    let parts: Vec<_> = entries.iter().filter(|entry| entry.id == both.id).collect();
    assert_eq!(
        parts.iter().map(|part| (part.is_late, part.index, part.amount)).collect::<Vec<_>>(),
        [(false, 101, 3), (true, 100, 12)]
    );
}

async fn an_account_moves_to_the_partition_of_its_latest_entry(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 3)]).await.unwrap();
    let mut moved = consume(100, 2);
    moved.id.partition = 9;
    ledger.post(&[moved]).await.unwrap();
    assert_eq!(ledger.accounts_of(PARTITION).await, Ok(Vec::new()));
    let states = ledger.gate_states(9).await.unwrap();
    assert_eq!((states.len(), states[0].state.used, states[0].key.partition), (1, 5, 9));
}

async fn entries_of_limits_that_this_version_does_not_know_are_kept(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let unknown = OutboxEntry {
        stem: "of a later version".into(),
        id: EntryId { generation: 1, partition: 5, millis: 1, sequence: u64::MAX },
        period: u64::MAX,
        owner: u64::MAX,
        ..consume(100, 3)
    };
    assert_eq!(ledger.post(&[unknown, consume(100, 1)]).await, Ok(Posted { inserted: 2, repeated: 0 }));
    assert_eq!(ledger.accounts_of(5).await.unwrap()[0].stem, "of a later version");
    assert_eq!(ledger.accounts_of(PARTITION).await.unwrap()[0].stem, STEM);
}
