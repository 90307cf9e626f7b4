//! Decisions in process: `Limiter::check_now` on the memory store, next to governor's keyed limiter, in the same run.
//!
//! Both have one token bucket for each user, take the user's name as a `String` from the same list, and read their own
//! clock. Tidegate then hashes the name with its secret and builds the whole `Decision`; governor answers yes or no. What
//! is timed allocates, hashes and decides; drawing the users is done before.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::time::Instant;

use common::{Contender, Options, Random, Table, best_of, cpu, report};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate::limits::{Period, Periods, Window};
use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};

const RATE: u32 = 1000;
/// A capacity that is never used up.
const AMPLE_CAPACITY: u32 = 1_000_000_000;
/// A capacity that is used up at once.
const SCARCE_CAPACITY: u32 = 1000;
/// Consumed before the measurement: ten minutes of refill, so that no bucket expires during the run.
const CONSUMED_TOKENS: u32 = 600 * RATE;

/// The keys and their order.
struct Workload {
    name: String,
    users: Vec<String>,
    capacity: u32,
    /// The sequence of users, for each of two threads.
    order: [Vec<u32>; 2],
}

/// One round of one limiter, per decision.
struct Round {
    /// CPU time of all threads together, in nanoseconds.
    cpu: f64,
    /// Time that runnable threads waited for a processor.
    waited: f64,
    /// Wall time, from the first thread's start to the last one's end.
    wall: f64,
    allowed: f64,
}

impl Round {
    /// Threads that waited for a processor did not contend with each other, so the round says little about contention.
    fn is_disturbed(&self) -> bool {
        self.waited > self.cpu / 20.0
    }

    fn beats(&self, other: &Self) -> bool {
        match (self.is_disturbed(), other.is_disturbed()) {
            (false, false) => self.cpu < other.cpu,
            (true, true) => self.waited < other.waited,
            (_, other_is) => other_is,
        }
    }
}

fn main() {
    let options = Options::from_command_line();
    let numbers = ["tidegate ns", "governor ns", "ratio", "tidegate M/s", "governor M/s", "allowed %", "disturbed %"];
    let title = "Memory store: CPU time for a decision, and decisions a second of all threads, next to governor 0.10.4";
    let mut table = Table::new(title, ["keys", "threads"].into_iter().chain(numbers));
    for workload in workloads(&options) {
        let (tidegate, governor) = (tidegate(&workload, bucket(&workload)), keyed_governor(&workload));
        for threads in [1, 2] {
            let contenders: Vec<Contender<'_, Round>> = vec![
                ("tidegate", Box::new(|| run(&workload, threads, |user| tidegate_allows(&tidegate, user)))),
                ("governor", Box::new(|| run(&workload, threads, |user| governor_allows(&governor, user)))),
            ];
            let best = best_of(options.rounds(), contenders, Round::beats);
            let [(_, ours), (_, theirs)] = &best[..] else { unreachable!("two contenders") };
            assert!((ours.allowed - theirs.allowed).abs() < 0.01, "both allow the same requests");
            let disturbed = 100.0 * (ours.waited / ours.cpu).max(theirs.waited / theirs.cpu);
            let cpu = [(threads as f64, 0), (ours.cpu, 1), (theirs.cpu, 1), (ours.cpu / theirs.cpu, 2)];
            let wall = [(1e3 / ours.wall, 2), (1e3 / theirs.wall, 2), (ours.allowed * 100.0, 0), (disturbed, 0)];
            table.figures(&workload.name, cpu.into_iter().chain(wall));
        }
    }
    report(&options, &[table, kinds(&options)]);
}

/// What calendar periods cost: they are computed once for each period, and read by every check.
fn kinds(options: &Options) -> Table {
    let title = "Memory store: CPU time for a decision on one key by one thread, by kind of limit";
    let mut table = Table::new(title, ["limit", "ns"]);
    let workload = workloads(options).next().unwrap();
    let amount = u64::from(AMPLE_CAPACITY);
    let months = |zone: &str| Periods::new(Period::Month, zone, None).unwrap();
    let limits = [
        ("token bucket", bucket(&workload)),
        ("fixed window, a month", Limit::fixed_window(amount, Window::MONTH).unwrap()),
        ("quota, a month in UTC", Limit::quota(amount, months("UTC")).unwrap()),
        ("quota, a month in Berlin", Limit::quota(amount, months("Europe/Berlin")).unwrap()),
    ];
    let limiters = limits.map(|(name, limit)| (name, tidegate(&workload, limit)));
    let mut contenders: Vec<Contender<'_, Round>> = Vec::new();
    for (name, limiter) in &limiters {
        contenders.push((name, Box::new(|| run(&workload, 1, |user| tidegate_allows(limiter, user)))));
    }
    for (name, round) in best_of(options.rounds(), contenders, Round::beats) {
        table.figures(name, [(round.cpu, 1)]);
    }
    table
}

