//! The accuracy of the sliding window by the length of its slices: each decision is compared with that of an exact log of the same
//! admitted requests, and the totals with those of a sliding log under the same traffic.
//! In virtual time, from fixed seeds: the same in every run.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use common::{Cell, Options, Random, Table, report};
use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Request, Rule, RuleSet, Timestamp};

const WINDOW: u64 = 60_000_000;
const LIMIT: u64 = 300;

/// Requests a second at a given second of the day, for a limit of five a second.
type Traffic = (&'static str, fn(u64) -> f64);

const TRAFFIC: [Traffic; 4] = [
    ("9 tenths of the limit, steady", |_| 4.5),
    ("twice the limit, steady", |_| 10.0),
    ("twice the limit for 20 s of every 90", |second| if second % 90 < 20 { 10.0 } else { 1.0 }),
    ("ten times the limit for 5 s of every 47", |second| if second % 47 < 5 { 50.0 } else { 1.0 }),
];

/// The counts of admitted and denied requests of one traffic.
#[derive(Default)]
struct AccuracyCounts {
    requests: u64,
    wrongly_allowed: u64,
    wrongly_denied: u64,
    most_in_a_window: u64,
    admitted: u64,
    admitted_by_log: u64,
}

fn main() {
    let options = Options::from_command_line();
    let requests = if options.quick { 20_000 } else { 1_000_000 };
    let columns =
        ["traffic", "slice", "wrongly allowed %", "wrongly denied %", "most in a minute %", "admitted, % of a log's"];
    let mut table = Table::new("Sliding window of 300 a minute against an exact log of what it admitted", columns);
    for (name, rate) in TRAFFIC {
        for slices in [1, 2, 6, 12, 60] {
            let seen = measure(slices, rate, requests);
            let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
            table.row([
                Cell::Text(name.to_owned()),
                Cell::Text(format!("{} s", 60 / slices)),
                Cell::Number(percent(seen.wrongly_allowed, seen.requests), 3),
                Cell::Number(percent(seen.wrongly_denied, seen.requests), 3),
                Cell::Number(percent(seen.most_in_a_window, LIMIT), 1),
                Cell::Number(percent(seen.admitted, seen.admitted_by_log), 1),
            ]);
        }
    }
    report(&options, &[table]);
}

fn measure(slices: u64, rate: fn(u64) -> f64, requests: u64) -> AccuracyCounts {
    let clock = ManualClock::default();
    let window = Duration::from_micros(WINDOW);
    let limiter = |limit: Limit| {
        let store = MemoryStore::new().with_clock(clock.clone());
        Limiter::new(RuleSet::new([Rule::new("api", limit)]).unwrap(), store)
    };
    let log = limiter(Limit::sliding_log(LIMIT, window).unwrap());
    let limiter = limiter(Limit::sliding_window(LIMIT, window, slices).unwrap());
    let (mut random, mut now, mut admitted) = (Random::new(slices), 1_800_000_000_000_000, VecDeque::new());
    let mut seen = AccuracyCounts::default();
    for _ in 0..requests {
        now += (random.wait() / rate(now / 1_000_000) * 1e6) as u64;
        clock.set(Timestamp::from_micros(now));
        while admitted.front().is_some_and(|at| at + WINDOW <= now) {
            admitted.pop_front();
        }
        let fits = (admitted.len() as u64) < LIMIT;
        let allowed = limiter.check_now(&Request::new("")).is_allowed();
        seen.requests += 1;
        seen.wrongly_allowed += u64::from(allowed && !fits);
        seen.wrongly_denied += u64::from(!allowed && fits);
        seen.admitted_by_log += u64::from(log.check_now(&Request::new("")).is_allowed());
        if allowed {
            seen.admitted += 1;
            admitted.push_back(now);
            seen.most_in_a_window = seen.most_in_a_window.max(admitted.len() as u64);
        }
    }
    seen
}
