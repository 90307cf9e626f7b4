//! Traps 31, 32 and 37 to 39: lost scripts, broken connections, clocks that disagree, full memory. The faults are injected into
//! real servers.

use std::sync::Arc;
use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{
    START, count_allowed, decide_all, key_name, left, limits_with_window, long_timeout_options, on_every_store,
    one_limit_of_each_kind, wait_until_reachable,
};
use redis::Connection;
use tidegate::spi::{Check, Gate, Plan, Store, Subject};
use tidegate::{Ending, Limit, Limiter, OnFailure, Request, Rule, RuleSet, StoreErrorKind, Timestamp};
use tidegate_redis::{RedisOptions, RedisStore};

/// Trap 31: a server that lost its scripts by a flush, restart or failover replies `NOSCRIPT`. Callers do not notice it.
#[tokio::test]
async fn scripts_are_reloaded_after_the_server_lost_them() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        let mut flush = || redis::cmd("SCRIPT").arg("FLUSH").query::<()>(&mut connection).unwrap();
        for limit in one_limit_of_each_kind(10) {
            let limiter = limiter(limit, &store);
            flush();
            let mut decision = limiter.check(&Request::new("")).await.unwrap();
            assert_eq!((decision.is_allowed(), decision.remaining()), (true, Some(9)), "{kind:?} {limit:?}");
            flush();
            assert_eq!(limiter.take_up_to(&Request::new(""), 4).await.unwrap().granted(), 4, "{kind:?} {limit:?}");
            flush();
            limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
            flush();
            limiter.charge(&Request::new("")).await.unwrap();
            flush();
            // A leaky bucket refunds only its last slot, and the first one is not the last.
            let spent = if limit.algorithm().as_str() == "leaky_bucket" { 6 } else { 5 };
            assert_eq!(left(&limiter).await, 10 - spent, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 31 in a pipeline: each plan that got `NOSCRIPT` is decided exactly once, and the limit holds for all of them together.
#[tokio::test]
async fn a_pipeline_survives_a_script_flush() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in one_limit_of_each_kind(10) {
            let limiter = limiter(limit, &store);
            let plans: Vec<_> = (0..15).map(|_| limiter.plan(&Request::new(""))).collect();
            let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).unwrap();
            let verdicts = decide_all(&store, &plans).await;
            assert_eq!(verdicts.len(), 15);
            let granted: u64 = verdicts.into_iter().map(|verdict| verdict.unwrap().granted()).sum();
            assert_eq!(granted, 10, "{kind:?} {limit:?}");
            assert_eq!(left(&limiter).await, 0, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 32: after a timeout the decision was sent again although the server had executed it, so it counted twice.
#[tokio::test]
async fn a_decision_without_a_reply_is_an_error_and_is_not_sent_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let mut connection = server.connection();
        for limit in one_limit_of_each_kind(10) {
            let impatient = server.store_with(RedisOptions::new().with_timeout(Duration::from_millis(200))).await;
            let (patient, impatient) =
                (limiter(limit, &server.store_with(long_timeout_options()).await), limiter(limit, &impatient));
            pause_writes(&mut connection);
            let request = Request::new("");
            let ask = || impatient.check(&request);
            for answer in <[_; 3]>::from(tokio::join!(ask(), ask(), ask())) {
                let error = answer.unwrap_err();
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{kind:?} {limit:?}: {error}");
                assert!(error.is_transient() && error.is_possibly_applied(), "{kind:?} {limit:?}: {error:?}");
            }
            resume(&mut connection);
            // The server had the three plans in its buffer, and may have dropped them with the connection: each is charged at
            // most once.
            let left = left(&patient).await;
            assert!((7..=10).contains(&left), "{kind:?} {limit:?}: {left} left");
            let _: () = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
        }
    }
}

/// Trap 32 with a broken connection. Later requests use a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_on_a_broken_connection_is_an_error_and_is_not_sent_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let mut connection = server.connection();
        for limit in one_limit_of_each_kind(10) {
            let cut = Arc::new(limiter(limit, &server.store_with(long_timeout_options()).await));
            pause_writes(&mut connection);
            let limiter_of_task = Arc::clone(&cut);
            let pending = tokio::spawn(async move { limiter_of_task.check(&Request::new("")).await });
            while blocked_clients(&mut connection) == 0 {
                conformance::poll::pause();
            }
            let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut connection).unwrap();
            resume(&mut connection); // so that a second attempt would succeed
            let error = pending.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{kind:?} {limit:?}: {error}");
            assert!(error.is_transient() && error.is_possibly_applied(), "{kind:?} {limit:?}: {error:?}");
            let remaining = left(&limiter(limit, &server.store_with(long_timeout_options()).await)).await;
            assert!((9..=10).contains(&remaining), "{kind:?} {limit:?}: charged {} times", 10 - remaining);
            wait_until_reachable(&cut).await;
            assert_eq!(count_allowed(&cut, 1, 20).await, remaining, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 37: a client sent its own time, which was ahead, and so refilled the buckets for all others. Tidegate sends no time: two
/// requests at different times are the same bytes.
#[tokio::test]
async fn the_clock_of_an_instance_does_not_matter() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (one, other, mut connection) = (
            server.store_with(long_timeout_options()).await,
            server.store_with(long_timeout_options()).await,
            server.connection(),
        );
        for limit in one_limit_of_each_kind(10) {
            let _: () = redis::pipe()
                .cmd("CONFIG")
                .arg("SET")
                .arg("slowlog-log-slower-than")
                .arg(0)
                .cmd("SLOWLOG")
                .arg("RESET")
                .query(&mut connection)
                .unwrap();
            let first = limiter(limit, &one).check(&Request::new("")).await.unwrap();
            let then = server_time(&mut connection);
            let second = limiter(limit, &other).check(&Request::new("")).await.unwrap();
            assert!(first.decided_at().as_micros() <= then, "{kind:?} {limit:?}");
            assert!(then <= second.decided_at().as_micros(), "{kind:?} {limit:?}");

            let slow: Vec<redis::Value> = redis::cmd("SLOWLOG").arg("GET").arg(-1).query(&mut connection).unwrap();
            let mut sent = slow.into_iter().map(|entry| redis::from_redis_value::<Vec<redis::Value>>(entry).unwrap());
            let mut next = || {
                sent.by_ref().find_map(|entry| {
                    let words: Vec<Vec<u8>> = redis::from_redis_value(entry[3].clone()).unwrap();
                    words[0].eq_ignore_ascii_case(b"evalsha").then_some(words)
                })
            };
            let (second, first) = (next().unwrap(), next().unwrap());
            assert_eq!(first, second, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 37: after a backward clock step or a failover, buckets were refilled, or denied everything until the old time was reached
/// again.
#[tokio::test]
async fn a_backward_clock_step_neither_refills_nor_blocks() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, Duration::from_secs(10)) {
            for back in [1, 1_000, 1_500, 2_000, 2_001, 5_000, 3_600_000, 86_400_000] {
                let limiter = fixture.limiter(limit);
                fixture.clock.set(START.plus(Duration::from_secs(1)));
                assert_eq!(count_allowed(&limiter, 10, 1).await, 1);
                fixture.clock.set(Timestamp::from_micros(START.as_micros() + 1_000_000 - back * 1_000));
                assert_eq!(count_allowed(&limiter, 1, 5).await, 0, "{limit:?} after {back} ms back");
                fixture.clock.advance(Duration::from_secs(20) + Duration::from_millis(back.min(2_000)));
                assert_eq!(left(&limiter).await, 10, "{limit:?} after {back} ms back");
            }
        }
    })
    .await;
}

