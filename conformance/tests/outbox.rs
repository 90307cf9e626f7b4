//! The outbox of quotas with a ledger: every change writes one entry with the exact amounts, and a server that was emptied admits nothing
//! until it is rebuilt.

mod fixture;
mod history;
mod permissions;
mod slot_move;
mod unreadable;

use std::time::Duration;

use conformance::dose;
use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{START, decide_all, key_name, long_timeout_options, wait_until};
use futures_util::future::join_all;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::algorithm::{AdjustmentOutcome, Op, TakePosition};
use tidegate::spi::{
    AccountKey, Adjustment, Check, EntryId, EntryKind, Gate, GateHold, GateHoldStatus, GateState, Outbox, Plan,
    PlanMode, ReservationTerms, Store, Subject, Verdict,
};
use tidegate::{StoreError, StoreErrorKind};

use fixture::{
    ALL, GENERATION, TTL, amounts, assert_rebuilding, commit, drain, drain_all, flush, gate, gate_state, owner,
    position_of, quota, read_state, start, subject,
};
use history::History;

const PARTITION: u16 = 7;

/// Steps in the random histories of a test, each of which has 60 on two servers.
const DEFAULT_STEPS: u64 = 1_200;

fn histories() -> u64 {
    dose::steps(DEFAULT_STEPS) / 120
}

/// Random takes, charges, refunds and reservations, over several periods: the entries are those of the memory store, and their sums are
/// the states.
#[tokio::test]
async fn every_change_writes_one_entry_with_the_exact_amounts() {
    for kind in KINDS {
        let server = Server::start(kind);
        for seed in 0..histories() {
            let history = History::start(&server, seed).await;
            history.run(60).await;
        }
    }
}

/// In a cluster, a plan across slots writes its entries in several calls.
#[tokio::test]
async fn a_cluster_writes_the_same_entries() {
    let server = Server::start_alone_in_cluster(Kind::Redis);
    for seed in 100..100 + histories() {
        History::start(&server, seed).await.run(60).await;
    }
}

/// What was lost comes back as it was, with open reservations and remembered ends.
#[tokio::test]
async fn rebuilt_states_decide_as_before_the_loss() {
    for kind in KINDS {
        let server = Server::start(kind);
        for seed in 0..histories() {
            let history = History::start(&server, seed).await;
            history.run(30).await;
            history.lose_and_rebuild(&server).await;
            history.run(30).await;
        }
    }
}

#[tokio::test]
async fn denied_plans_repeated_reservations_and_peeks_write_no_entry() {
    for kind in KINDS {
        let (_server, store, _) = start(kind).await;
        let gate = gate("api");
        let take = |cost| Plan::new([Check::new(&gate, subject(1), cost)]).unwrap();
        assert_eq!(store.decide(&take(60)).await.unwrap().granted(), 1);
        assert_eq!(amounts(&drain(&store).await), [(EntryKind::Consume, 60, 0)]);
        for plan in [take(41), take(41).with_peek(), take(10).with_peek(), take(0)] {
            store.decide(&plan).await.unwrap();
        }
        let reserve = |cost| take(cost).with_reservation(ReservationTerms::new(owner(5), TTL, true));
        for _ in 0..3 {
            assert_eq!(store.decide(&reserve(30)).await.unwrap().granted(), 1);
        }
        let entries = drain(&store).await;
        assert_eq!(amounts(&entries), [(EntryKind::Reserve, 0, 30)]);
        assert_eq!((entries[0].owner, entries[0].expires_at), (5, START.plus(TTL)));
        let commit = Adjustment::new(&take(0).checks()[0], commit(5, 45));
        assert_eq!(store.apply(&[commit]).await.outcomes().unwrap(), [AdjustmentOutcome::Applied]);
        assert_eq!(store.apply(&[commit]).await.outcomes().unwrap(), [AdjustmentOutcome::Repeated]);
        assert_eq!(amounts(&drain(&store).await), [(EntryKind::Commit, 45, 0)]);
        // It is in debt now, and a denial writes the same state again.
        assert_eq!(store.decide(&take(0)).await.unwrap().granted(), 0);
        assert!(drain(&store).await.is_empty());
    }
}

