//! Plans that are decided together while something goes wrong: the connection dies, a value is unreadable, replies are missing, the
//! scripts are flushed, a slot moves, the rules change. Nothing passes beyond its limit, nothing hangs, and nothing is charged twice.

mod shortening_proxy;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use conformance::server::{KINDS, Server};
use conformance::suite::{
    MAX_WAIT, key_name, limits_of_every_kind, long_timeout_options, one_limit_of_each_kind, wait_until_reachable,
};
use conformance::topology::Cluster;
use redis::Connection;
use shortening_proxy::ShorteningProxy;
use tidegate::{Decision, Limit, Limiter, OnFailure, Request, Rule, RuleMode, RuleSet, StoreError, StoreErrorKind};
use tidegate_redis::RedisStore;
use tokio::task::{JoinHandle, JoinSet, block_in_place};
use tokio::time::timeout;

type RedisLimiter = Limiter<RedisStore>;
type CallResult = Result<Decision, StoreError>;

const LIMIT: u64 = 10;
const CALLS: usize = 60;

/// The connection dies while some calls are at the server and others wait to be sent. Each is answered; none is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_dies_with_calls_under_way_charges_none_twice() {
    for kind in KINDS {
        let server = Server::start(kind);
        let mut connection = server.connection();
        for limit in one_limit_of_each_kind(1_000) {
            let limiter = limiter([closed("api", limit)], &server.store_with(long_timeout_options()).await);
            pause_writes(&mut connection);
            let calls = start_calls(&limiter, &["ann"], CALLS);
            wait_for_paused_command(&mut connection).await;
            let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut connection).unwrap();
            resume(&mut connection);
            let results = finish(calls).await;
            let allowed = count(&results, |result| result.as_ref().is_ok_and(Decision::is_allowed));
            let possibly = count(&results, |result| result.as_ref().is_err_and(StoreError::is_possibly_applied));
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{kind:?} {limit:?}: {error}");
            }
            assert!(possibly > 0, "{kind:?} {limit:?}: {results:?}");
            wait_until_reachable(&limiter).await;
            let spent = 1_000 - left(&limiter, "ann").await;
            assert!(
                (allowed..=allowed + possibly).contains(&spent),
                "{kind:?} {limit:?}: {allowed}, {possibly}, {spent}"
            );
        }
    }
}

/// One subject of many has a value that no version wrote. Its own calls fail; all others are decided, exactly.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_value_fails_its_own_plan_alone() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in limits_of_every_kind(LIMIT) {
            let limiter = limiter([closed("api", limit)], &store);
            set_unreadable(&limiter, 0, "bob", &mut connection);
            let users = ["ann", "bob", "eve"];
            pause_writes(&mut connection);
            let calls = start_calls(&limiter, &users, 3 * CALLS);
            wait_for_paused_command(&mut connection).await;
            resume(&mut connection);
            for (number, result) in finish(calls).await.into_iter().enumerate() {
                let (user, case) = (users[number % 3], format!("{kind:?} {limit:?}: {result:?}"));
                match result {
                    Err(error) => assert_eq!((user, error.kind()), ("bob", StoreErrorKind::Unreadable), "{case}"),
                    Ok(_) => assert_ne!(user, "bob", "{case}"),
                }
            }
            for user in ["ann", "eve"] {
                assert_eq!(left(&limiter, user).await, 0, "{kind:?} {limit:?} {user}");
            }
            limiter.forget(&request_of("bob")).await.unwrap();
        }
    }
}

/// A shadow rule never affects a request, even if its value is unreadable: the enforced limit of the same plan holds.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_value_of_a_shadow_rule_does_not_open_the_enforced_one() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for (limit, shadow) in limits_of_every_kind(LIMIT)
            .into_iter()
            .flat_map(|limit| limits_of_every_kind(LIMIT).into_iter().map(move |shadow| (limit, shadow)))
        {
            let name = format!("{}-{}", limit.algorithm(), shadow.algorithm());
            let shadow = Rule::new(format!("shadow-{name}"), shadow).with_per(["user"]).with_mode(RuleMode::Shadow);
            // The enforced rule leaves its failure policy at the default.
            let limiter = limiter([Rule::new(name, limit).with_per(["user"]), shadow], &store);
            set_unreadable(&limiter, 1, "ann", &mut connection);
            let results = finish(start_calls(&limiter, &["ann"], CALLS)).await;
            let allowed = count(&results, |result| result.as_ref().is_ok_and(Decision::is_allowed));
            let degraded =
                count(&results, |result| result.as_ref().is_ok_and(|decision| decision.degraded().is_some()));
            assert_eq!((allowed, degraded), (LIMIT, 0), "{kind:?} {limit:?}: {results:?}");
        }
    }
}