fn workloads(options: &Options) -> impl Iterator<Item = Workload> {
    let keys = options.keys(1_000_000);
    let count = if options.quick { 200_000 } else { 1_000_000 };
    let workload = move |name: String, keys: usize, capacity: u32, order: fn(&mut Random, usize, usize) -> Vec<u32>| {
        let users = (0..keys).map(|user| format!("user-{user}")).collect();
        Workload { name, users, capacity, order: [1, 2].map(|seed| order(&mut Random::new(seed), keys, count)) }
    };
    let names = ["1", "1, denied"].map(str::to_owned);
    let many = [format!("{keys} uniform"), format!("{keys} zipf")];
    // Lazily, so that only one is in memory.
    (0..4).map(move |number| match number {
        0 => workload(names[0].clone(), 1, AMPLE_CAPACITY, Random::uniform),
        1 => workload(names[1].clone(), 1, SCARCE_CAPACITY, Random::uniform),
        2 => workload(many[0].clone(), keys, AMPLE_CAPACITY, Random::uniform),
        _ => workload(many[1].clone(), keys, AMPLE_CAPACITY, Random::zipf),
    })
}

fn bucket(workload: &Workload) -> Limit {
    Limit::token_bucket(workload.capacity.into(), Rate::per_second(RATE.into()).unwrap()).unwrap()
}

fn tidegate(workload: &Workload, limit: Limit) -> Limiter<MemoryStore> {
    let rules = RuleSet::new([Rule::new("api", limit).with_per(["user"])]).unwrap();
    let limiter = Limiter::new(rules, MemoryStore::new().with_max_keys(2_000_000));
    for user in &workload.users {
        let spend =
            Request::new("read").with_attribute("user", user).with_cost(CONSUMED_TOKENS.min(workload.capacity).into());
        assert!(limiter.check_now(&spend).is_allowed());
    }
    limiter
}

fn tidegate_allows(limiter: &Limiter<MemoryStore>, user: &str) -> bool {
    black_box(limiter.check_now(&Request::new("read").with_attribute("user", black_box(user)))).is_allowed()
}

fn governor_allows(limiter: &DefaultKeyedRateLimiter<String>, user: &String) -> bool {
    black_box(limiter.check_key(black_box(user))).is_ok()
}

fn keyed_governor(workload: &Workload) -> DefaultKeyedRateLimiter<String> {
    let number = |number: u32| NonZeroU32::new(number).unwrap();
    let limiter = RateLimiter::keyed(Quota::per_second(number(RATE)).allow_burst(number(workload.capacity)));
    for user in &workload.users {
        assert!(limiter.check_key_n(user, number(CONSUMED_TOKENS.min(workload.capacity))).unwrap().is_ok());
    }
    limiter
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn run(workload: &Workload, threads: usize, allows: impl Fn(&String) -> bool + Sync) -> Round {
    let start_together = Barrier::new(threads);
    let decide_all = |order: &[u32]| {
        start_together.wait();
        let (started, (ran, waited)) = (Instant::now(), cpu::thread_nanos());
        let allowed = order.iter().filter(|user| allows(&workload.users[**user as usize])).count();
        let (ran_then, waited_then) = cpu::thread_nanos();
        (started, Instant::now(), [ran_then - ran, waited_then - waited, allowed as f64])
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let threads = workload.order[..threads].iter().map(|order| scope.spawn(|| decide_all(order)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let decisions = (workload.order[0].len() * threads) as f64;
    let [cpu, waited, allowed] =
        [0, 1, 2].map(|number| done.iter().map(|(_, _, numbers)| numbers[number]).sum::<f64>() / decisions);
    let started = done.iter().map(|(started, ..)| *started).min().unwrap();
    let ended = done.iter().map(|(_, ended, _)| *ended).max().unwrap();
    Round { cpu, waited, wall: ended.duration_since(started).as_nanos() as f64 / decisions, allowed }
}