/// Plans of one batch with and without a ledger, on one key and on several.
#[tokio::test]
async fn combined_plans_write_an_entry_each() {
    for kind in KINDS {
        let (server, store, _) = start(kind).await;
        let (ledger, other) = (gate("api"), Gate::for_rule("other", quota()));
        let checks = |number: u128| {
            let own = Check::new(&ledger, subject(number % 5), 3);
            [own, Check::new(&other, subject(number % 3), 1)]
        };
        let plans: Vec<Plan<'_>> = (0..200)
            .flat_map(|number| {
                let [own, other] = checks(number);
                [Plan::new([own]).unwrap(), Plan::new([own, other]).unwrap(), Plan::new([other]).unwrap()]
            })
            .collect();
        let verdicts = decide_all(&store, &plans).await;
        let granted = |plan: &Plan<'_>, verdict: &Result<Verdict, StoreError>| {
            let has_ledger = plan.checks()[0].gate().ledger().is_some();
            has_ledger && verdict.as_ref().unwrap().granted() == 1
        };
        let granted = plans.iter().zip(&verdicts).filter(|(plan, verdict)| granted(plan, verdict)).count();
        let entries = drain_all(&store, 0..5).await;
        assert_eq!(entries.len(), granted);
        assert_eq!(granted, 5 * 33, "each subject has room for 33 takes");
        assert!(entries.iter().all(|entry| (entry.amount, entry.stem.as_str()) == (3, "api:u1d")));
        let streams: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*@ledger").query(&mut server.connection()).unwrap();
        assert_eq!(streams.len(), 5);
        let expiry: i64 = redis::cmd("PTTL").arg(&streams[0]).query(&mut server.connection()).unwrap();
        assert_eq!(expiry, -1, "neither streams nor generations expire");
    }
}

#[tokio::test]
async fn an_emptied_server_admits_nothing_until_it_is_rebuilt() {
    for kind in KINDS {
        let (server, store, _) = start(kind).await;
        let gate = gate("api");
        let check = Check::new(&gate, subject(PARTITION.into()), 4);
        let plan = Plan::new([check]).unwrap();
        assert_eq!(store.decide(&plan).await.unwrap().granted(), 1);
        assert_eq!(store.take_written_partitions(), [PARTITION]);
        drain(&store).await;
        flush(&server);
        let reserve = plan.clone().with_reservation(ReservationTerms::new(owner(1), TTL, false));
        let several = plan.clone().with_max_units(3);
        for plan in [&plan, &plan.clone().with_peek(), &reserve, &several, &plan.clone().with_mode(PlanMode::CountEach)]
        {
            assert_rebuilding(&store.decide(plan).await.map(drop));
        }
        let refund = Op::Refund { cost: 4, position: TakePosition::default() };
        for op in [refund, commit(1, 3)] {
            assert_rebuilding(&store.apply(&[Adjustment::new(&check, op)]).await.outcomes().map(drop));
        }
        assert_rebuilding(&store.apply(&[Adjustment::charge(&check)]).await.outcomes().map(drop));
        assert_rebuilding(&store.apply(&[Adjustment::new(&check, commit(1, 3))]).await.outcomes().map(drop));
        let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
        assert_eq!(keys, 0);
        assert_eq!(store.take_written_partitions(), [PARTITION], "it must be rebuilt");
        assert_eq!(store.ledger_generation(PARTITION), None);
        assert_eq!(store.read_outbox(PARTITION, ALL).await.unwrap().generation, None);
        assert_eq!(store.read_states(PARTITION, &[]).await.unwrap(), None);

        let state = QuotaState { index: position_of(START).index(), used: 98, ..QuotaState::default() };
        let state = GateState { state, ..gate_state(&check) };
        assert_eq!(store.rebuild_partition(PARTITION, 9, &[state]).await.unwrap(), 9);
        assert_eq!(store.ledger_generation(PARTITION), Some(9));
        assert_eq!(store.decide(&plan).await.unwrap().granted(), 0, "4 do not fit beside 98");
        let cheap = Plan::new([Check::new(&gate, subject(PARTITION.into()), 2)]).unwrap();
        assert_eq!(store.decide(&cheap).await.unwrap().granted(), 1);
        let entries = drain(&store).await;
        assert_eq!(entries[0].id.generation, 9);
    }
}

