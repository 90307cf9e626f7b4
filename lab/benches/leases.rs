//! Leases on Redis next to a token bucket: takes, releases and renewals, as CPU time of both processes and calls a second; and the traffic
//! that renewing 10,000 of them causes. And calls on a key that has many reservations.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::cpu::{field, server_micros};
use common::{CallBench, CallCost, Cell, Contender, Instance, Options, Random, Table, best_of, report, subjects};
use conformance::server::{Kind, Server};
use tidegate::limits::{Period, Periods};
use tidegate::spi::algorithm::{AdjustmentOutcome, HoldOp, Op};
use tidegate::spi::{Adjustment, Check, Gate, LeaseOwner, Plan, ReservationTerms, Store};
use tidegate::{Limit, Rate};
use tidegate_redis::RedisStore;

const UNDER_WAY: usize = 64;
/// Subjects, each with slots of its own.
const SUBJECTS: usize = 10_000;
/// Renewals in one call: as many as the library sends together.
const RENEWALS_PER_CALL: usize = 256;
/// The lease and the time to live of reservations, and how often it is renewed within its time.
const LEASE: Duration = Duration::from_secs(30);
const RENEWALS_PER_LEASE: u32 = 3;

fn main() {
    let options = Options::from_command_line();
    let server = Server::start(Kind::Redis);
    let calls = if options.quick { 2_000 } else { 100_000 };
    let tables = [
        calls_next_to_a_bucket(&server, &options, calls),
        renewals(&server, &options),
        calls_beside_reservations(&server, &options, calls / 10),
    ];
    report(&options, &tables);
}

fn calls_next_to_a_bucket(server: &Server, options: &Options, calls: usize) -> Table {
    let bench = CallBench { server, callers: UNDER_WAY, calls };
    let instance = [Instance::with_store(server)];
    let bucket = Gate::for_rule("api", Limit::token_bucket(1_000_000, Rate::per_second(1_000).unwrap()).unwrap());
    let (slots, subjects) = (slots(), subjects(SUBJECTS));
    let order = Random::new(5).uniform(SUBJECTS, calls);
    let check = |gate, number: usize| Check::new(gate, subjects[order[number] as usize], 1);
    let contenders: Vec<Contender<'_, CallCost>> = vec![
        bench.contender("token bucket: take", &instance, async |store, number| {
            take(store, check(&bucket, number), None).await;
        }),
        bench.contender("lease: take", &instance, async |store, number| {
            take(store, check(&slots, number), Some(owner(number))).await;
        }),
        bench.contender("lease: take, and release in the background", &instance, async |store, number| {
            let check = check(&slots, number);
            take(store, check, Some(owner(number))).await;
            store.spawn_apply(&[Adjustment::release(&check, owner(number))]);
        }),
        bench.contender("lease: take, and wait for the release", &instance, async |store, number| {
            let check = check(&slots, number);
            take(store, check, Some(owner(number))).await;
            update(store, &[Adjustment::release(&check, owner(number))]).await;
        }),
    ];
    let month = Gate::for_rule("tokens", Limit::quota(1_000_000_000, Periods::utc(Period::Month)).unwrap());
    // A key is remembered, so each reservation has an owner of its own.
    let next = AtomicU64::new(1);
    let owner = || LeaseOwner::from_number(next.fetch_add(1, Ordering::Relaxed)).unwrap();
    let reservations = [
        ("token bucket: reserve and commit", &bucket, false),
        ("token bucket: reserve and commit, with an idempotency key", &bucket, true),
        ("quota: reserve and commit", &month, false),
    ];
    let reservations = reservations.map(|(name, gate, keyed)| -> Contender<'_, CallCost> {
        let (check, owner) = (&check, &owner);
        bench.contender(name, &instance, async move |store, number| {
            reserve_and_commit(store, check(gate, number), owner(), keyed).await;
        })
    });
    let contenders = contenders.into_iter().chain(reservations).collect();
    let best = best_of(options.rounds(), contenders, |round, best| round.server_micros < best.server_micros);
    let columns = ["what", "µs CPU of Redis", "to the first row", "µs CPU of the process", "a second"];
    let title = format!("Leases and a token bucket, {SUBJECTS} subjects, {UNDER_WAY} under way");
    let mut table = Table::new(title, columns);
    let first = best[0].1;
    for (name, cost) in best {
        let ratio = cost.server_micros / first.server_micros;
        let numbers = [(cost.server_micros, 2), (ratio, 2), (cost.process_micros, 2), (cost.per_second, 0)];
        table.figures(name, numbers);
    }
    table
}

