//! A busy process: the lateness of this process is never blamed on the server.

use std::sync::Arc;
use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::one_limit_of_each_kind;
use tidegate::{Limiter, OnFailure, Request, Rule, RuleSet, StoreErrorKind};
use tidegate_redis::{BreakerState, RedisOptions};
use tokio::task::JoinSet;
use tokio::time::Instant;

const BUDGET: Duration = Duration::from_millis(200);
/// Every thread of the runtime is blocked for this long, several times.
const BLOCKED: Duration = Duration::from_millis(600);

/// Tasks block all threads of the runtime for three budgets, while Redis answers at once. Calls are late then, or overloaded, but the
/// server does not count as silent, and no decision is made as if it had failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_runtime_is_not_blamed_on_the_server() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(RedisOptions::new().with_timeout(BUDGET).with_heartbeats(false)).await;
        let rule = Rule::new("api", one_limit_of_each_kind(100)[0]).with_on_failure(OnFailure::Closed);
        let limiter = Arc::new(Limiter::new(RuleSet::new([rule]).unwrap(), store.clone()));
        let (mut calls, mut blockers) = (JoinSet::new(), JoinSet::new());
        for round in 0..4 {
            for _ in 0..3 {
                blockers.spawn(async move {
                    let started = Instant::now();
                    while started.elapsed() < BLOCKED {
                        std::hint::spin_loop();
                    }
                });
            }
            for _ in 0..50 {
                let limiter = Arc::clone(&limiter);
                calls.spawn(async move { limiter.check(&Request::new("")).await });
                tokio::task::yield_now().await;
            }
            while blockers.join_next().await.is_some() {}
            let state = &store.server_states()[0];
            assert_eq!((state.breaker, state.opened), (BreakerState::Closed, 0), "{kind:?}, round {round}: {state:?}");
        }
        let mut allowed = 0;
        for result in calls.join_all().await {
            match result {
                Ok(decision) => allowed += u64::from(decision.is_allowed()),
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Overloaded, "{kind:?}: {error}"),
            }
        }
        assert!(allowed <= 100, "{kind:?}: {allowed}");
        assert_eq!(store.server_states()[0].opened, 0, "{kind:?}");
    }
}