/// A second instance learns the generation from the first reply. A refund of a take that may be lost is not applied.
#[tokio::test]
async fn instances_learn_a_generation_from_the_reply() {
    let (server, first, clock) = start(Kind::Redis).await;
    let second = server.store_with(long_timeout_options().with_clock(clock)).await;
    let gate = gate("api");
    let check = Check::new(&gate, subject(PARTITION.into()), 4);
    let plan = Plan::new([check]).unwrap();
    second.apply(&[Adjustment::charge(&check)]).await.outcomes().unwrap();
    assert_eq!(second.ledger_generation(PARTITION), Some(GENERATION));
    flush(&server);
    first.rebuild_partition(PARTITION, 11, &[]).await.unwrap();
    let refund = Adjustment::new(&check, Op::Refund { cost: 4, position: position_of(START) });
    assert_rebuilding(&second.apply(&[refund]).await.outcomes().map(drop));
    assert_eq!(second.ledger_generation(PARTITION), Some(11));

    flush(&server);
    first.rebuild_partition(PARTITION, 12, &[]).await.unwrap();
    assert_eq!(second.decide(&plan).await.unwrap().granted(), 1);
    assert_eq!(second.ledger_generation(PARTITION), Some(12));
    flush(&server);
    first.rebuild_partition(PARTITION, 13, &[]).await.unwrap();
    second.apply(&[Adjustment::charge(&check), refund]).await.outcomes().unwrap_err();
    second.apply(&[Adjustment::charge(&check), refund]).await.outcomes().unwrap();
    assert_eq!(amounts(&drain(&first).await), [(EntryKind::Consume, 4, 0), (EntryKind::Release, -4, 0)]);
}

#[tokio::test]
async fn a_repair_is_refused_while_entries_wait_or_the_outbox_has_moved_on() {
    for kind in KINDS {
        let (server, store, _) = start(kind).await;
        let gate = gate("api");
        let check = Check::new(&gate, subject(PARTITION.into()), 4);
        let plan = Plan::new([check]).unwrap();
        let reserve = plan.clone().with_reservation(ReservationTerms::new(owner(1), TTL, false));
        for plan in [&plan, &reserve] {
            assert_eq!(store.decide(plan).await.unwrap().granted(), 1);
        }
        let batch = store.read_outbox(PARTITION, ALL).await.unwrap();
        let state = QuotaState { index: position_of(START).index(), used: 50, ..QuotaState::default() };
        let repaired = GateState { state, ..gate_state(&check) };
        let repair = async |position, state: &GateState| {
            store.repair_states(PARTITION, position, std::slice::from_ref(state)).await.unwrap()
        };
        assert!(!repair(&batch.position, &repaired).await, "entries wait");
        drain(&store).await;
        assert_eq!(store.decide(&plan).await.unwrap().granted(), 1);
        drain(&store).await;
        assert!(!repair(&batch.position, &repaired).await, "another entry was written since");
        let batch = store.read_outbox(PARTITION, ALL).await.unwrap();
        assert!(repair(&batch.position, &repaired).await);
        assert_eq!(read_state(&store, &check).await, Some(state));
        let position = store.read_outbox(PARTITION, ALL).await.unwrap().position;
        assert_eq!(position, batch.position, "a repair is no entry");
        let left = store.decide(&plan.clone().with_peek()).await.unwrap().checks()[0].outcome.remaining;
        assert_eq!(left, 46, "the reservation of 4 stays");
        assert!(repair(&position, &gate_state(&check)).await);
        assert_eq!(read_state(&store, &check).await, None);
        let left = store.decide(&plan.clone().with_peek()).await.unwrap().checks()[0].outcome.remaining;
        assert_eq!(left, 96);
        let other = Check::new(&gate, Subject::from_hash((u128::from(PARTITION) << 96) + 99), 1);
        assert!(repair(&position, &GateState { state, ..gate_state(&other) }).await);
        assert!(repair(&position, &gate_state(&other)).await);
        let exists: bool = redis::cmd("EXISTS").arg(key_name(other.key())).query(&mut server.connection()).unwrap();
        assert!(!exists, "an empty state has no key");
        flush(&server);
        assert!(!repair(&position, &repaired).await, "it must be rebuilt");
        store.rebuild_partition(PARTITION, 5, &[]).await.unwrap();
        assert!(!repair(&position, &repaired).await, "another generation");
    }
}

