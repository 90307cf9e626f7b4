//! A real cluster: resharding under load, dead primaries, plans across slots. Every count is exact, since the limits refill too
//! slowly to matter.

mod reservations;
mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use conformance::server::{Kind, Server};
use conformance::suite::{
    count_allowed, decide_all, key_name, long_timeout_options, one_limit_of_each_kind, retry_while_transient,
    wait_until_reachable,
};
use conformance::topology::Cluster;
use redis::Connection;
use tidegate::spi::{Adjustment, Key, KeyStem, PARTITIONS, Store, Subject};
use tidegate::{Ending, Limit, Limiter, OnFailure, Request, Rule, RuleSet, StoreErrorKind};
use tidegate_redis::RedisStore;
use tokio::task::JoinSet;

use slots::{redirections, slot_from_server, slot_of, wait_for_replicas};

type RedisLimiter = Limiter<RedisStore>;

/// More than the eight tasks can consume.
const AMOUNT: u64 = 60_000;
const MAX_REQUESTS_PER_TASK: u64 = 2_000;

/// The client computes the same slot as the server.
#[tokio::test]
async fn every_partition_maps_to_the_slot_that_the_server_computes() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
    let stem = KeyStem::for_rule("r", &one_limit_of_each_kind(1)[0], "");
    let keys: Vec<Key<'_>> =
        (0..PARTITIONS).map(|partition| Key::new(&stem, partition, Subject::from_hash(partition.into()))).collect();
    let before = redirections(&cluster);
    for keys in keys.chunks(64) {
        store.forget(keys).await.unwrap();
    }
    assert_eq!(redirections(&cluster), before, "a call was redirected");
}

/// The slot of a busy key moves from one primary to another while eight tasks consume from it. Calls meet `ASK` and then
/// `MOVED`; each request is counted once.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_under_load_loses_and_double_counts_nothing() {
    move_under_load(Kind::Redis, &one_limit_of_each_kind(AMOUNT)).await;
}

/// The same on Valkey, whose nodes exchange slot changes differently.
#[tokio::test(flavor = "multi_thread")]
async fn a_valkey_slot_that_moves_under_load_loses_and_double_counts_nothing() {
    move_under_load(Kind::Valkey, &one_limit_of_each_kind(AMOUNT)[..2]).await;
}

