//! A cluster with one hanging server: a denial by another server stands and is not an error, and slots on another one are renewed.

use std::time::Duration;

use conformance::server::Kind;
use conformance::suite::{START, key_name, long_timeout_options, one_limit_of_each_kind, retry_while_transient};
use conformance::topology::Cluster;
use tidegate::grants::{GrantError, Retake};
use tidegate::spi::{Adjustment, Plan, PlanMode, Store};
use tidegate::{Limit, Limiter, ManualClock, OnFailure, Request, Rule, RuleSet};
use tidegate_redis::{RedisOptions, RedisStore};

type RedisLimiter = Limiter<RedisStore>;

/// With a timeout of the plan that is shorter than the store's, and with the store's own. A short timeout does not open the circuit
/// breaker, so each call waits for the silent server again.
#[tokio::test]
async fn a_denial_by_one_server_stands_while_another_hangs() {
    let cluster = cluster();
    let quick = RedisOptions::new().with_timeout(Duration::from_secs(2)).with_heartbeats(false);
    for (number, (options, budget)) in
        [(long_timeout_options(), Some(Duration::from_millis(300))), (quick, None)].into_iter().enumerate()
    {
        let store = RedisStore::connect_with(&cluster.url(), options).await.unwrap();
        let (limiter, hanging) = on_two_servers(&cluster, &store, number, one_limit_of_each_kind(5)[0]);
        let plan = || {
            let plan = limiter.plan(&Request::new(""));
            if let Some(budget) = budget { plan.with_timeout(budget) } else { plan }
        };
        // The second server denies, and the store has seen it.
        let all = limiter.plan(&Request::new("").with_cost(5));
        store.apply(&[Adjustment::charge(&all.checks()[1])]).await.outcomes().unwrap();
        assert_eq!(store.decide(&limiter.plan(&Request::new(""))).await.unwrap().granted(), 0);
        cluster.servers[hanging].hang();
        for round in 0..12 {
            let verdict = store.decide(&plan()).await;
            assert_eq!(verdict.map_err(|error| error.to_string()).map(|verdict| verdict.granted()), Ok(0), "{round}");
        }
        for (what, plan) in kinds(plan) {
            let verdict = store.decide(&plan).await;
            assert_eq!(verdict.map_err(|error| error.to_string()).map(|verdict| verdict.granted()), Ok(0), "{what}");
        }
        cluster.servers[hanging].resume();
        for server in &cluster.servers {
            server.wait_for("CLUSTER", "INFO", "cluster_state:ok");
        }
    }
}

/// The error names the failure, and the slots that could be renewed are renewed.
#[tokio::test]
async fn slots_on_one_server_are_renewed_while_another_hangs() {
    const LEASE: Duration = Duration::from_secs(120);
    let (cluster, clock) = (cluster(), ManualClock::starting_at(START));
    let options = RedisOptions::new().with_timeout(Duration::from_secs(2)).with_heartbeats(false);
    let store = RedisStore::connect_with(&cluster.url(), options.with_clock(clock.clone())).await.unwrap();
    let (limiter, hanging) = on_two_servers(&cluster, &store, 0, Limit::concurrency(5, LEASE).unwrap());
    let lease = limiter.check(&Request::new("")).await.unwrap().take_grant();
    cluster.servers[hanging].hang();
    for _ in 0..3 {
        clock.advance(LEASE / 2);
        let renewed = limiter.renew(&lease, Retake::No).await;
        assert!(matches!(&renewed, Err(GrantError::Store(error)) if error.is_transient()), "{renewed:?}");
    }
    cluster.servers[hanging].resume();
    let peek = retry_while_transient(async || limiter.peek(&Request::new("")).await).await;
    let remaining: Vec<u64> = peek.checks().iter().map(|check| check.outcome().remaining).collect();
    assert_eq!(remaining, [5, 4], "only the slot on the server that hung has run out");
}

// === Helpers ===

/// A cluster with a node timeout so long that the other servers do not notice the hang.
fn cluster() -> Cluster {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    for server in &cluster.servers {
        let words = ["SET", "cluster-node-timeout", "600000"];
        let _: () = redis::cmd("CONFIG").arg(&words).query(&mut server.connection()).unwrap();
    }
    cluster
}

/// The other kinds of plans: `take_up_to` several units, and count-each mode.
fn kinds<'r>(plan: impl Fn() -> Plan<'r>) -> [(&'static str, Plan<'r>); 2] {
    [("several units", plan().with_max_units(3)), ("each counts", plan().with_mode(PlanMode::CountEach))]
}

/// A limiter with two limits on two servers, and the number of the server of the first.
fn on_two_servers(cluster: &Cluster, store: &RedisStore, round: usize, limit: Limit) -> (RedisLimiter, usize) {
    for number in 0..100 {
        let names = [format!("first{round}"), format!("second{round}-{number}")];
        let rules = RuleSet::new(names.map(|name| Rule::new(name, limit).with_on_failure(OnFailure::Closed))).unwrap();
        let limiter = Limiter::new(rules, store.clone());
        let mut connection = cluster.servers[0].connection();
        let mut owner = |place: usize| {
            let name = key_name(limiter.plan(&Request::new("")).checks()[place].key());
            cluster.first_owner(redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut connection).unwrap())
        };
        if owner(0) != owner(1) {
            let hanging = owner(0);
            return (limiter, hanging);
        }
    }
    panic!("all limits lie on one server");
}