#[tokio::test]
async fn a_full_outbox_and_a_full_server_refuse_plans_and_take_adjustments() {
    for kind in KINDS {
        let (server, store, _) = start(kind).await;
        let gate = gate("api");
        let check = Check::new(&gate, subject(PARTITION.into()), 4);
        let plan = Plan::new([check]).unwrap();
        assert_eq!(store.decide(&plan).await.unwrap().granted(), 1);
        let fill = "for i = 2, 100000 do redis.call('XADD', KEYS[1], '*', 'e', 'x') end";
        let mut connection = server.connection();
        let stream = "tg1{07}@ledger";
        let _: () = redis::cmd("EVAL").arg(fill).arg(1).arg(stream).query(&mut connection).unwrap();
        let error = store.decide(&plan).await.unwrap_err();
        assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Refused, false));
        assert!(error.to_string().contains("outbox"), "{error}");
        assert_eq!(store.decide(&plan.clone().with_peek()).await.unwrap().checks()[0].outcome.remaining, 96);
        store.apply(&[Adjustment::charge(&check)]).await.outcomes().unwrap();
        let _: () = redis::cmd("XTRIM").arg(stream).arg("MAXLEN").arg(1).query(&mut connection).unwrap();
        assert_eq!(amounts(&drain(&store).await), [(EntryKind::Consume, 4, 0)]);
        assert_eq!(store.decide(&plan).await.unwrap().granted(), 1);

        let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).query(&mut connection).unwrap();
        let error = store.decide(&plan).await.unwrap_err();
        assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Refused, false), "{error}");
        store.apply(&[Adjustment::charge(&check)]).await.outcomes().unwrap();
        let batch = store.read_outbox(PARTITION, 1).await.unwrap();
        assert_eq!((batch.entries.len(), batch.waiting), (1, 1));
        drain(&store).await;
    }
}

/// Of two rebuilders one writes the states, and both get its generation.
#[tokio::test]
async fn two_rebuilders_agree_on_one_generation() {
    for kind in KINDS {
        let (server, store, _) = start(kind).await;
        flush(&server);
        let gate = gate("api");
        let index = position_of(START).index();
        let states: Vec<GateState> = (0..1_300_u128)
            .map(|number| {
                let check = Check::new(&gate, Subject::from_hash((u128::from(PARTITION) << 96) + number), 1);
                GateState { state: QuotaState { index, used: 1, ..QuotaState::default() }, ..gate_state(&check) }
            })
            .collect();
        let rebuild = async |generation| {
            loop {
                match store.rebuild_partition(PARTITION, generation, &states).await {
                    Ok(generation) => return generation,
                    Err(error) => assert_eq!(error.kind(), StoreErrorKind::Rebuilding),
                }
            }
        };
        let generations = join_all([rebuild(21), rebuild(22), rebuild(23)]).await;
        assert!(generations.iter().all(|generation| *generation == generations[0]), "{generations:?}");
        let keys: Vec<AccountKey> = states.iter().map(|state| state.key.clone()).collect();
        let (_, found) = store.read_states(PARTITION, &keys).await.unwrap().unwrap();
        assert!(found.iter().zip(&states).all(|(found, state)| *found == Some(state.state)));
        let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
        assert_eq!(keys, 1_301, "the states and the generation; the lock is gone");

        // The entries of a stream that outlived its generation are read before, and keep theirs.
        let check = Check::new(&gate, subject(PARTITION.into()), 1);
        store.apply(&[Adjustment::charge(&check)]).await.outcomes().unwrap();
        let _: () = redis::cmd("DEL").arg("tg1{07}@generation").query(&mut server.connection()).unwrap();
        assert_eq!(
            store.rebuild_partition(PARTITION, 31, &states).await.unwrap_err().kind(),
            StoreErrorKind::Rebuilding
        );
        let batch = store.read_outbox(PARTITION, ALL).await.unwrap();
        assert_eq!((batch.generation, batch.entries[0].id.generation), (None, generations[0]));
        drain(&store).await;
        assert_eq!(store.rebuild_partition(PARTITION, 31, &states).await.unwrap(), 31);
    }
}