async fn move_under_load(kind: Kind, limits: &[Limit]) {
    let cluster = Cluster::start(kind, 3, false);
    for limit in limits.iter().copied() {
        let rules = RuleSet::new([Rule::new("api", limit).with_per(["user"])]).unwrap();
        let limiter = Arc::new(Limiter::new(
            rules,
            RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap(),
        ));
        let slot = slot_of(&cluster, &limiter, "ann");
        let (source, target) = (cluster.first_owner(slot), (cluster.first_owner(slot) + 1) % 3);
        let (admitted, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut running = JoinSet::new();
        for _ in 0..8 {
            let (limiter, admitted, stop) = (Arc::clone(&limiter), Arc::clone(&admitted), Arc::clone(&stop));
            running.spawn(async move {
                for _ in 0..MAX_REQUESTS_PER_TASK {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    assert!(limiter.check(&request_of("ann")).await.unwrap().is_allowed(), "the limit is not reached");
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let before = (cluster.servers[source].errors("ASK"), cluster.servers[source].errors("MOVED"));
        cluster.start_slot_move(slot, source, target);
        assert_eq!(count_allowed_of(&limiter, "ann", 1, 1).await, 1, "{limit:?}");
        cluster.move_keys(slot, source, target);
        assert_eq!(count_allowed_of(&limiter, "ann", 1, 1).await, 1, "{limit:?}");
        assert!(cluster.servers[source].errors("ASK") > before.0, "{limit:?}: nobody met ASK");
        cluster.finish_slot_move(slot, target);
        assert_eq!(count_allowed_of(&limiter, "ann", 1, 1).await, 1, "{limit:?}");
        assert!(cluster.servers[source].errors("MOVED") > before.1, "{limit:?}: nobody met MOVED");
        stop.store(true, Ordering::Relaxed);
        running.join_all().await;
        let rest = limiter.take_up_to(&request_of("ann"), AMOUNT).await.unwrap().granted();
        assert_eq!(admitted.load(Ordering::Relaxed) + 3 + rest, AMOUNT, "{limit:?}");

        cluster.start_slot_move(slot, target, source);
        cluster.move_keys(slot, target, source);
        cluster.finish_slot_move(slot, source);
        assert_eq!(count_allowed_of(&limiter, "ann", 1, 3).await, 0, "{limit:?}: moved back, and still spent");
        limiter.forget(&request_of("ann")).await.unwrap();
    }
}

/// While a slot moves, a script with several of its keys may find only some of them and is refused (`TRYAGAIN`). The store then
/// decides key by key, with the same counts.
#[tokio::test]
async fn a_plan_of_several_keys_is_decided_while_its_slot_moves() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let limits = one_limit_of_each_kind(30);
    let rules = limits.iter().enumerate().map(|(i, limit)| Rule::new(format!("r{i}"), *limit).with_per(["user"]));
    let limiter = Limiter::new(
        RuleSet::new(rules).unwrap(),
        RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap(),
    );
    let slot = slot_of(&cluster, &limiter, "ann");
    let (source, target) = (cluster.first_owner(slot), (cluster.first_owner(slot) + 1) % 3);
    assert_eq!(count_allowed_of(&limiter, "ann", 2, 2).await, 2);
    cluster.start_slot_move(slot, source, target);
    // Half of ann's keys have moved; bob has no keys yet.
    let names: Vec<_> = limiter.plan(&request_of("ann")).checks().iter().map(|check| key_name(check.key())).collect();
    cluster.migrate(source, target, &names[..2]);
    let before = cluster.servers[source].errors("TRYAGAIN") + cluster.servers[target].errors("TRYAGAIN");
    for user in ["ann", "bob"] {
        let spent = if user == "ann" { 4 } else { 0 };
        assert_eq!(count_allowed_of(&limiter, user, 5, 2).await, 2, "{user}");
        assert_eq!(remaining(&limiter, user).await, [20 - spent; 5], "{user}");
        let mut receipt = limiter.check(&request_of(user).with_cost(3)).await.unwrap().take_grant();
        limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
        limiter.charge(&request_of(user)).await.unwrap();
        assert_eq!(remaining(&limiter, user).await, [19 - spent; 5], "{user}");
        assert_eq!(limiter.take_up_to(&request_of(user), 7).await.unwrap().granted(), 7, "{user}");
        assert_eq!(count_allowed_of(&limiter, user, 20, 1).await, 0, "{user}");
        assert_eq!(remaining(&limiter, user).await, [12 - spent; 5], "{user}: a denial takes nothing");
    }
    assert!(cluster.servers[source].errors("TRYAGAIN") + cluster.servers[target].errors("TRYAGAIN") > before);
    let plans: Vec<_> = (0..3).map(|_| limiter.plan(&request_of("bob"))).collect();
    for verdict in decide_all(limiter.store(), &plans).await {
        assert_eq!(verdict.unwrap().granted(), 1);
    }
    cluster.move_keys(slot, source, target);
    cluster.finish_slot_move(slot, target);
    assert_eq!(
        (count_allowed_of(&limiter, "ann", 1, 20).await, count_allowed_of(&limiter, "bob", 1, 20).await),
        (8, 9)
    );
    limiter.forget(&request_of("ann")).await.unwrap();
    assert_eq!(remaining(&limiter, "ann").await, [30; 5]);
}

/// A primary dies. Until its replica is promoted, its slots give transient errors and the others work. Then the store finds the
/// new primary, which has the state.
#[tokio::test]
async fn the_store_finds_a_promoted_replica_which_keeps_the_consumption() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let mut cluster = Cluster::start(kind, 3, true);
        let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
        let rule =
            Rule::new("api", one_limit_of_each_kind(10)[0]).with_per(["user"]).with_on_failure(OnFailure::Closed);
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store);
        let users: Vec<String> = (0..30).map(|number| format!("user-{number}")).collect();
        for user in &users {
            assert_eq!(count_allowed_of(&limiter, user, 3, 2).await, 2, "{kind:?} {user}");
        }
        wait_for_replicas(&cluster, &limiter, &users);
        cluster.servers[1].kill();
        let lost = |user: &str| cluster.first_owner(slot_from_server(&cluster.servers[0], &limiter, user)) == 1;
        assert!(users.iter().any(|user| lost(user)) && users.iter().any(|user| !lost(user)));
        for user in &users {
            let decision = retry_while_transient(async || limiter.check(&request_of(user)).await).await;
            // A retried request may have been counted by the dead primary only.
            assert_eq!(decision.remaining(), Some(3), "{kind:?} {user}");
            assert_eq!(count_allowed_of(&limiter, user, 1, 9).await, 3, "{kind:?} {user}");
        }
    }
}

/// A plan across slots is decided slot by slot. Under concurrency never more pass than the strictest limit allows; afterwards
/// nothing of the denied requests is still consumed.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_across_slots_never_over_admits_and_refunds_all_denied_requests() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let [bucket, _, fixed, log, sliding] = one_limit_of_each_kind(60);
    for (number, wide) in [bucket, fixed, log, sliding].into_iter().enumerate() {
        let narrow = one_limit_of_each_kind(20)[[0, 2, 3, 4][3 - number]];
        let rules = RuleSet::new([
            Rule::new(format!("wide{number}"), wide),
            Rule::new(format!("user{number}"), wide).with_per(["user"]),
            Rule::new(format!("narrow{number}"), narrow),
        ])
        .unwrap();
        let mut running = JoinSet::new();
        for task in 0..8 {
            let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
            let limiter = Limiter::new(rules.clone(), store);
            running.spawn(async move {
                let mut admitted = 0;
                for _ in 0..25 {
                    let decision = limiter.check(&request_of(if task % 2 == 0 { "ann" } else { "bob" })).await.unwrap();
                    assert!(decision.is_allowed() || decision.retry_after().is_some());
                    admitted += u64::from(decision.is_allowed());
                }
                admitted
            });
        }
        let admitted: u64 = running.join_all().await.into_iter().sum();
        let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
        let limiter = Limiter::new(rules, store);
        assert!(admitted <= 20, "{wide:?}: {admitted}");
        // A request denied because of another's temporary consumption passes when repeated.
        let later = count_allowed_of(&limiter, "ann", 1, 40).await;
        assert_eq!(admitted + later, 20, "{wide:?}");
        let [wide_left, ann_left, narrow_left] = remaining(&limiter, "ann").await[..] else { panic!("three checks") };
        let bob_left = remaining(&limiter, "bob").await[1];
        assert_eq!((wide_left, narrow_left), (40, 0), "{wide:?}");
        assert_eq!(ann_left + bob_left, 100, "{wide:?}");
    }
}

