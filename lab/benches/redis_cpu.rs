//! Processor time of a Redis and a Valkey server for one decision, by the server's own count of its main thread, next to
//! a minimal script and hand-written ones. All in batches, so that the network is a small part.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use std::time::Duration;

use common::{BenchServer, Contender, Options, Table, best_of, report};
use conformance::server::{KINDS, Kind, Server};
use redis::{Cmd, cmd};
use tidegate::limits::{Penalty, Period, Periods};
use tidegate::spi::Gate;
use tidegate::{Limit, Rate};

/// The minimum for a state with a time and an expiry.
const BARE_STATE: &str = "#!lua
redis.call('TIME')
redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1";

/// A common token bucket script: tokens and a time, two floats in a hash.
const HASH_BUCKET: &str = "#!lua
local rate, capacity, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local found = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local tokens, ts = tonumber(found[1]) or capacity, tonumber(found[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - ts) * rate)
local allowed = tokens >= cost
if allowed then tokens = tokens - cost end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 2000))
return allowed and 1 or 0";

/// Entries of a long log or list of slots, and the number of users that have one.
const LONG_LOG_ENTRIES: usize = 100;
const LONG_LOG_USERS: usize = 1000;

fn main() {
    let options = Options::from_command_line();
    let tables: Vec<Table> = KINDS.into_iter().map(|kind| measure(kind, &options)).collect();
    report(&options, &tables);
}

fn measure(kind: Kind, options: &Options) -> Table {
    let server = Server::start(kind);
    let server = BenchServer::new(&server, if options.quick { 1000 } else { 10_000 });
    let contenders = by_hand(&server).into_iter().chain(ours(&server)).collect();
    let best = best_of(options.rounds(), contenders, |round, best| round < best);
    let bare_state = best[2].1;
    let columns = ["what", "µs CPU", "to TIME, GET, SET PX"];
    let mut table = Table::new(format!("{kind:?}: CPU time of the server for one call"), columns);
    for (name, micros) in best {
        table.figures(name, [(micros, 2), (micros / bare_state, 2)]);
    }
    table
}

fn by_hand(server: &BenchServer) -> Vec<Contender<'_, f64>> {
    let contender = |name: &'static str, start: Cmd, end: &'static [&str]| -> Contender<'_, f64> {
        (name, Box::new(move || server.by_hand(&start, end)))
    };
    vec![
        contender("INCR", cmd("INCR"), &[]),
        contender("script: return 1", server.load("#!lua\nreturn 1"), &[]),
        contender("script: TIME, GET, SET PX", server.load(BARE_STATE), &["1790000040000000", "60000"]),
        contender("script: token bucket in a hash", server.load(HASH_BUCKET), &["7", "1000", "1"]),
    ]
}

fn ours(server: &BenchServer) -> Vec<Contender<'_, f64>> {
    let contender = |name: &'static str, limits: &[Limit], users: usize, before: usize| -> Contender<'_, f64> {
        let rules = ["api", "org", "ip", "all"];
        let gates: Vec<Gate> =
            rules.into_iter().zip(limits).map(|(rule, limit)| Gate::for_rule(rule, *limit)).collect();
        (name, Box::new(move || server.ours(&gates, users, before)))
    };
    let all_users = |name: &'static str, limits: &[Limit]| contender(name, limits, usize::MAX, 2);

    let (minute, rate) = (Duration::from_mins(1), Rate::per_second(7).unwrap());
    let token_bucket = Limit::token_bucket(1000, rate).unwrap();
    let leaky_bucket = Limit::leaky_bucket(rate, 1000).unwrap();
    let fixed_window = Limit::fixed_window(1000, minute).unwrap();
    let sliding_log = Limit::sliding_log(1000, minute).unwrap();
    let by_slices = |slices: u64| Limit::sliding_window(1000, minute, slices).unwrap();
    let sliding_window = by_slices(6);
    let concurrency = Limit::concurrency(1000, minute).unwrap();
    let months = Periods::new(Period::Month, "Europe/Berlin", None).unwrap();
    let quota = Limit::quota_with_grace(1_000_000, 50_000, months).unwrap();
    let penalty = Limit::Penalty(Penalty::new(3, minute, 2, minute * 60).unwrap());
    vec![
        all_users("token bucket, 10/s", &[Limit::token_bucket(1000, Rate::per_second(10).unwrap()).unwrap()]),
        all_users("token bucket, 7/s, with remainders", &[token_bucket]),
        all_users("leaky bucket, 7/s, with remainders", &[leaky_bucket]),
        all_users("fixed window", &[fixed_window]),
        all_users("quota by month in Berlin, with grace", &[quota]),
        all_users("sliding window, 1 min by 30 s", &[by_slices(2)]),
        all_users("sliding window, 1 min by 10 s", &[sliding_window]),
        all_users("sliding window, 1 min by 5 s", &[by_slices(12)]),
        all_users("sliding window, 1 min by 1 s", &[by_slices(60)]),
        all_users("sliding log, 2 to 5 entries", &[sliding_log]),
        contender("sliding log, 100 to 103 entries", &[sliding_log], LONG_LOG_USERS, LONG_LOG_ENTRIES),
        all_users("concurrency, 2 to 5 slots held", &[concurrency]),
        contender("concurrency, 100 to 103 slots held", &[concurrency], LONG_LOG_USERS, LONG_LOG_ENTRIES),
        all_users("token bucket with a penalty, no strikes", &[token_bucket, penalty]),
        all_users("plan of 4 token buckets, 7/s", &[token_bucket; 4]),
        all_users("plan of 4 kinds", &[token_bucket, fixed_window, sliding_window, leaky_bucket]),
    ]
}
