//! A limit of N admits exactly N under concurrency: threads in one process, instances on one server, plans of several checks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{limits_of_every_kind, long_timeout_options, one_limit_of_each_kind};
use tidegate::spi::{Check, Gate, Plan, Store, Subject};
use tidegate::{Decision, Limit, Limiter, MemoryStore, Request, Rule, RuleSet};
use tidegate_redis::RedisStore;
use tokio::task::JoinSet;

const THREADS: usize = 64;
const ATTEMPTS: u64 = 10_000;
const LIMIT: u64 = 1_000;

/// Ten thousand concurrent attempts at a limit of a thousand: check-then-act would admit more.
#[test]
fn sixty_four_threads_get_exactly_the_limit_in_memory() {
    for limit in limits_of_every_kind(LIMIT) {
        let limiter = Limiter::new(one_rule(limit), MemoryStore::new());
        assert_eq!(admitted_by_threads(&limiter, THREADS, ATTEMPTS), LIMIT, "{limit:?}");
    }
}

/// The same from eight connections to one server, where only the script serialises them.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_tasks_on_eight_instances_get_exactly_the_limit_on_a_server() {
    for kind in KINDS {
        let server = Server::start(kind);
        let stores = instances(&server, 8).await;
        for limit in limits_of_every_kind(LIMIT) {
            let limiters = limiters(&one_rule(limit), &stores);
            let admitted = admitted_by_tasks(&limiters, THREADS, ATTEMPTS).await;
            assert_eq!(admitted, LIMIT, "{kind:?} {limit:?}");
        }
    }
}