/// Refunds, charges and `forget` reach every slot, and so do batches.
#[tokio::test]
async fn corrections_reach_every_slot() {
    let cluster = Cluster::start(Kind::Valkey, 3, false);
    let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
    let rules = one_limit_of_each_kind(10).into_iter().enumerate().map(|(i, limit)| Rule::new(format!("r{i}"), limit));
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store.clone());
    let mut receipt = limiter.check(&request_of("").with_cost(4)).await.unwrap().take_grant();
    assert_eq!(remaining(&limiter, "").await, [6; 5]);
    limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
    limiter.charge(&request_of("").with_cost(3)).await.unwrap();
    assert_eq!(remaining(&limiter, "").await, [7; 5]);
    store.spawn_apply(&limiter.plan(&request_of("")).checks().iter().map(Adjustment::charge).collect::<Vec<_>>());
    for _ in 0..100_000 {
        if remaining(&limiter, "").await == [6; 5] {
            break;
        }
    }
    let each = Limiter::new(
        RuleSet::new([Rule::new("each", one_limit_of_each_kind(3)[0]).with_per(["user"])]).unwrap(),
        store.clone(),
    );
    let users: Vec<_> = (0..40).map(|number| format!("u{}", number % 10)).collect();
    let mut plans: Vec<_> = users.iter().map(|user| each.plan(&request_of(user))).collect();
    plans.extend((0..8).map(|_| limiter.plan(&request_of(""))));
    let granted: Vec<u64> =
        decide_all(&store, &plans).await.into_iter().map(|verdict| verdict.unwrap().granted()).collect();
    assert_eq!(granted[..40].iter().sum::<u64>(), 30, "ten users, three each");
    assert_eq!(granted[40..].iter().sum::<u64>(), 6, "and six across all slots");
    limiter.forget(&request_of("")).await.unwrap();
    assert_eq!(count_allowed(&limiter, 10, 2).await, 1);
}

/// The caller cancels in the middle of a plan across slots. Everything consumed so far is refunded, except by the call in flight,
/// which counts as it does on a single server.
#[tokio::test]
async fn a_cancelled_plan_across_slots_is_refunded() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let (limiter, [_, mut second]) = on_two_servers(&cluster).await;
    pause_writes(&mut second);
    let limiter_of_task = Arc::clone(&limiter);
    let pending = tokio::spawn(async move { limiter_of_task.check(&request_of("")).await });
    wait_for_paused_command(&mut second).await;
    pending.abort();
    assert!(pending.await.unwrap_err().is_cancelled());
    resume(&mut second);
    let mut left = Vec::new();
    for _ in 0..100_000 {
        left = remaining(&limiter, "").await;
        if left[0] == 5 {
            break;
        }
    }
    assert_eq!(left, [5, 4]);
}

