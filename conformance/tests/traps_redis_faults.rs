//! Traps 31, 32 and 37 to 39: servers that forget scripts, connections that break in the middle, clocks that disagree,
//! memory that is full. On real servers that are made to do it.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{
    START, count_allowed, decide_all, key_name, left, limits_with_window, on_every_store, one_limit_of_each_kind,
    patient_options, wait_until_reachable,
};
use redis::Connection;
use tidegate::spi::Store;
use tidegate::{Limit, Limiter, OnFailure, Request, Rule, RuleSet, StoreErrorKind, Timestamp};
use tidegate_redis::{RedisOptions, RedisStore};

/// Trap 31: a server that lost its scripts, by a flush, a restart or a failover, answers `NOSCRIPT`. Nobody notices.
#[tokio::test]
async fn a_server_that_forgot_the_scripts_gets_them_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(patient_options()).await, server.connection());
        let mut flush = || redis::cmd("SCRIPT").arg("FLUSH").query::<()>(&mut connection).unwrap();
        for limit in one_limit_of_each_kind(10) {
            let limiter = limiter(limit, &store);
            flush();
            let decision = limiter.check(&Request::new("")).await.unwrap();
            assert_eq!((decision.is_allowed(), decision.remaining()), (true, Some(9)), "{kind:?} {limit:?}");
            flush();
            assert_eq!(limiter.take_up_to(&Request::new(""), 4).await.unwrap().granted(), 4, "{kind:?} {limit:?}");
            flush();
            limiter.refund(decision.into_receipt()).await.unwrap();
            flush();
            limiter.charge(&Request::new("")).await.unwrap();
            flush();
            // The place of the first is not the last one in a leaky bucket, so there it is not given back.
            let spent = if limit.algorithm().as_str() == "leaky_bucket" { 6 } else { 5 };
            assert_eq!(left(&limiter).await, 10 - spent, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 31, inside a pipeline: each plan that met the gap is decided once, and the limit holds over all of them.
#[tokio::test]
async fn a_pipeline_survives_a_script_flush() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(patient_options()).await, server.connection());
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

/// Trap 32: after a timeout the decision was sent again, although the server had carried it out: counted twice.
#[tokio::test]
async fn a_decision_without_an_answer_is_reported_and_not_sent_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let mut connection = server.connection();
        for limit in one_limit_of_each_kind(10) {
            let impatient = server.store_with(RedisOptions::new().with_timeout(Duration::from_millis(200))).await;
            let (patient_options, impatient) =
                (limiter(limit, &server.store_with(patient_options()).await), limiter(limit, &impatient));
            pause_writes(&mut connection);
            let request = Request::new("");
            let ask = || impatient.check(&request);
            for answer in <[_; 3]>::from(tokio::join!(ask(), ask(), ask())) {
                let error = answer.unwrap_err();
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{kind:?} {limit:?}: {error}");
                assert!(error.is_transient() && error.is_possibly_applied(), "{kind:?} {limit:?}: {error:?}");
            }
            go_on(&mut connection);
            // The server still had them in its buffer: three were sent, three are charged, and none a second time.
            assert_eq!(left(&patient_options).await, 7, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 32, when the connection is cut instead. What is asked afterwards finds a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_whose_connection_breaks_is_reported_and_not_sent_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let mut connection = server.connection();
        for limit in one_limit_of_each_kind(10) {
            let cut = Arc::new(limiter(limit, &server.store_with(patient_options()).await));
            pause_writes(&mut connection);
            let asking = Arc::clone(&cut);
            let asked = tokio::spawn(async move { asking.check(&Request::new("")).await });
            while blocked_clients(&mut connection) == 0 {
                thread::yield_now();
            }
            let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut connection).unwrap();
            go_on(&mut connection); // so that a second attempt, if there were one, would succeed
            let error = asked.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{kind:?} {limit:?}: {error}");
            assert!(error.is_transient() && error.is_possibly_applied(), "{kind:?} {limit:?}: {error:?}");
            let remaining = left(&limiter(limit, &server.store_with(patient_options()).await)).await;
            assert!((9..=10).contains(&remaining), "{kind:?} {limit:?}: charged {} times", 10 - remaining);
            wait_until_reachable(&cut).await;
            assert_eq!(count_allowed(&cut, 1, 20).await, remaining, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 37: a client that sent its own time, and was ahead, refilled the buckets of all others. Ours send none: two
/// requests at different times are the same bytes.
#[tokio::test]
async fn the_clock_of_an_instance_does_not_matter() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (one, other, mut connection) = (
            server.store_with(patient_options()).await,
            server.store_with(patient_options()).await,
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

/// Trap 37: time that ran backwards, after a failover or a step of the clock, refilled what was spent; or locked
/// everybody out until the old time had come again.
#[tokio::test]
async fn time_that_runs_backwards_gives_nothing_back_and_locks_nobody_out() {
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

/// Trap 38: a script that was replicated word for word ran again on the replica, by the replica's clock. What reaches
/// ours are values: when the replica takes over, it says what the primary would have said.
#[tokio::test]
async fn a_replica_that_takes_over_knows_what_was_spent() {
    for kind in KINDS {
        let primary = Server::start_with(kind, &["--repl-diskless-sync-delay", "0"]);
        let url = primary.url();
        let replica = Server::start_with(kind, &["--replicaof", "127.0.0.1", url.rsplit(':').next().unwrap()]);
        let (mut to_primary, mut to_replica) = (primary.connection(), replica.connection());
        while !info(&mut to_replica, "replication").contains("master_link_status:up") {
            thread::yield_now();
        }
        let store = primary.store_with(patient_options()).await;
        for limit in one_limit_of_each_kind(10) {
            assert_eq!(count_allowed(&limiter(limit, &store), 3, 2).await, 2);
        }
        // It waits for the last write of its own connection, and so for all before that.
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
        let store = replica.store_with(patient_options()).await;
        for limit in one_limit_of_each_kind(10) {
            assert_eq!(count_allowed(&limiter(limit, &store), 1, 10).await, 4, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 39: a server without memory refuses scripts. That is an error with a name and a remedy, never a silent yes;
/// what was not used can still be given back, since that only makes room.
#[tokio::test]
async fn a_full_server_refuses_with_an_error_and_still_takes_refunds() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(patient_options()).await, server.connection());
        let mut set = |name: &str, value: &str| {
            redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query::<()>(&mut connection).unwrap();
        };
        set("maxmemory-policy", "noeviction");
        for limit in one_limit_of_each_kind(10) {
            let limiter = limiter(limit, &store);
            let receipt = limiter.check(&Request::new("").with_cost(4)).await.unwrap().into_receipt();
            set("maxmemory", "1");
            for plan in [limiter.plan(&Request::new("")), limiter.plan(&Request::new("")).with_max_units(3)] {
                let error = store.decide(&plan).await.unwrap_err();
                assert_eq!(error.kind(), StoreErrorKind::Refused, "{kind:?} {limit:?}: {error}");
                assert!(error.is_transient() && !error.is_possibly_applied(), "{kind:?} {limit:?}: {error:?}");
                assert!(error.to_string().contains("maxmemory"), "says what to do: {error}");
            }
            assert_eq!(left(&limiter).await, 6, "looking is still possible: {kind:?} {limit:?}");
            limiter.refund(receipt).await.unwrap();
            assert_eq!(left(&limiter).await, 10, "{kind:?} {limit:?}");
            limiter.charge(&Request::new("").with_cost(7)).await.unwrap();
            set("maxmemory", "0");
            assert_eq!(count_allowed(&limiter, 1, 10).await, 3, "{kind:?} {limit:?}");
        }
    }
}

// === Helpers ===

fn limiter(limit: Limit, store: &RedisStore) -> Limiter<RedisStore> {
    Limiter::new(RuleSet::new([Rule::new("api", limit).with_on_failure(OnFailure::Closed)]).unwrap(), store.clone())
}

/// Holds every command that may write until [`go_on`].
fn pause_writes(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").query(connection).unwrap();
}

fn go_on(connection: &mut Connection) {
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

/// Trap 39: a server that evicts drops limits without a word. It is said at the start.
#[tokio::test]
async fn an_evicting_server_is_reported_at_startup() {
    for kind in KINDS {
        let evicting = Server::start_with(kind, &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
        let warnings = evicting.store().await.warnings().to_vec();
        assert!(matches!(&warnings[..], [told] if told.contains("allkeys-lru")), "{warnings:?}");
        assert!(Server::start(kind).store().await.warnings().is_empty());
    }
}