/// A broken server or proxy answers fewer plans than it was asked. The others are errors that say "possibly applied"; nothing is sent
/// again, and nothing hangs.
#[tokio::test(flavor = "multi_thread")]
async fn missing_replies_are_errors_and_their_plans_are_not_sent_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let mut connection = server.connection();
        for limit in one_limit_of_each_kind(LIMIT) {
            let proxy = ShorteningProxy::start(server.port()).await;
            let url = format!("redis://127.0.0.1:{}", proxy.port());
            let store = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap();
            let limiter = limiter([closed("api", limit)], &store);
            let users: Vec<String> = (0..CALLS).map(|number| format!("user-{number}")).collect();
            let users: Vec<&str> = users.iter().map(String::as_str).collect();
            pause_writes(&mut connection);
            let calls = start_calls(&limiter, &users, CALLS);
            wait_for_paused_command(&mut connection).await;
            proxy.set_shortening(true);
            resume(&mut connection);
            let results = finish(calls).await;
            proxy.set_shortening(false);
            assert!(proxy.shortened() > 0, "{kind:?} {limit:?}: no batch was answered");
            let failed = count(&results, Result::is_err);
            assert!(failed >= proxy.shortened(), "{kind:?} {limit:?}: {results:?}");
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                assert_eq!(error.kind(), StoreErrorKind::Unexpected, "{kind:?} {limit:?}: {error}");
                assert!(error.is_possibly_applied(), "{kind:?} {limit:?}: {error:?}");
            }
            for user in users {
                assert_eq!(left(&limiter, user).await, LIMIT - 1, "{kind:?} {limit:?} {user}");
                limiter.forget(&request_of(user)).await.unwrap();
            }
        }
    }
}

/// The scripts are flushed while many calls are under way, and again while others are. Nobody notices.
#[tokio::test(flavor = "multi_thread")]
async fn flushed_scripts_do_not_change_what_passes() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in one_limit_of_each_kind(LIMIT) {
            // Every call reaches the server.
            let limiter = limiter([closed("api", limit).with_denial_cache(false)], &store);
            let (users, mut results) = (["ann", "bob", "eve"], Vec::new());
            for _ in 0..10 {
                pause_writes(&mut connection);
                let calls = start_calls(&limiter, &users, CALLS);
                wait_for_paused_command(&mut connection).await;
                let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).unwrap();
                resume(&mut connection);
                results.extend(finish(calls).await);
            }
            let allowed = count(&results, |result| result.as_ref().unwrap().is_allowed());
            assert_eq!(allowed, 3 * LIMIT, "{kind:?} {limit:?}");
            for user in users {
                assert_eq!(left(&limiter, user).await, 0, "{kind:?} {limit:?} {user}");
            }
        }
        assert!(server.errors("NOSCRIPT") > 0, "{kind:?}: no call met a flushed script");
    }
}

/// A slot moves to another server and back while many calls for it are under way, of plans with one key and with two.
#[tokio::test(flavor = "multi_thread")]
async fn a_moving_slot_does_not_change_what_passes() {
    for kind in KINDS {
        let cluster = Cluster::start(kind, 2, false);
        let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
        let limit = |amount| one_limit_of_each_kind(amount)[0];
        let one = closed("one", limit(100)).with_action("one");
        let two = ["first", "second"].map(|name| closed(name, limit(100)).with_action("two"));
        let limiter = limiter([one].into_iter().chain(two), &store);
        let name = key_name(limiter.plan(&action_of("one")).checks()[0].key());
        let slot: u16 =
            redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut cluster.servers[0].connection()).unwrap();
        let moved = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        for action in ["one", "two"].into_iter().cycle().take(32) {
            let (limiter, moved) = (Arc::clone(&limiter), Arc::clone(&moved));
            running.spawn(async move {
                let mut counts = (0, 0, 0);
                while !moved.load(Ordering::SeqCst) || counts.1 == 0 {
                    match limiter.check(&action_of(action)).await {
                        Ok(decision) if decision.is_allowed() => counts.0 += 1,
                        Ok(_) => counts.1 += 1,
                        Err(error) => {
                            assert!(error.is_transient(), "{error}");
                            counts.2 += u64::from(error.is_possibly_applied());
                        }
                    }
                }
                (action, counts)
            });
        }
        let home = cluster.first_owner(slot);
        for (source, target) in [(home, 1 - home), (1 - home, home), (home, 1 - home)] {
            block_in_place(|| {
                cluster.start_slot_move(slot, source, target);
                cluster.move_keys(slot, source, target);
                cluster.finish_slot_move(slot, target);
            });
        }
        moved.store(true, Ordering::SeqCst);
        let counts = timeout(MAX_WAIT, running.join_all()).await.expect("every call is answered");
        for action in ["one", "two"] {
            let of_action = counts.iter().filter(|(of, _)| *of == action).map(|(_, counts)| counts);
            let (allowed, possibly) = of_action.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.2));
            assert!(
                allowed <= 100 && allowed + possibly >= 100,
                "{kind:?} {action}: {allowed}, {possibly} without an answer"
            );
        }
    }
}