/// What it costs to keep 10,000 leases, in one second of their time: one for each of many subjects, and many of few subjects.
fn renewals(server: &Server, options: &Options) -> Table {
    let columns = ["what", "calls", "KB to Redis", "KB from it", "ms CPU of Redis", "% of a core"];
    let title = format!(
        "Renewing {SUBJECTS} leases of {} s, {RENEWALS_PER_LEASE} times within each, for a second",
        LEASE.as_secs()
    );
    let mut table = Table::new(title, columns);
    for (what, holders) in [("10,000 subjects with 1 slot each", SUBJECTS), ("100 subjects with 100 slots each", 100)] {
        let (store, subjects) = (Instance::with_store(server), subjects(holders));
        let mut connection = server.connection();
        redis::cmd("FLUSHALL").arg("SYNC").exec(&mut connection).unwrap();
        let slots = slots();
        let check = |number: usize| Check::new(&slots, subjects[number % holders], 1);
        store.run(UNDER_WAY, 0, SUBJECTS, &async |store: &RedisStore, number| {
            take(store, check(number), Some(owner(number))).await;
        });
        let renewals: Vec<Adjustment<'_>> =
            (0..SUBJECTS).map(|number| Adjustment::renewal(&check(number), owner(number))).collect();
        let batches: Vec<&[Adjustment<'_>]> = renewals.chunks(RENEWALS_PER_CALL).collect();
        let rounds = options.rounds();
        let mut best = f64::MAX;
        let mut traffic = [0.0; 2];
        for _ in 0..rounds {
            let before = (server_micros(&mut connection), network(&mut connection));
            store.run(1, 0, batches.len(), &async |store: &RedisStore, number| update(store, batches[number]).await);
            let after = (server_micros(&mut connection), network(&mut connection));
            best = best.min(after.0 - before.0);
            traffic = [after.1[0] - before.1[0], after.1[1] - before.1[1]];
        }
        let rounds_a_second = f64::from(RENEWALS_PER_LEASE) / LEASE.as_secs_f64();
        let numbers = [
            (batches.len() as f64 * rounds_a_second, 1),
            (traffic[0] * rounds_a_second / 1e3, 1),
            (traffic[1] * rounds_a_second / 1e3, 1),
            (best * rounds_a_second / 1e3, 2),
            (best * rounds_a_second / 1e4, 2),
        ];
        table.figures(what, numbers);
    }
    table
}

/// What a list of reservations, open or remembered, costs the requests on its key.
fn calls_beside_reservations(server: &Server, options: &Options, calls: usize) -> Table {
    let columns = ["open and remembered", "take: µs CPU of Redis", "reserve and commit: µs CPU of Redis"];
    let mut table = Table::new(format!("One token bucket with reservations, {UNDER_WAY} under way"), columns);
    let (instance, subjects) = (Instance::with_store(server), subjects(1));
    let bucket = Gate::for_rule("api", Limit::token_bucket(1_000_000_000, Rate::per_second(1_000).unwrap()).unwrap());
    // Different costs, since equal takes are decided as one.
    let check = |number: usize| Check::new(&bucket, subjects[0], 1 + (number % 1_000) as u64);
    let next = AtomicU64::new(1);
    let owner = || LeaseOwner::from_number(next.fetch_add(1, Ordering::Relaxed)).unwrap();
    let mut connection = server.connection();
    for entries in [0, 100, 1_000] {
        let mut best = [f64::MAX; 2];
        for _ in 0..options.rounds() {
            for (best, is_take) in best.iter_mut().zip([true, false]) {
                redis::cmd("FLUSHALL").arg("SYNC").exec(&mut connection).unwrap();
                instance.run(UNDER_WAY, 0, entries, &async |store: &RedisStore, _| {
                    reserve_and_commit(store, check(0), owner(), true).await;
                });
                let before = server_micros(&mut connection);
                instance.run(UNDER_WAY, 0, calls, &async |store: &RedisStore, number| {
                    if is_take {
                        take(store, check(number), None).await;
                    } else {
                        // Without a key, so that the list stays as long as it is.
                        reserve_and_commit(store, check(number), owner(), false).await;
                    }
                });
                *best = best.min((server_micros(&mut connection) - before) / calls as f64);
            }
        }
        table.row([Cell::Number(entries as f64, 0)].into_iter().chain(best.map(|micros| Cell::Number(micros, 2))));
    }
    table
}

fn slots() -> Gate {
    Gate::for_rule("exports", Limit::concurrency(60_000, LEASE).unwrap())
}

/// The owner of the slot that the call with this number takes.
fn owner(number: usize) -> LeaseOwner {
    LeaseOwner::from_number(number as u64 + 1).unwrap()
}

async fn take(store: &RedisStore, check: Check<'_>, owner: Option<LeaseOwner>) {
    let plan = Plan::new([check]).unwrap();
    let plan = match owner {
        Some(owner) => plan.with_lease_owner(owner),
        None => plan,
    };
    assert_eq!(store.decide(&plan).await.unwrap().granted(), 1);
}

async fn reserve_and_commit(store: &RedisStore, check: Check<'_>, owner: LeaseOwner, keyed: bool) {
    let terms = ReservationTerms::new(owner, LEASE, keyed);
    let plan = Plan::new([check]).unwrap().with_reservation(terms);
    assert_eq!(store.decide(&plan).await.unwrap().granted(), 1);
    let commit = HoldOp::Commit { cost: 1, position: terms.position() };
    let endings = store.apply(&[Adjustment::new(&check, Op::Hold(commit))]).await.outcomes().unwrap();
    // A full list forgets the oldest end first, never an open hold.
    assert_ne!(endings, [AdjustmentOutcome::NotFound]);
}

async fn update(store: &RedisStore, adjustments: &[Adjustment<'_>]) {
    let held = store.apply(adjustments).await.outcomes().unwrap();
    assert!(held.iter().all(|outcome| *outcome == AdjustmentOutcome::Applied), "every slot is held");
}

/// Bytes that the server has received and sent.
fn network(connection: &mut redis::Connection) -> [f64; 2] {
    let info: String = redis::cmd("INFO").arg("stats").query(connection).unwrap();
    ["total_net_input_bytes", "total_net_output_bytes"].map(|name| field(&info, name).parse().unwrap())
}