/// Trap 38: the replica executed the replicated script with its own clock. Tidegate's scripts replicate values, so a promoted
/// replica decides as the primary would have.
#[tokio::test]
async fn a_promoted_replica_keeps_the_consumption() {
    for kind in KINDS {
        let primary = Server::start_with(kind, &["--repl-diskless-sync-delay", "0"]);
        let url = primary.url();
        let replica = Server::start_with(kind, &["--replicaof", "127.0.0.1", url.rsplit(':').next().unwrap()]);
        let (mut to_primary, mut to_replica) = (primary.connection(), replica.connection());
        while !info(&mut to_replica, "replication").contains("master_link_status:up") {
            conformance::poll::pause();
        }
        let store = primary.store_with(long_timeout_options()).await;
        for limit in one_limit_of_each_kind(10) {
            assert_eq!(count_allowed(&limiter(limit, &store), 3, 2).await, 2);
        }
        // `WAIT` covers the last write of its own connection, and so all writes before it.
        let _: () = redis::cmd("SET").arg("last").arg(1).query(&mut to_primary).unwrap();
        let reached: u64 = redis::cmd("WAIT").arg(1).arg(60_000).query(&mut to_primary).unwrap();
        assert_eq!(reached, 1, "{kind:?}");
        for limit in one_limit_of_each_kind(10) {
            let plan_of = limiter(limit, &store);
            let name = key_name(plan_of.plan(&Request::new("")).checks()[0].key());
            let state = |connection: &mut Connection| -> (Vec<u8>, i64) {
                redis::pipe().cmd("GET").arg(&name).cmd("PEXPIRETIME").arg(&name).query(connection).unwrap()
            };
            assert_eq!(state(&mut to_primary), state(&mut to_replica), "{kind:?} {limit:?}");
        }
        let _: () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut to_replica).unwrap();
        let store = replica.store_with(long_timeout_options()).await;
        for limit in one_limit_of_each_kind(10) {
            assert_eq!(count_allowed(&limiter(limit, &store), 1, 10).await, 4, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 39: a server that is out of memory refuses scripts. Subjects that it knows are decided exactly all the same; others are
/// marked, so that the limiter decides them in memory. Refunds and charges work too.
#[tokio::test]
async fn a_full_server_decides_the_subjects_that_it_knows_and_writes_no_new_key() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        let mut set = |name: &str, value: &str| {
            redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query::<()>(&mut connection).unwrap();
        };
        set("maxmemory-policy", "noeviction");
        for limit in one_limit_of_each_kind(10) {
            let limiter = limiter(limit, &store);
            let new_gate = Gate::for_rule("new", limit);
            let new = Check::new(&new_gate, Subject::from_hash(9), 1);
            let mut receipt = limiter.check(&Request::new("").with_cost(4)).await.unwrap().take_grant();
            set("maxmemory", "1");
            assert_eq!(count_allowed(&limiter, 1, 1).await, 1, "{kind:?} {limit:?}");
            assert_eq!(limiter.take_up_to(&Request::new(""), 3).await.unwrap().granted(), 3, "{kind:?} {limit:?}");
            assert_eq!(left(&limiter).await, 2, "{kind:?} {limit:?}");
            let known = limiter.plan(&Request::new(""));
            let both = || Plan::new(known.checks().iter().copied().chain([new])).unwrap();
            for (plan, stateless) in [(both(), true), (Plan::new([new]).unwrap(), true), (both().with_peek(), false)] {
                let verdict = store.decide(&plan).await.unwrap();
                let last = verdict.checks().last().unwrap();
                assert_eq!((verdict.granted(), last.stateless), (1, stateless), "{kind:?} {limit:?}");
                assert!(!last.consumed && last.outcome.admitted, "{kind:?} {limit:?}");
                assert!(!verdict.checks()[0].stateless || plan.checks().len() == 1, "{kind:?} {limit:?}");
            }
            assert_eq!(count_allowed(&limiter, 1, 3).await, 1, "exactly the limit: {kind:?} {limit:?}");
            limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
            let refunded = left(&limiter).await;
            limiter.charge(&Request::new("")).await.unwrap();
            set("maxmemory", "0");
            assert_eq!(redis::cmd("DBSIZE").query::<u64>(&mut server.connection()).unwrap(), 1, "{kind:?} {limit:?}");
            assert_eq!(count_allowed(&limiter, 1, 10).await, refunded.saturating_sub(1), "{kind:?} {limit:?}");
            limiter.forget(&Request::new("")).await.unwrap();
        }
    }
}

// === Helpers ===

fn limiter(limit: Limit, store: &RedisStore) -> Limiter<RedisStore> {
    Limiter::new(RuleSet::new([Rule::new("api", limit).with_on_failure(OnFailure::Closed)]).unwrap(), store.clone())
}

/// Pauses every writing command until [`resume`].
fn pause_writes(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").query(connection).unwrap();
}

fn resume(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("UNPAUSE").query(connection).unwrap();
}

fn blocked_clients(connection: &mut Connection) -> u64 {
    let info = info(connection, "clients");
    info.lines().find_map(|line| line.strip_prefix("blocked_clients:")).unwrap().trim().parse().unwrap()
}

fn info(connection: &mut Connection, section: &str) -> String {
    redis::cmd("INFO").arg(section).query(connection).unwrap()
}

fn server_time(connection: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    seconds * 1_000_000 + micros
}

/// Trap 39: a server with an eviction policy silently drops limits. A warning at startup reports it.
#[tokio::test]
async fn an_evicting_server_is_reported_at_startup() {
    for kind in KINDS {
        let evicting = Server::start_with(kind, &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
        let warnings = evicting.store().await.warnings().to_vec();
        assert!(matches!(&warnings[..], [warning] if warning.contains("allkeys-lru")), "{warnings:?}");
        assert!(Server::start(kind).store().await.warnings().is_empty());
    }
}
