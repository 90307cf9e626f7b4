//! What a decision costs without a ledger, with `async` and with `sync`, side by side: CPU time of three processes, and latency.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use conformance::suite::wait_until;
use tidegate::limits::{Period, Periods};
use tidegate::rules::LedgerMode;
use tidegate::{Clock, Limit, Limiter, Request, Rule, RuleSet, SystemClock};
use tidegate_ledger::{LedgerService, ServiceOptions};
use tidegate_redis::RedisStore;
use tokio::runtime::{Builder, Runtime};

use super::Bench;
use super::common::cpu::{process_micros, server_micros};
use super::common::{Cell, Contender, Random, Table, best_of, patient_options, run_callers};
use super::database::Database;

const TENANTS: usize = 10_000;
const MODES: [(&str, Option<LedgerMode>); 3] =
    [("no ledger", None), ("async", Some(LedgerMode::Async)), ("sync", Some(LedgerMode::Sync))];
/// Callers, and how much fewer calls they make in a round.
const CALLERS: [(usize, usize); 2] = [(1, 20), (64, 1)];

/// A limiter, and the runtime that it runs on.
struct Setup<'r> {
    runtime: &'r Runtime,
    limiter: Limiter<RedisStore>,
    service: Option<&'r LedgerService<RedisStore>>,
}

/// What a decision costs, in microseconds.
struct DecisionCost {
    redis: f64,
    process: f64,
    postgres: f64,
    p50: f64,
    p99: f64,
    per_second: f64,
}

pub(crate) fn measure(bench: &Bench, database: &Database) -> Table {
    let calls = bench.options.keys(20_000);
    let columns = [
        "decisions under way",
        "ledger",
        "µs CPU of Redis",
        "of the process",
        "of PostgreSQL",
        "p50 µs",
        "p99 µs",
        "a second",
    ];
    let mut table = Table::new(format!("Decisions on a quota, {TENANTS} tenants, Redis and PostgreSQL"), columns);
    redis::cmd("FLUSHALL").arg("SYNC").exec(&mut bench.redis.connection()).unwrap();
    // Without a ledger nothing is read from outboxes: a runtime of its own, on which no service runs.
    let plain_runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let plain_store = plain_runtime.block_on(connect(bench));
    let (store, service) = bench.runtime.block_on(async {
        let store = connect(bench).await;
        // A busy machine may need longer than the default.
        let options = ServiceOptions::default().with_budget(Duration::from_secs(5));
        let service = LedgerService::start(database.ledger().await, store.clone(), options).unwrap();
        service.prepare().await.unwrap();
        (store, service)
    });
    let setups = MODES.map(|(_, mode)| match mode {
        None => Setup { runtime: &plain_runtime, limiter: limiter(&plain_store, None), service: None },
        Some(mode) => {
            let limiter = limiter(&store, Some(mode)).with_ledger(Arc::new(service.clone()));
            Setup { runtime: &bench.runtime, limiter, service: Some(&service) }
        }
    });
    for (callers, fewer) in CALLERS {
        let mut contenders: Vec<Contender<'_, DecisionCost>> = Vec::new();
        for ((name, _), setup) in MODES.into_iter().zip(&setups) {
            contenders.push((name, Box::new(move || measure_round(bench, database, setup, callers, calls / fewer))));
        }
        for (name, cost) in best_of(bench.rounds(), contenders, |round, best| round.process < best.process) {
            let numbers = [
                (cost.redis, 2),
                (cost.process, 2),
                (cost.postgres, 2),
                (cost.p50, 0),
                (cost.p99, 0),
                (cost.per_second, 0),
            ];
            let numbers = numbers.map(|(number, decimals)| Cell::Number(number, decimals));
            table.row([Cell::Number(callers as f64, 0), Cell::from(name)].into_iter().chain(numbers));
        }
    }
    table
}

async fn connect(bench: &Bench) -> RedisStore {
    bench.redis.store_with(patient_options()).await
}

fn limiter(store: &RedisStore, mode: Option<LedgerMode>) -> Limiter<RedisStore> {
    let quota = Limit::quota(1_000_000_000, Periods::utc(Period::Day)).unwrap();
    let rule = Rule::new(mode.map_or("none", LedgerMode::as_str), quota).with_per(["tenant"]);
    let rule = match mode {
        Some(mode) => rule.with_ledger(mode),
        None => rule,
    };
    Limiter::new(RuleSet::new([rule]).unwrap(), store.clone())
}

/// Decides `calls` times, and waits until the last entries are in the ledger, which belongs to the cost.
fn measure_round(bench: &Bench, database: &Database, setup: &Setup<'_>, callers: usize, calls: usize) -> DecisionCost {
    let tenants: Vec<String> =
        Random::new(7).uniform(TENANTS, calls).into_iter().map(|n| format!("tenant-{n}")).collect();
    let latencies = RefCell::new(Vec::with_capacity(calls));
    let clock = SystemClock::new();
    let decide = async |number: usize| {
        let (began_at, request) = (clock.now(), Request::new("call").with_attribute("tenant", &tenants[number]));
        assert!(setup.limiter.check(&request).await.unwrap().is_allowed());
        latencies.borrow_mut().push(clock.now().since(began_at).as_secs_f64() * 1e6);
    };
    let mut connection = bench.redis.connection();
    let mut spent = || (server_micros(&mut connection), process_micros(), postgres_micros(database), clock.now());
    let posted = || setup.service.map_or(0, |service| service.stats().entries_posted);
    let posted_before = posted();
    let before = spent();
    setup.runtime.block_on(run_callers(callers, calls, decide));
    let ended_at = clock.now();
    if let Some(service) = setup.service {
        let is_posted = || posted() == posted_before + calls as u64;
        setup.runtime.block_on(wait_until("entries are missing", is_posted, || format!("{:?}", service.stats())));
    }
    let after = spent();
    let mut latencies = latencies.into_inner();
    latencies.sort_by(f64::total_cmp);
    let each = |micros: f64| micros / calls as f64;
    DecisionCost {
        redis: each(after.0 - before.0),
        process: each(after.1 - before.1),
        postgres: each(after.2 - before.2),
        p50: latencies[latencies.len() / 2],
        p99: latencies[latencies.len() * 99 / 100],
        per_second: calls as f64 / ended_at.since(before.3).as_secs_f64(),
    }
}

/// CPU microseconds of all processes of the server.
fn postgres_micros(database: &Database) -> f64 {
    let Database::Postgres(server) = database else { return f64::NAN };
    server.process().cpu_time().unwrap().as_secs_f64() * 1e6
}
