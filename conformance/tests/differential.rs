//! Compares three implementations step by step: the naive model, the Rust functions, and the Lua scripts on a real server; and
//! the memory store with the Redis store. They must agree on every field of every verdict.
//!
//! `make test` runs a fixed number of steps, `make prove` at least as many from another seed; `TIDEGATE_STEPS=1000000` (`make differential`)
//! runs that many for each kind and pair, from a fresh one; with `TIDEGATE_KIND=concurrency`, of that kind alone. A failure is shrunk to its smallest history before it is shown.

use std::sync::{Arc, OnceLock};

use conformance::anonymous::{AnonymousCase, AnonymousStore};
use conformance::dose;
use conformance::history::{self, ALGORITHMS, BackwardTime, History};
use conformance::model::ModelStore;
use conformance::pure_store::PureStore;
use conformance::server::{Kind, Server};
use conformance::suite::long_timeout_options;
use proptest::prelude::*;
use tidegate::spi::Store;
use tidegate::{ManualClock, MemoryStore};
use tokio::runtime::{Builder, Runtime};

/// Steps for each kind in `make test`.
const DEFAULT_STEPS: u64 = 4_000;

#[test]
fn rust_agrees_with_the_model() {
    each_kind("rust = model", BackwardTime::Freely, DEFAULT_STEPS * 5, |clock| {
        (PureStore::new(clock.clone()), ModelStore::new(clock.clone()))
    });
}

#[test]
fn lua_in_redis_agrees_with_rust() {
    lua_agrees_with_rust(Kind::Redis);
}

#[test]
fn lua_in_valkey_agrees_with_rust() {
    lua_agrees_with_rust(Kind::Valkey);
}

#[test]
fn the_memory_store_agrees_with_the_redis_store() {
    let (server, runtime) = (Server::start(Kind::Redis), runtime());
    each_kind("memory store = redis store", BackwardTime::WithinMargin, DEFAULT_STEPS, |clock| {
        let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
        (MemoryStore::new().with_clock(clock.clone()), store)
    });
}

/// Plans across slots, decided part by part, give the same verdicts without concurrency. Time does not run backwards here: the
/// rebase is written by a decided check, and after a denial some checks are only peeked at.
#[test]
fn plans_across_slots_agree_with_rust() {
    let (server, runtime) = (Server::start_alone_in_cluster(Kind::Redis), runtime());
    each_kind("parts in a cluster = rust", BackwardTime::Never, DEFAULT_STEPS / 2, |clock| {
        let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
        (store, PureStore::new(clock.clone()))
    });
}

/// Over the cap, each request of a new subject uses the shared overflow bucket and is decided like one subject.
#[test]
fn anonymous_subjects_in_overflow_buckets_agree_with_rust() {
    for (checks, overflowed) in anonymous_subjects_agree_with_rust(AnonymousCase::OverCap) {
        assert!(checks > 0 && overflowed == checks, "only {overflowed} of {checks} used an overflow bucket");
    }
}

/// The scripts for anonymous subjects with `forget_after`, which is never reached.
#[test]
fn anonymous_subjects_with_own_keys_agree_with_rust() {
    for (checks, overflowed) in anonymous_subjects_agree_with_rust(AnonymousCase::WithForgetAfter) {
        assert!(checks > 0 && overflowed == 0, "{overflowed} of {checks} used an overflow bucket");
    }
}

/// The number of checks and of overflowed checks, on each kind of server.
fn anonymous_subjects_agree_with_rust(case: AnonymousCase) -> [(u64, u64); 2] {
    let runtime = runtime();
    [Kind::Redis, Kind::Valkey].map(|kind| {
        let (server, all) = (Server::start(kind), OnceLock::new());
        each_kind(
            &format!("anonymous_plan in {kind:?} {case:?} = rust"),
            BackwardTime::Freely,
            DEFAULT_STEPS / 5,
            |clock| {
                let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
                let anonymous_plan = all.get_or_init(|| Arc::new(AnonymousStore::new(store, case)));
                let rust = PureStore::new(clock.clone()).with_blank_free_checks();
                let rust = if case == AnonymousCase::OverCap { rust.without_debt() } else { rust };
                (Arc::clone(anonymous_plan), rust)
            },
        );
        let counts = all.get().unwrap().overflowed();
        println!("of {} checks, {} used an overflow bucket", counts.0, counts.1);
        counts
    })
}

#[test]
fn penalties_in_rust_agree_with_the_model() {
    penalties_agree("rust = model", BackwardTime::Freely, DEFAULT_STEPS * 5, |clock| {
        (PureStore::new(clock.clone()), ModelStore::new(clock.clone()))
    });
}

#[test]
fn penalties_in_lua_agree_with_rust() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let (server, runtime) = (Server::start(kind), runtime());
        penalties_agree(&format!("lua in {kind:?} = rust"), BackwardTime::Freely, DEFAULT_STEPS, |clock| {
            let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
            (store, PureStore::new(clock.clone()))
        });
    }
}

#[test]
fn penalties_in_the_memory_store_agree_with_the_redis_store() {
    let (server, runtime) = (Server::start(Kind::Redis), runtime());
    penalties_agree("memory store = redis store", BackwardTime::WithinMargin, DEFAULT_STEPS, |clock| {
        let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
        (MemoryStore::new().with_clock(clock.clone()), store)
    });
}