/// Positions are known after all entries were deleted, and deleting again does no harm.
#[tokio::test]
async fn acknowledged_entries_are_deleted_and_the_position_stays() {
    for kind in KINDS {
        let (_server, store, _) = start(kind).await;
        let gate = gate("api");
        let before = store.read_outbox(PARTITION, ALL).await.unwrap().position;
        for number in 0..1_200 {
            let check = Check::new(&gate, Subject::from_hash((u128::from(PARTITION) << 96) + number), 1);
            store.apply(&[Adjustment::charge(&check)]).await.outcomes().unwrap();
        }
        let batch = store.read_outbox(PARTITION, 1_000).await.unwrap();
        assert_eq!((batch.entries.len(), batch.waiting), (1_000, 200));
        assert_ne!(batch.position, before);
        let ids: Vec<EntryId> = batch.entries.iter().map(|entry| entry.id).collect();
        store.acknowledge(PARTITION, &ids).await.unwrap();
        store.acknowledge(PARTITION, &ids).await.unwrap();
        assert_eq!(drain(&store).await.len(), 200);
        let empty = store.read_outbox(PARTITION, ALL).await.unwrap();
        assert_eq!((empty.entries.len(), empty.waiting, empty.position), (0, 0, batch.position));
    }
}

/// Nobody waits for such a commit. It is sent again until the partition is rebuilt.
#[tokio::test]
async fn a_commit_in_the_background_waits_until_the_partition_is_rebuilt() {
    let (server, store, _) = start(Kind::Redis).await;
    let gate = gate("api");
    let check = Check::new(&gate, subject(PARTITION.into()), 4);
    flush(&server);
    store.spawn_apply(&[Adjustment::new(&check, commit(1, 3))]);
    let is_refused = || store.take_written_partitions() == [PARTITION];
    wait_until("refused", is_refused, String::new).await;
    assert_eq!(store.ledger_generation(PARTITION), None);
    let hold = GateHold { owner: 1, at: START, expires_at: START.plus(TTL), units: 4, status: GateHoldStatus::Open };
    let state = GateState { holds: vec![hold], ..gate_state(&check) };
    store.rebuild_partition(PARTITION, 9, &[state]).await.unwrap();
    wait_until("committed", || store.background_adjustments() == 0, String::new).await;
    assert_eq!(store.take_written_partitions(), [PARTITION]);
    assert_eq!(amounts(&drain(&store).await), [(EntryKind::Commit, 3, 0)]);
}

/// The entry of a caller that went away before the reply is announced like any other.
#[tokio::test]
async fn an_abandoned_decision_marks_its_partition() {
    let (server, store, _) = start(Kind::Redis).await;
    let gate = gate("api");
    let plan = Plan::new([Check::new(&gate, subject(PARTITION.into()), 4)]).unwrap();
    server.hang();
    let abandoned = tokio::time::timeout(Duration::from_millis(50), store.decide(&plan)).await;
    assert!(abandoned.is_err());
    assert_eq!(store.take_written_partitions(), [PARTITION], "it may be applied");
    server.resume();
    wait_until("marked", || store.take_written_partitions() == [PARTITION], String::new).await;
    assert_eq!(amounts(&drain(&store).await), [(EntryKind::Consume, 4, 0)]);
}
