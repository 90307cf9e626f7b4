//! Decisions that are under way at the same time, against a script call for each request and against plain commands: a single hot
//! key, many keys, and plans of several checks. CPU time of both processes, at `Store::decide`. And how many plans share a script call,
//! on one server and in a cluster.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use common::{CallBench, CallCost, Cell, Contender, Instance, Options, Random, Table};
use common::{best_of, patient_options, report, subjects};
use conformance::server::{Kind, Server};
use conformance::topology::Cluster;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, cmd};
use tidegate::spi::{Check, Gate, Plan, Store, Subject};
use tidegate::{Limit, Rate};
use tidegate_redis::RedisStore;

/// Decisions under way in each instance.
const UNDER_WAY: usize = 64;

/// GCRA with one number as its state: the least that an exact token bucket needs. ARGV: the microseconds of one token, and of a full
/// bucket.
const LEAN_GCRA: &str = "#!lua
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + ARGV[1]
if full - now > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], string.format('%d', full), 'PX', math.ceil((full - now) / 1000))
return 1";

/// Decisions under way in an instance that is flooded.
const MANY_UNDER_WAY: usize = 1_000;

/// Tenants, clients and rules in a plan of several checks.
const TENANTS: usize = 100;
const CLIENTS: usize = 10_000;

fn main() {
    let options = Options::from_command_line();
    let server = Server::start(Kind::Redis);
    let calls = if options.quick { 2_000 } else { 100_000 };
    let tables = [
        one_hot_key(&server, &options, calls),
        uniform_keys(&server, &options, calls),
        plans(&server, &options, calls),
        plans_in_a_batch(&server, &options, calls),
    ];
    report(&options, &tables);
}

/// Two instances decide on one key.
fn one_hot_key(server: &Server, options: &Options, calls: usize) -> Table {
    let bench = CallBench { server, callers: UNDER_WAY, calls };
    let incr = cmd("INCR").arg(key_name(0)).take();
    let (stores, connections) = ([(); 2].map(|()| Instance::with_store(server)), [(); 2].map(|()| connection(server)));
    let (gate, subject, hash) = (gate("api"), subjects(1)[0], load(server));
    let pipeline_calls = calls / UNDER_WAY * UNDER_WAY;
    let contenders: Vec<Contender<'_, CallCost>> = vec![
        bench.contender("script for each request", &connections, async |connection, _| {
            run(connection, &script(&hash, 0)).await;
        }),
        bench.contender("INCR for each request", &connections, async |connection, _| run(connection, &incr).await),
        (
            "INCR in pipelines of 64",
            Box::new(|| {
                let mut pipeline = Pipeline::with_capacity(UNDER_WAY);
                (0..UNDER_WAY).for_each(|_| _ = pipeline.cmd("INCR").arg(key_name(0)));
                let batches = pipeline_calls / UNDER_WAY;
                let bench = CallBench { callers: 1, calls: batches, server };
                let cost = bench.measure(&connections, async |connection, _| {
                    run_all(connection, &pipeline).await;
                });
                let each = UNDER_WAY as f64;
                let (server_micros, process_micros) = (cost.server_micros / each, cost.process_micros / each);
                CallCost { server_micros, process_micros, per_second: cost.per_second * each }
            }),
        ),
        bench.contender("Tidegate", &stores, async |store, _| {
            decide(store, &Plan::new([Check::new(&gate, subject, 1)]).unwrap()).await;
        }),
    ];
    table(options, "One hot key, 2 instances, 64 decisions under way in each", contenders)
}

/// One instance decides on many keys.
fn uniform_keys(server: &Server, options: &Options, calls: usize) -> Table {
    let bench = CallBench { server, callers: UNDER_WAY, calls };
    let (store, connection) = ([Instance::with_store(server)], [connection(server)]);
    let (gate, subjects, hash) = (gate("api"), subjects(options.keys(100_000)), load(server));
    let order = Random::new(5).uniform(subjects.len(), calls);
    let contenders: Vec<Contender<'_, CallCost>> = vec![
        bench.contender("script for each request", &connection, async |connection, number| {
            run(connection, &script(&hash, order[number] as usize)).await;
        }),
        bench.contender("Tidegate", &store, async |store, number| {
            decide(store, &Plan::new([Check::new(&gate, subjects[order[number] as usize], 1)]).unwrap()).await;
        }),
    ];
    table(options, &format!("{} uniform keys, one check, 64 decisions under way", subjects.len()), contenders)
}