/// The second slot denies, and the refund to the first fails. The denial stands, and the units stay consumed: a failed refund
/// never grants more than the limit.
#[tokio::test]
async fn an_undelivered_refund_leaves_the_units_consumed() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let (limiter, [mut first, mut second]) = on_two_servers(&cluster).await;
    let empty = limiter.plan(&request_of("").with_cost(5));
    limiter.store().apply(&[Adjustment::charge(&empty.checks()[1])]).await.outcomes().unwrap();
    pause_writes(&mut second);
    let limiter_of_task = Arc::clone(&limiter);
    let pending = tokio::spawn(async move { limiter_of_task.check(&request_of("")).await });
    wait_for_paused_command(&mut second).await;
    pause_writes(&mut first);
    resume(&mut second);
    wait_for_paused_command(&mut first).await;
    kill_clients(&mut first);
    resume(&mut first);
    let decision = pending.await.unwrap().unwrap();
    assert!(!decision.is_allowed() && decision.retry_after().is_some());
    wait_until_reachable(&limiter).await;
    assert_eq!(remaining(&limiter, "").await, [4, 0]);
}

/// A single-server URL for a cluster, or the reverse, is refused at startup.
#[tokio::test]
async fn a_url_of_the_wrong_kind_is_refused_at_startup() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let (single, member) = (Server::start(kind), Server::start_in_cluster(kind));
        let as_cluster = single.url().replace("redis://", "redis+cluster://");
        for (url, remedy) in [(as_cluster, "write redis://"), (member.plain_url(), "write redis+cluster://")] {
            let error = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{kind:?}: {error}");
            assert!(error.to_string().contains(remedy), "{kind:?}: {error}");
        }
        let empty = member.plain_url().replace("redis://", "redis+cluster://");
        let error = RedisStore::connect_with(&empty, long_timeout_options()).await.unwrap_err();
        assert!(error.kind() == StoreErrorKind::Refused && error.is_transient(), "{kind:?}: {error}");
    }
}

// === Helpers ===

/// A limiter with two limits of five on two servers, and connections to these.
async fn on_two_servers(cluster: &Cluster) -> (Arc<RedisLimiter>, [Connection; 2]) {
    let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
    for number in 0..100 {
        let rules =
            ["first".to_owned(), format!("second{number}")].map(|name| Rule::new(name, one_limit_of_each_kind(5)[0]));
        let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store.clone());
        let mut connection = cluster.servers[0].connection();
        let mut owner = |place: usize| {
            let name = key_name(limiter.plan(&request_of("")).checks()[place].key());
            cluster.first_owner(redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut connection).unwrap())
        };
        let owners = [owner(0), owner(1)];
        if owners[0] != owners[1] {
            return (Arc::new(limiter), owners.map(|owner| cluster.servers[owner].connection()));
        }
    }
    panic!("all limits are on one server");
}

/// Pauses every writing command until [`resume`].
fn pause_writes(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").query(connection).unwrap();
}

fn resume(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("UNPAUSE").query(connection).unwrap();
}

/// Closes all other connections.
fn kill_clients(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(connection).unwrap();
}

/// Yields until a paused server holds a command.
async fn wait_for_paused_command(connection: &mut Connection) {
    for _ in 0..1_000_000 {
        conformance::poll::pause_task().await;
        let clients: String = redis::cmd("INFO").arg("clients").query(connection).unwrap();
        if clients.contains("blocked_clients:1") {
            return;
        }
    }
    panic!("no command reaches the server");
}

fn request_of(user: &str) -> Request<'_> {
    Request::new("").with_attribute("user", user)
}

async fn count_allowed_of(limiter: &RedisLimiter, user: &str, cost: u64, times: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..times {
        passed += u64::from(limiter.check(&request_of(user).with_cost(cost)).await.unwrap().is_allowed());
    }
    passed
}

async fn remaining(limiter: &RedisLimiter, user: &str) -> Vec<u64> {
    let peeked = limiter.peek(&request_of(user)).await.unwrap();
    peeked.checks().iter().map(|check| check.outcome().remaining).collect()
}
