//! A million new subjects as fast as possible: the time, and the memory they take in the server and in the process. The limit keeps
//! each for ten minutes, so that none expires during the run.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use std::time::Duration;

use common::{BATCH_SIZE, Options, Random, StoreDriver, Table, cpu, report};
use conformance::server::{KINDS, Kind, Server};
use redis::cmd;
use tidegate::rules::AnonymousBounds;
use tidegate::spi::{Check, Gate, Plan, Subject};
use tidegate::{Clock, Limit, MemoryStore, Rule, SystemClock};
use tidegate_redis::RedisOptions;

const MIB: f64 = 1024.0 * 1024.0;

fn main() {
    let options = Options::from_command_line();
    let subjects = options.keys(1_000_000);
    let mut tables: Vec<Table> = KINDS.into_iter().map(|kind| on_server(kind, subjects)).collect();
    tables.push(in_memory(subjects));
    report(&options, &tables);
}

fn on_server(kind: Kind, subjects: usize) -> Table {
    let columns = ["what", "seconds", "passed", "keys", "server MiB", "process MiB", "µs CPU of the server for each"];
    let mut table = Table::new(format!("{kind:?}: {subjects} new subjects"), columns);
    let cases = [
        ("authenticated users", None),
        ("anonymous, no cap", Some(u64::MAX)),
        ("anonymous, cap 10,000", Some(10_000)),
        ("anonymous, cap 1,000", Some(1_000)),
    ];
    for (what, cap) in cases {
        let server = Server::start(kind);
        let mut connection = server.connection();
        let store = StoreDriver::connect(&server, RedisOptions::new());
        let (gate, clock) = (gate(cap), SystemClock::new());
        let mut used = || {
            let info: String = cmd("INFO").arg("memory").query(&mut connection).unwrap();
            let memory: f64 = cpu::field(&info, "used_memory").parse().unwrap();
            (memory, resident(), cpu::server_micros(&mut connection))
        };
        let (mut random, mut passed, before, start) = (Random::new(7), 0, used(), clock.now());
        for batch in 0..subjects.div_ceil(BATCH_SIZE) {
            let size = BATCH_SIZE.min(subjects - batch * BATCH_SIZE);
            let plans: Vec<Plan<'_>> = (0..size).map(|_| plan(&gate, random.hash(), cap.is_some())).collect();
            passed += store.decide(&plans);
        }
        let (seconds, after) = (clock.now().since(start).as_secs_f64(), used());
        let keys: f64 = cmd("DBSIZE").query(&mut server.connection()).unwrap();
        let cells = [
            (seconds, 1),
            (passed as f64, 0),
            (keys, 0),
            ((after.0 - before.0) / MIB, 1),
            ((after.1 - before.1) / MIB, 1),
            ((after.2 - before.2) / subjects as f64, 2),
        ];
        table.figures(what, cells);
    }
    table
}

fn in_memory(subjects: usize) -> Table {
    let columns = ["what", "seconds", "passed", "keys", "process MiB", "later users with own key, %"];
    let mut table = Table::new(format!("In process: {subjects} new subjects"), columns);
    for (what, authenticated) in [("users", true), ("anonymous", false)] {
        let (max_keys, clock) = (subjects / 10, SystemClock::new());
        let (store, gate, before, start) =
            (MemoryStore::new().with_max_keys(max_keys), gate(Some(u64::MAX)), resident(), clock.now());
        let (mut random, mut passed) = (Random::new(7), 0);
        for _ in 0..subjects {
            passed += store.decide_now(&plan(&gate, random.hash(), !authenticated)).granted();
        }
        let (seconds, after, keys) = (clock.now().since(start).as_secs_f64(), resident(), store.keys());
        let users = max_keys / 10;
        let own = (0..users).filter(|_| !store.decide_now(&plan(&gate, random.hash(), false)).checks()[0].overflowed);
        let own = own.count() as f64 / users as f64 * 100.0;
        // Kept alive, so that the next run cannot reuse its memory.
        std::mem::forget(store);
        let cells = [(seconds, 1), (passed as f64, 0), (keys as f64, 0), ((after - before) / MIB, 1), (own, 1)];
        let what = format!("{what}, room for {max_keys} keys");
        table.figures(&what, cells);
    }
    table
}

fn gate(cap: Option<u64>) -> Gate {
    let limit = Limit::sliding_log(20, Duration::from_mins(10)).unwrap();
    let bounds = AnonymousBounds::new(cap.unwrap_or(1));
    Gate::new(Rule::new("login-ip", limit).with_per(["ip"]).with_anonymous(bounds), "", limit)
}

fn plan(gate: &Gate, hash: u128, anonymous: bool) -> Plan<'_> {
    Plan::new([Check::new(gate, Subject::from_hash(hash), 1).with_anonymous(anonymous)]).unwrap()
}

/// Resident memory of this process, in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}