/// The rules are replaced while calls wait for the server: those under the old rules and those under the new ones share one state.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_while_the_rules_change_share_one_state() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for (old, new) in one_limit_of_each_kind(LIMIT).into_iter().zip(one_limit_of_each_kind(2 * LIMIT)) {
            let name = old.algorithm().as_str();
            let before = limiter([closed(name, old)], &store);
            pause_writes(&mut connection);
            let calls = start_calls(&before, &["ann"], CALLS);
            // All of them: a call under the old rules that is decided after one under the new rules may raise what is left again.
            wait_until_submitted(&store, CALLS).await;
            let after = Arc::new(before.with_rules(RuleSet::new([closed(name, new)]).unwrap()));
            drop(before);
            let later = start_calls(&after, &["ann"], CALLS);
            resume(&mut connection);
            let results: Vec<_> = finish(calls).await.into_iter().chain(finish(later).await).collect();
            let allowed = count(&results, |result| result.as_ref().unwrap().is_allowed());
            assert_eq!((allowed, left(&after, "ann").await), (2 * LIMIT, 0), "{kind:?} {old:?}");
        }
    }
}

// === Helpers ===

fn limiter(rules: impl IntoIterator<Item = Rule>, store: &RedisStore) -> Arc<RedisLimiter> {
    Arc::new(Limiter::new(RuleSet::new(rules).unwrap(), store.clone()))
}

/// A rule by user that turns a store failure into an error.
fn closed(name: &str, limit: Limit) -> Rule {
    Rule::new(name, limit).with_per(["user"]).with_on_failure(OnFailure::Closed)
}

fn request_of(user: &str) -> Request<'_> {
    Request::new("").with_attribute("user", user)
}

fn action_of(action: &str) -> Request<'_> {
    Request::new(action).with_attribute("user", "ann")
}

/// Starts calls of these users in turn, each in a task of its own.
fn start_calls(limiter: &Arc<RedisLimiter>, users: &[&str], calls: usize) -> Vec<JoinHandle<CallResult>> {
    let start = |user: &&str| {
        let (limiter, user) = (Arc::clone(limiter), (*user).to_owned());
        tokio::spawn(async move { limiter.check(&request_of(&user)).await })
    };
    users.iter().cycle().take(calls).map(start).collect()
}

/// The results of all calls. None may hang.
async fn finish(calls: Vec<JoinHandle<CallResult>>) -> Vec<CallResult> {
    let mut results = Vec::new();
    for call in calls {
        results.push(timeout(MAX_WAIT, call).await.expect("every call is answered").unwrap());
    }
    results
}

fn count(results: &[CallResult], counts: impl Fn(&CallResult) -> bool) -> u64 {
    results.iter().filter(|result| counts(result)).count() as u64
}

async fn left(limiter: &RedisLimiter, user: &str) -> u64 {
    limiter.peek(&request_of(user)).await.unwrap().remaining().unwrap()
}

/// Writes an unreadable value under a key of `user`.
fn set_unreadable(limiter: &RedisLimiter, check: usize, user: &str, connection: &mut Connection) {
    let name = key_name(limiter.plan(&request_of(user)).checks()[check].key());
    let _: () = redis::cmd("SET").arg(name).arg("newer").query(connection).unwrap();
}

/// Pauses every writing command until [`resume`].
fn pause_writes(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").query(connection).unwrap();
}

fn resume(connection: &mut Connection) {
    let _: () = redis::cmd("CLIENT").arg("UNPAUSE").query(connection).unwrap();
}

/// Waits until this many calls are at the server or wait to be sent.
async fn wait_until_submitted(store: &RedisStore, calls: usize) {
    let submitted = || store.server_states().iter().map(|server| server.in_flight + server.waiting).sum::<usize>();
    for _ in 0..100_000_000 {
        if submitted() == calls {
            return;
        }
        conformance::poll::pause_task().await;
    }
    panic!("{} of {calls} calls are submitted", submitted());
}

/// Waits until a paused server holds a command.
async fn wait_for_paused_command(connection: &mut Connection) {
    for _ in 0..1_000_000 {
        conformance::poll::pause_task().await;
        let clients: String = redis::cmd("INFO").arg("clients").query(connection).unwrap();
        if !clients.contains("blocked_clients:0") {
            return;
        }
    }
    panic!("no command reaches the server");
}