/// Twelve instances, one subject, a bucket of ten: two instances must not both admit on the same state.
#[tokio::test(flavor = "multi_thread")]
async fn twelve_instances_share_one_bucket() {
    for kind in KINDS {
        let server = Server::start(kind);
        let stores = instances(&server, 12).await;
        for limit in limits_of_every_kind(10) {
            let limiters = limiters(&one_rule(limit), &stores);
            assert_eq!(admitted_by_tasks(&limiters, 20, 20).await, 10, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 45: one rule denies after another has consumed. Whichever of the four rules is tight, the others are charged only for
/// requests that passed.
#[test]
fn a_denied_plan_consumes_nothing_from_the_other_rules_in_memory() {
    for tight in 0..4 {
        let limiter = Limiter::new(four_rules(tight), MemoryStore::new());
        let admitted = admitted_by_threads(&limiter, 16, 1_000);
        assert_consumed_alike(&limiter.store().decide_now(&limiter.plan(&request()).with_peek()), tight, admitted);
    }
}

/// The same on a server, from several instances.
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_plan_consumes_nothing_from_the_other_rules_on_a_server() {
    for kind in KINDS {
        for tight in 0..4 {
            let server = Server::start(kind);
            let limiters = limiters(&four_rules(tight), &instances(&server, 4).await);
            let admitted = admitted_by_tasks(&limiters, 16, 1_000).await;
            let peeked = limiters[0].store().decide(&limiters[0].plan(&request()).with_peek()).await.unwrap();
            assert_consumed_alike(&peeked, tight, admitted);
        }
    }
}

/// Plans with the same keys in opposite orders would deadlock if each locked in its own order. The second store is full, so
/// that its plans lock the overflow bucket too.
#[test]
fn plans_with_keys_in_opposite_orders_do_not_deadlock() {
    let limit = one_limit_of_each_kind(50_000)[0];
    for most_keys in [1_000_000, 2_000] {
        let (store, gate) = (MemoryStore::new().with_max_keys(most_keys), Gate::for_rule("transfer", limit));
        let shared = Arc::new((store, gate));
        let (done, finished) = channel();
        for number in 0..16 {
            let (shared, done) = (Arc::clone(&shared), done.clone());
            thread::spawn(move || {
                let (store, gate) = &*shared;
                for round in 0..2_000 {
                    let mut checks: Vec<_> = (0..8).map(|i| Check::new(gate, subject(round + 500 * i), 1)).collect();
                    if number % 2 == 0 {
                        checks.reverse();
                    }
                    let _ = store.decide_now(&Plan::new(checks).unwrap());
                }
                done.send(()).unwrap();
            });
        }
        for _ in 0..16 {
            // Not a measurement: without it a deadlock would hang the test run instead of failing it.
            finished.recv_timeout(Duration::from_secs(300)).expect("the thread finishes");
        }
        assert_eq!(shared.0.overflowed() > 0, most_keys == 2_000);
    }
}

/// In a full store new subjects share an overflow bucket. Two of them in one plan take from two different buckets, since
/// otherwise one unit would be granted twice.
#[test]
fn two_subjects_of_one_plan_do_not_take_the_same_unit_of_an_overflow_bucket() {
    for limit in limits_of_every_kind(3) {
        let (store, gate) = (MemoryStore::new().with_max_keys(1), Gate::for_rule("transfer", limit));
        let pay = |subjects: &[u128]| {
            let checks = subjects.iter().map(|number| Check::new(&gate, subject(*number), 1));
            store.decide_now(&Plan::new(checks).unwrap()).granted()
        };
        assert_eq!(pay(&[1]), 1, "fills the store");
        assert_eq!((pay(&[2, 3]), pay(&[4, 5]), pay(&[6])), (1, 1, 1), "{limit:?}");
        assert_eq!((pay(&[7]), pay(&[8, 9])), (0, 0), "the first bucket is empty: {limit:?}");
        assert_eq!(store.keys(), 3, "one subject and two overflow buckets: {limit:?}");
    }
}

/// Sixteen threads take as much as they can; together they get exactly the limit.
#[test]
fn threads_with_take_up_to_get_exactly_the_limit_together() {
    for limit in one_limit_of_each_kind(LIMIT) {
        let limiter = Limiter::new(one_rule(limit), MemoryStore::new());
        let (granted, start) = (AtomicU64::new(0), Barrier::new(16));
        thread::scope(|scope| {
            for most in 1..=16 {
                let (limiter, granted, start) = (&limiter, &granted, &start);
                scope.spawn(move || {
                    let plan = limiter.plan(&request()).with_max_units(most);
                    start.wait();
                    for _ in 0..50 {
                        granted.fetch_add(limiter.store().decide_now(&plan).granted(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(granted.into_inner(), LIMIT, "{limit:?}");
    }
}

// === Helpers ===

fn request() -> Request<'static> {
    Request::new("ride").with_attribute("user", "ann").with_attribute("tenant", "acme")
}

fn one_rule(limit: Limit) -> RuleSet {
    RuleSet::new([Rule::new("ride", limit).with_per(["user"])]).unwrap()
}

/// Four rules of different kinds: the one at index `tight` admits 100, the others 50,000.
fn four_rules(tight: usize) -> RuleSet {
    const PER: [&[&str]; 4] = [&["user"], &["tenant"], &["tenant", "user"], &[]];
    let rules = PER.iter().enumerate().map(|(rule, per)| {
        let limits = limits_of_every_kind(if rule == tight { 100 } else { 50_000 });
        Rule::new(format!("rule-{rule}"), limits[(rule + tight) % 6]).with_per(per.iter().copied())
    });
    RuleSet::new(rules).unwrap()
}

fn assert_consumed_alike(peeked: &tidegate::spi::Verdict, tight: usize, admitted: u64) {
    assert_eq!(admitted, 100);
    for (rule, judged) in peeked.checks().iter().enumerate() {
        let consumed = judged.outcome.limit - judged.outcome.remaining;
        assert_eq!(consumed, 100, "rule {rule}, when rule {tight} is the tight one");
    }
}

fn subject(number: u128) -> Subject {
    // Spread over the shards as a hash would be.
    Subject::from_hash(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

async fn instances(server: &Server, count: usize) -> Vec<RedisStore> {
    let mut stores = Vec::new();
    for _ in 0..count {
        stores.push(server.store_with(long_timeout_options()).await);
    }
    stores
}

fn limiters(rules: &RuleSet, stores: &[RedisStore]) -> Vec<Arc<Limiter<RedisStore>>> {
    stores.iter().map(|store| Arc::new(Limiter::new(rules.clone(), store.clone()))).collect()
}

fn admitted_by_threads(limiter: &Limiter<MemoryStore>, threads: usize, attempts: u64) -> u64 {
    let (tried, admitted, start) = (AtomicU64::new(0), AtomicU64::new(0), Barrier::new(threads));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                start.wait();
                while tried.fetch_add(1, Ordering::Relaxed) < attempts {
                    let decision = limiter.check_now(&request());
                    admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.into_inner()
}

async fn admitted_by_tasks(limiters: &[Arc<Limiter<RedisStore>>], tasks: usize, attempts: u64) -> u64 {
    let (tried, start) = (Arc::new(AtomicU64::new(0)), Arc::new(tokio::sync::Barrier::new(tasks)));
    let mut running = JoinSet::new();
    for limiter in limiters.iter().cycle().take(tasks) {
        let (limiter, tried, start) = (Arc::clone(limiter), Arc::clone(&tried), Arc::clone(&start));
        running.spawn(async move {
            start.wait().await;
            let mut admitted = 0;
            while tried.fetch_add(1, Ordering::Relaxed) < attempts {
                admitted += limiter.check(&request()).await.as_ref().map(Decision::granted).unwrap();
            }
            admitted
        });
    }
    running.join_all().await.into_iter().sum()
}
