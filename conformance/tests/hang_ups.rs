//! Callers that go away: a plan that was not sent is withdrawn and consumes nothing; one that was sent stays consumed, and its keys
//! are counted.

use std::sync::Arc;
use std::time::Duration;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{left, long_timeout_options, one_limit_of_each_kind, retry_while_transient, until};
use redis::Connection;
use tidegate::rules::AnonymousBounds;
use tidegate::{Limit, Limiter, OnFailure, Request, Rule, RuleSet};
use tidegate_redis::{BreakerState, RedisOptions, RedisStore};
use tokio::task::JoinHandle;

type RedisLimiter = Limiter<RedisStore>;

/// Callers hang up while the server does not answer: those whose plan is under way and those whose plan waits. Exactly the plans
/// that were sent are consumed.
#[tokio::test]
async fn a_withdrawn_plan_consumes_nothing_and_a_sent_one_stays_consumed() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let sent = || store.server_states()[0].batched_plans;
        for limit in one_limit_of_each_kind(100) {
            let limiter = limiter(Rule::new("api", limit), &store);
            let mut connection = server.connection();
            pause_writes(&mut connection);
            let sent_before = sent();
            let mut callers = vec![ask(&limiter, "")];
            until(|| state(&store).0 == 1).await;
            callers.extend((0..10).map(|_| ask(&limiter, "")));
            until(|| state(&store).0 + state(&store).1 == 11).await;
            hang_up(callers).await;
            assert_eq!(state(&store).1, 0, "{kind:?} {limit:?}: withdrawn plans do not wait");
            unpause(&mut connection);
            until(|| state(&store) == (0, 0)).await;
            let consumed = sent() - sent_before;
            assert_eq!(left(&limiter).await, 100 - consumed, "{kind:?} {limit:?}");
            limiter.forget(&Request::new("")).await.unwrap();
        }
        let state = &store.server_states()[0];
        assert_eq!((state.breaker, state.opened), (BreakerState::Closed, 0), "{kind:?}");
    }
}

/// Callers hang up while the server does not answer. Nobody else knows the owners of the slots that they are granted then, so the
/// limiter releases them.
#[tokio::test]
async fn slots_of_callers_that_hang_up_are_released() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let slots = Limit::concurrency(100, Duration::from_secs(3600)).unwrap();
        let limiter = limiter(Rule::new("exports", slots), &store);
        let mut connection = server.connection();
        pause_writes(&mut connection);
        let mut callers = vec![ask(&limiter, "")];
        until(|| state(&store).0 == 1).await;
        callers.extend((0..10).map(|_| ask(&limiter, "")));
        until(|| state(&store).0 + state(&store).1 == 11).await;
        hang_up(callers).await;
        unpause(&mut connection);
        until(|| state(&store) == (0, 0)).await;
        assert!(store.server_states()[0].batched_plans > 0, "{kind:?}: some were sent");
        while left(&limiter).await < 100 {
            conformance::poll::pause_task().await;
        }
    }
}

/// Unauthenticated subjects whose callers hang up before the reply count towards the bound of their rule, like any other.
#[tokio::test]
async fn keys_of_callers_that_hang_up_are_counted() {
    for kind in KINDS {
        let server = Server::start(kind);
        for limit in one_limit_of_each_kind(5) {
            let store = server.store_with(long_timeout_options()).await;
            let rule = Rule::new("public", limit).with_per(["ip"]).with_anonymous(AnonymousBounds::new(1000));
            let limiter = limiter(rule, &store);
            let mut connection = server.connection();
            let _: () = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
            pause_writes(&mut connection);
            let callers = vec![ask(&limiter, "192.0.2.1")];
            until(|| state(&store).0 == 1).await;
            hang_up(callers).await;
            unpause(&mut connection);
            until(|| state(&store) == (0, 0)).await;
            let stats = store.anonymous_stats();
            assert_eq!(stats.iter().map(|stats| stats.created).sum::<u64>(), 1, "{kind:?} {limit:?}: {stats:?}");
        }
    }
}

/// Callers that hang up all the time, after every time from none to longer than a reply takes, have no effect on others.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_hang_up_do_not_affect_others() {
    let server = Server::start(Kind::Redis);
    let store = server.store_with(RedisOptions::new().with_heartbeats(false)).await;
    let limiter = limiter(Rule::new("api", one_limit_of_each_kind(60_000)[0]), &store);
    for round in 0..400_u64 {
        let callers: Vec<_> = (0..20).map(|_| ask(&limiter, "")).collect();
        for _ in 0..round % 20 {
            tokio::task::yield_now().await;
        }
        hang_up(callers).await;
        assert_eq!(store.server_states()[0].opened, 0, "round {round}");
    }
    until(|| state(&store) == (0, 0)).await;
    assert!(limiter.check(&Request::new("")).await.unwrap().is_allowed());
}

/// The runtime that a store was opened in is shut down, and the task of its connection with it. Nobody waits for the task: callers
/// in another runtime get an error at once, or an answer from a new connection.
#[test]
fn a_store_outlives_the_runtime_that_it_was_opened_in() {
    let server = Server::start(Kind::Redis);
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = runtime();
    let limiter = first.block_on(async {
        let store = server.store_with(long_timeout_options()).await;
        let limiter = limiter(Rule::new("api", one_limit_of_each_kind(10)[0]), &store);
        assert!(limiter.check(&Request::new("")).await.unwrap().is_allowed());
        limiter
    });
    let mut connection = server.connection();
    pause_writes(&mut connection);
    let waiting = first.spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.check(&Request::new("")).await }
    });
    first.block_on(until(|| state(limiter.store()).0 == 1));
    first.shutdown_timeout(Duration::from_secs(10));
    drop(waiting);
    unpause(&mut connection);
    runtime().block_on(async {
        let decision = retry_while_transient(async || limiter.check(&Request::new("")).await).await;
        assert!(decision.is_allowed() && decision.degraded().is_none());
    });
}

// === Helpers ===

fn limiter(rule: Rule, store: &RedisStore) -> Arc<RedisLimiter> {
    let rules = RuleSet::new([rule.with_on_failure(OnFailure::Closed)]).unwrap();
    Arc::new(Limiter::new(rules, store.clone()))
}

/// Starts a call for an address.
fn ask(limiter: &Arc<RedisLimiter>, ip: &'static str) -> JoinHandle<()> {
    let limiter = Arc::clone(limiter);
    tokio::spawn(async move { drop(limiter.check(&Request::new("").with_attribute("ip", ip)).await) })
}

async fn hang_up(callers: Vec<JoinHandle<()>>) {
    for caller in callers {
        caller.abort();
        let _ = caller.await;
    }
}

/// The plans under way, and those that wait.
fn state(store: &RedisStore) -> (usize, usize) {
    let state = &store.server_states()[0];
    (state.in_flight, state.waiting)
}

fn pause_writes(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").query(connection).unwrap();
}

fn unpause(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("UNPAUSE").query(connection).unwrap();
}