#[test]
fn reservations_in_rust_agree_with_the_model() {
    reservations_agree("rust = model", BackwardTime::Freely, DEFAULT_STEPS * 5, |clock| {
        (PureStore::new(clock.clone()), ModelStore::new(clock.clone()))
    });
}

#[test]
fn reservations_in_lua_agree_with_rust() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let (server, runtime) = (Server::start(kind), runtime());
        reservations_agree(&format!("lua in {kind:?} = rust"), BackwardTime::Freely, DEFAULT_STEPS * 2, |clock| {
            let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
            (store, PureStore::new(clock.clone()))
        });
    }
}

#[test]
fn reservations_in_the_memory_store_agree_with_the_redis_store() {
    let (server, runtime) = (Server::start(Kind::Redis), runtime());
    reservations_agree("memory store = redis store", BackwardTime::WithinMargin, DEFAULT_STEPS, |clock| {
        let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
        (MemoryStore::new().with_clock(clock.clone()), store)
    });
}

#[test]
fn reservations_across_slots_agree_with_rust() {
    let (server, runtime) = (Server::start_alone_in_cluster(Kind::Redis), runtime());
    reservations_agree("parts in a cluster = rust", BackwardTime::Never, DEFAULT_STEPS, |clock| {
        let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
        (store, PureStore::new(clock.clone()))
    });
}

/// Amounts are raised and lowered, and instances with different calendars decide on one key.
#[test]
fn changing_quotas_in_rust_agree_with_the_model() {
    changing_quotas_agree("rust = model", DEFAULT_STEPS * 10, |clock| {
        (PureStore::new(clock.clone()), ModelStore::new(clock.clone()))
    });
}

#[test]
fn changing_quotas_in_lua_agree_with_rust() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let (server, runtime) = (Server::start(kind), runtime());
        changing_quotas_agree(&format!("lua in {kind:?} = rust"), DEFAULT_STEPS * 2, |clock| {
            let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
            (store, PureStore::new(clock.clone()))
        });
    }
}

/// Runs histories of quotas that change on two stores.
fn changing_quotas_agree<A: Store, B: Store>(what: &str, steps: u64, stores: impl Fn(&ManualClock) -> (A, B)) {
    let clock = ManualClock::default();
    let (one, other) = stores(&clock);
    let histories = history::changing_quota_histories();
    let steps = run_steps(steps, &histories, &clock, &one, &other, BackwardTime::Freely);
    println!("{what}: {steps} steps of quotas that change");
}

/// Runs histories with reservations on two stores.
fn reservations_agree<A: Store, B: Store>(
    what: &str,
    backwards: BackwardTime,
    steps: u64,
    stores: impl Fn(&ManualClock) -> (A, B),
) {
    let clock = ManualClock::default();
    let (one, other) = stores(&clock);
    let steps = run_steps(steps, &history::reservation_histories(), &clock, &one, &other, backwards);
    println!("{what}: {steps} steps with reservations");
}

/// Runs histories of rules with a penalty on two stores.
fn penalties_agree<A: Store, B: Store>(
    what: &str,
    backwards: BackwardTime,
    steps: u64,
    stores: impl Fn(&ManualClock) -> (A, B),
) {
    let clock = ManualClock::default();
    let (one, other) = stores(&clock);
    let steps = run_steps(steps, &history::penalty_histories(), &clock, &one, &other, backwards);
    println!("{what}: {steps} steps of penalties");
}

fn lua_agrees_with_rust(kind: Kind) {
    let (server, runtime) = (Server::start(kind), runtime());
    each_kind(&format!("lua in {kind:?} = rust"), BackwardTime::Freely, DEFAULT_STEPS, |clock| {
        let store = runtime.block_on(server.store_with(long_timeout_options().with_clock(clock.clone())));
        (store, PureStore::new(clock.clone()))
    });
}

/// Runs histories of each kind of limit, and of plans of several, on two stores.
fn each_kind<A: Store, B: Store>(
    what: &str,
    backwards: BackwardTime,
    steps: u64,
    stores: impl Fn(&ManualClock) -> (A, B),
) {
    let clock = ManualClock::default();
    let (one, other) = stores(&clock);
    let wanted = kind_from_environment();
    let run = |name: &str, histories: BoxedStrategy<History>| {
        if wanted.as_deref().is_some_and(|wanted| wanted != name) {
            return;
        }
        let steps = run_steps(steps, &histories, &clock, &one, &other, backwards);
        println!("{what}: {steps} steps of {name}");
    };
    for algorithm in ALGORITHMS {
        run(algorithm.as_str(), history::single_check_histories(algorithm));
    }
    run("calendar windows", history::calendar_histories());
    run("plans", history::plan_histories());
}

fn run_steps(
    steps: u64,
    histories: &BoxedStrategy<History>,
    clock: &ManualClock,
    one: &impl Store,
    other: &impl Store,
    backwards: BackwardTime,
) -> u64 {
    let runtime = runtime();
    let agree = |history: History| runtime.block_on(history.agree(clock, one, other, backwards));
    dose::run(steps, histories, History::length, agree)
}

#[allow(clippy::disallowed_methods, reason = "the kind of limit comes from the environment")]
fn kind_from_environment() -> Option<String> {
    std::env::var("TIDEGATE_KIND").ok()
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
