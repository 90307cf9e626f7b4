//! Bytes of memory that a key takes in Redis and in Valkey, by the server's own count (`used_memory`), next to
//! hand-written states: a counter, a hash of two floats, a sorted set of requests.
//!
//! Every case has its own server. The whole key counts: its name, its value, its expiry, and its share of
//! the server's tables, which depends on how full they are; a sixteenth of the keys fills them just as much.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use std::time::Duration;

use common::{Cell, KeySize, MemoryServer, Options, START, Table, report};
use conformance::server::{KINDS, Kind};
use redis::{Cmd, cmd};
use tidegate::limits::{LimitError, Period, Periods};
use tidegate::{Limit, Rate};

const MINUTE: Duration = Duration::from_mins(1);
/// Requests of one user that fall into different slices of the same minute.
const REQUEST_OFFSETS_MICROS: [u64; 4] = [1_000_000, 16_000_000, 34_000_000, 52_000_000];

fn main() {
    let options = Options::from_command_line();
    report(&options, &[limits(&options), log_growth(&options)]);
}

fn limits(options: &Options) -> Table {
    let keys = options.keys(1_000_000);
    let fewer = keys / 16;
    let mut table = Table::new(
        format!("Bytes for each key: {}", versions()),
        ["what", "keys", "requests", "name", "value", "redis", "valkey", "to an integer", "and on valkey"],
    );
    let mut integers = [f64::NAN; 2];
    let mut row = |what: &str, keys: usize, requests: usize, weigh: &dyn Fn(&MemoryServer) -> KeySize| {
        let weighed = KINDS.map(|kind| weigh(&MemoryServer::open(kind)));
        let bytes = weighed.each_ref().map(|weighed| weighed.bytes_per_key);
        if integers[0].is_nan() {
            integers = bytes;
        }
        let KeySize { name, value, .. } = weighed[0];
        let value = value.map_or(f64::NAN, |value| value as f64);
        let counts = [(keys as f64, 0), (requests as f64, 0), (name as f64, 0), (value, 0)];
        let bytes = [(bytes[0], 1), (bytes[1], 1), (bytes[0] / integers[0], 2), (bytes[1] / integers[1], 2)];
        table.figures(what, counts.into_iter().chain(bytes));
    };

    row("by hand: integer, TTL", keys, 1, &|server| server.commands(keys, &[0], counter));
    row("by hand: integer below 10000, TTL", fewer, 1, &|server| server.commands(fewer, &[0], small_counter));
    row("by hand: hash of two floats, TTL", fewer, 1, &|server| server.commands(fewer, &[0], hash));
    row("by hand: sorted set, TTL", fewer, 1, &|server| server.commands(fewer, &[0], sorted_set));
    let per_second = |amount| Rate::per_second(amount).unwrap();
    row("token bucket, 10/s", keys, 1, &takes(Limit::token_bucket(20, per_second(10)), keys, &[0]));
    row("fixed window, 1 min", keys, 1, &takes(Limit::fixed_window(100, MINUTE), keys, &[0]));
    row("sliding log, 1 min", keys, 1, &takes(Limit::sliding_log(100, MINUTE), keys, &[0]));
    row("leaky bucket, 10/s", fewer, 1, &takes(Limit::leaky_bucket(per_second(10), 20), fewer, &[0]));
    row("concurrency, one slot held", fewer, 1, &takes(Limit::concurrency(100, MINUTE), fewer, &[0]));
    let month = Limit::quota(1_000_000, Periods::utc(Period::Month));
    row("quota, a month", fewer, 1, &takes(month, fewer, &[0]));
    row("token bucket, 7/s", fewer, 1, &takes(Limit::token_bucket(20, per_second(7)), fewer, &[0]));
    for seconds in [1, 5, 10, 30] {
        let limit = Limit::sliding_window(100, MINUTE, 60 / seconds);
        let what = format!("sliding window, 1 min by {seconds} s");
        row(&what, fewer, REQUEST_OFFSETS_MICROS.len(), &takes(limit, fewer, &REQUEST_OFFSETS_MICROS));
    }
    table
}

/// The bytes of each further request in a log, and of each further slot that is held.
fn log_growth(options: &Options) -> Table {
    let keys = if options.quick { 50 } else { 200 };
    // One request every 50 ms: a thousand of them are within the minute.
    let at: Vec<u64> = (0..1000).map(|request| request * 50_000).collect();
    let [log, concurrency] = [Limit::sliding_log(1000, MINUTE), Limit::concurrency(1000, MINUTE)];
    let mut table = Table::new(
        format!("Bytes for each key with many requests on record, {keys} keys"),
        ["what", "server", "at 100", "at 1000", "each further request"],
    );
    let mut row = |what: &str, kind: Kind, weigh: &dyn Fn(&MemoryServer, &[u64]) -> KeySize| {
        let [few, many] = [100, 1000].map(|requests| weigh(&MemoryServer::open(kind), &at[..requests]).bytes_per_key);
        let numbers = [(few, 0), (many, 0), ((many - few) / 900.0, 2)];
        let numbers = numbers.map(|(number, decimals)| Cell::Number(number, decimals));
        table.row([Cell::from(what), Cell::Text(format!("{kind:?}"))].into_iter().chain(numbers));
    };
    for kind in KINDS {
        row("sliding log, 1 min", kind, &|server, at| takes(log.clone(), keys, at)(server));
        row("concurrency, slots held", kind, &|server, at| takes(concurrency.clone(), keys, at)(server));
        row("by hand: sorted set", kind, &|server, at| server.commands(keys, at, sorted_set));
    }
    table
}

fn takes(limit: Result<Limit, LimitError>, keys: usize, at: &[u64]) -> impl Fn(&MemoryServer) -> KeySize {
    let limit = limit.unwrap();
    move |server| server.takes(keys, at, limit)
}

fn counter(name: &[u8], at: u64) -> Vec<Cmd> {
    vec![cmd("SET").arg(name).arg(START + at).arg("PX").arg(3_600_000).take()]
}

/// Servers share small integers among all keys, unless they evict by age.
fn small_counter(name: &[u8], _: u64) -> Vec<Cmd> {
    vec![cmd("SET").arg(name).arg(100).arg("PX").arg(3_600_000).take()]
}

/// Remaining tokens and the time of the last request, as common token bucket scripts keep them.
fn hash(name: &[u8], at: u64) -> Vec<Cmd> {
    let seconds = (START + at) as f64 / 1e6;
    vec![cmd("HSET").arg(name).arg("tokens").arg(18.25).arg("ts").arg(seconds).take(), expire(name)]
}

/// One member per request, named by its time, the shortest possible name.
fn sorted_set(name: &[u8], at: u64) -> Vec<Cmd> {
    vec![cmd("ZADD").arg(name).arg(START + at).arg(START + at).take(), expire(name)]
}

fn expire(name: &[u8]) -> Cmd {
    cmd("PEXPIRE").arg(name).arg(3_600_000).take()
}

fn versions() -> String {
    KINDS.map(|kind| MemoryServer::open(kind).version()).join(" and ")
}