/// One instance decides on a tenant, a client and a rule for everybody.
fn plans(server: &Server, options: &Options, calls: usize) -> Table {
    let bench = CallBench { server, callers: UNDER_WAY, calls };
    let (store, connection) = ([Instance::with_store(server)], [connection(server)]);
    let gates = ["tenant", "client", "all"].map(gate);
    let (subjects, hash) = (subjects(CLIENTS), load(server));
    let order = Random::new(5).uniform(CLIENTS, calls);
    let keys = |number: usize| {
        let client = order[number] as usize;
        [client % TENANTS, client, CLIENTS]
    };
    let contenders: Vec<Contender<'_, CallCost>> = vec![
        bench.contender("three scripts for each request", &connection, async |connection, number| {
            let mut pipeline = Pipeline::with_capacity(3);
            let names = ["tenant", "client", "all"];
            for (name, key) in names.into_iter().zip(keys(number)) {
                pipeline.add_command(script_call(&hash, &format!("{name}:{key:020}")));
            }
            run_all(connection, &pipeline).await;
        }),
        bench.contender("Tidegate", &store, async |store, number| {
            let [tenant, client, _] = keys(number);
            let of = [subjects[tenant], subjects[client], Subject::from_hash(0)];
            let checks = gates.iter().zip(of).map(|(gate, subject)| Check::new(gate, subject, 1));
            decide(store, &Plan::new(checks).unwrap()).await;
        }),
    ];
    table(options, "Tenant, client and rule in one plan, 64 decisions under way", contenders)
}

/// How many plans share a script call. In a cluster they must share a slot.
fn plans_in_a_batch(server: &Server, options: &Options, calls: usize) -> Table {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let stores = [
        Instance::with_store(server),
        Instance::new(async || RedisStore::connect_with(&cluster.url(), patient_options()).await.unwrap()),
    ];
    let (gate, subjects) = (gate("api"), subjects(options.keys(100_000)));
    let uniform = Random::new(5).uniform(subjects.len(), calls);
    let hot = vec![0; calls];
    let mut table = Table::new("Plans in a script call, one check each", ["what", "one server", "a cluster of 3"]);
    for (what, order, callers) in [
        ("one hot key, 64 decisions under way", &hot, UNDER_WAY),
        ("uniform keys, 64 decisions under way", &uniform, UNDER_WAY),
        ("uniform keys, 1,000 decisions under way", &uniform, MANY_UNDER_WAY),
    ] {
        let sizes = stores.each_ref().map(|store| {
            let before = batches(store.client());
            store.run(callers, 0, calls, &async |store: &RedisStore, number| {
                decide(store, &Plan::new([Check::new(&gate, subjects[order[number] as usize], 1)]).unwrap()).await;
            });
            let after = batches(store.client());
            Cell::Number((after.1 - before.1) as f64 / (after.0 - before.0) as f64, 1)
        });
        table.row([Cell::from(what)].into_iter().chain(sizes));
    }
    table
}

/// The script calls of a store so far, and the plans in them.
fn batches(store: &RedisStore) -> (u64, u64) {
    store.server_states().iter().fold((0, 0), |sum, server| (sum.0 + server.batches, sum.1 + server.batched_plans))
}

/// Measures the contenders in turn. The first is what the others are compared with.
fn table(options: &Options, title: &str, contenders: Vec<Contender<'_, CallCost>>) -> Table {
    let best = best_of(options.rounds(), contenders, |round, best| round.server_micros < best.server_micros);
    let columns =
        ["what", "µs CPU of Redis", "to the first row", "µs CPU of the process", "both, to the first row", "a second"];
    let mut table = Table::new(title, columns);
    let first = best[0].1;
    for (name, cost) in best {
        let both = |cost: &CallCost| cost.server_micros + cost.process_micros;
        let numbers = [
            (cost.server_micros, 2),
            (cost.server_micros / first.server_micros, 2),
            (cost.process_micros, 2),
            (both(&cost) / both(&first), 2),
            (cost.per_second, 0),
        ];
        table.figures(name, numbers);
    }
    table
}

/// A limit that denies nothing.
fn gate(rule: &str) -> Gate {
    Gate::for_rule(rule, Limit::token_bucket(1_000_000_000, Rate::per_second(1_000_000).unwrap()).unwrap())
}

async fn decide(store: &RedisStore, plan: &Plan<'_>) {
    assert_eq!(store.decide(plan).await.unwrap().granted(), 1);
}

fn connection(server: &Server) -> Instance<MultiplexedConnection> {
    let client = redis::Client::open(server.bare_url()).unwrap();
    Instance::new(async || client.get_multiplexed_async_connection().await.unwrap())
}

/// Loads the script and returns its hash.
fn load(server: &Server) -> String {
    cmd("SCRIPT").arg("LOAD").arg(LEAN_GCRA).query(&mut server.connection()).unwrap()
}

fn script(hash: &str, key: usize) -> Cmd {
    script_call(hash, &key_name(key))
}

fn script_call(hash: &str, key: &str) -> Cmd {
    cmd("EVALSHA").arg(hash).arg(1).arg(key).arg("1").arg("1000000000").take()
}

/// As long as a key of ours.
fn key_name(key: usize) -> String {
    format!("by-hand:{key:020}")
}

async fn run(connection: &MultiplexedConnection, command: &Cmd) {
    connection.clone().req_packed_command(command).await.and_then(redis::Value::extract_error).unwrap();
}

async fn run_all(connection: &MultiplexedConnection, pipeline: &Pipeline) {
    let commands = pipeline.len();
    let replies = connection.clone().req_packed_commands(pipeline, 0, commands).await.unwrap();
    assert_eq!(replies.len(), commands);
}
