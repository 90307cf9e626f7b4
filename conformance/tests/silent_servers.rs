//! Silent servers: the store stops sending calls to a silent server, fails at once, and uses it again as soon as it answers. A
//! hang is a stopped process (SIGSTOP).

use std::sync::Arc;
use std::time::Duration;

use conformance::proxy::{NetworkFault, Proxy};
use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{
    count_allowed, decide_all, key_name, left, long_timeout_options, one_limit_of_each_kind, retry_while_transient,
    until, wait_until_reachable,
};
use conformance::topology::{Cluster, SentinelGroup};
use tidegate::{Limit, Limiter, OnFailure, Request, Rule, RuleSet, StoreErrorKind};
use tidegate_redis::{BreakerState, RedisOptions, RedisStore, ServerState};

type RedisLimiter = Limiter<RedisStore>;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// The server hangs. One budget later it counts as silent: the call under way fails, and all others fail without a byte being sent,
/// until the server continues. What it had received counts once.
#[tokio::test]
async fn a_hanging_server_gets_no_calls_until_it_answers_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(short_timeout_options()).await;
        let limiter = limiter(one_limit_of_each_kind(100)[0], &store);
        assert_eq!(count_allowed(&limiter, 1, 10).await, 10, "{kind:?}");
        server.hang();
        let error = limiter.check(&Request::new("")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{kind:?}: {error}");
        assert!(error.is_possibly_applied(), "{kind:?}: {error:?}");
        assert_eq!(breaker(&store), BreakerState::Open, "{kind:?}");
        for _ in 0..1000 {
            let error = limiter.check(&Request::new("")).await.unwrap_err();
            assert!(!error.is_possibly_applied() && error.is_transient(), "{kind:?}: {error:?}");
        }
        server.resume();
        wait_until_reachable(&limiter).await;
        let spent = 100 - left(&limiter).await;
        assert!((10..=11).contains(&spent), "{kind:?}: {spent}");
        assert_eq!(breaker(&store), BreakerState::Closed, "{kind:?}");
        assert!(store.server_states()[0].opened >= 1, "{kind:?}");
    }
}

/// An error reply is an answer: the next call is sent all the same, and succeeds once the cause is gone.
#[tokio::test]
async fn refused_commands_do_not_open_the_breaker() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let limiter = limiter(one_limit_of_each_kind(100)[0], &store);
        let mut connection = server.connection();
        let mut set = |value: &str| {
            redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(value).query::<()>(&mut connection).unwrap();
        };
        set("1");
        for _ in 0..20 {
            assert_eq!(limiter.check(&Request::new("")).await.unwrap_err().kind(), StoreErrorKind::Refused, "{kind:?}");
        }
        set("0");
        assert_eq!(count_allowed(&limiter, 1, 3).await, 3, "{kind:?}");
        assert_eq!((breaker(&store), store.server_states()[0].opened), (BreakerState::Closed, 0), "{kind:?}");
    }
}

/// While the server answers late, plans wait. When too many wait, those of the subject with the most of them are refused, and were
/// not sent. A subject that is alone keeps its place.
#[tokio::test]
async fn the_subject_with_the_most_waiting_plans_is_refused_first() {
    let server = Server::start(Kind::Redis);
    let store = server.store_with(long_timeout_options().with_queue_wait(LONG).with_max_waiting(4)).await;
    let rule = Rule::new("api", one_limit_of_each_kind(20)[0]).with_per(["user"]).with_on_failure(OnFailure::Local);
    let limiter = Arc::new(Limiter::new(RuleSet::new([rule]).unwrap(), store.clone()));
    let mut connection = server.connection();
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").query(&mut connection).unwrap();
    let ask = |user: &'static str| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move { limiter.check(&request_of(user)).await })
    };
    let state = || store.server_states().remove(0);
    // How many are under way at once depends on how fast the server answered so far.
    let mut waiting = Vec::new();
    while state().waiting < 4 {
        waiting.push(ask("flood"));
        let counted = |state: ServerState| state.in_flight + state.waiting;
        until(|| counted(state()) == waiting.len()).await;
    }
    let asked = waiting.len() as u64;
    // The fifth of the flood is refused, whatever the policy says.
    let error = ask("flood").await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Overloaded, false), "{error}");
    assert!(error.is_crowded() && state().overloaded == 1, "{error:?} {:?}", state());
    // The bystander takes the place of one of the flood.
    let bystander = ask("bystander");
    until(|| state().overloaded == 2).await;
    assert_eq!((state().waiting, breaker(&store)), (4, BreakerState::Closed));
    let _: () = redis::cmd("CLIENT").arg("UNPAUSE").query(&mut connection).unwrap();
    assert!(bystander.await.unwrap().unwrap().is_allowed());
    let mut allowed = 0;
    for waiting in waiting {
        match waiting.await.unwrap() {
            Ok(decision) => allowed += u64::from(decision.is_allowed() && decision.degraded().is_none()),
            Err(error) => assert!(error.is_crowded(), "{error}"),
        }
    }
    let left = limiter.peek(&request_of("flood")).await.unwrap().remaining();
    assert_eq!((allowed, left), (asked - 1, Some(20 - allowed)), "what was refused consumed nothing");
    assert_eq!((state().in_flight, state().waiting), (0, 0));
}

/// Plans that wait for longer than they may while the server answers others are overloaded, not failed: the breaker stays closed, and
/// they consume nothing. A batch has at most 16 sliding logs, so that most of these plans have to wait.
#[tokio::test(flavor = "multi_thread")]
async fn plans_that_wait_too_long_are_overloaded() {
    let server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port(), b"EVALSHA\r\n").await;
    let options = long_timeout_options().with_queue_wait(Duration::from_millis(50));
    let store = RedisStore::connect_with(&format!("redis://127.0.0.1:{}", proxy.port()), options).await.unwrap();
    let limit = Limit::sliding_log(10, Duration::from_secs(3600)).unwrap();
    let rule = Rule::new("api", limit).with_per(["user"]).with_on_failure(OnFailure::Closed);
    let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store.clone());
    proxy.inject(NetworkFault::DelayReplies(Duration::from_millis(200))).await;
    let users: Vec<String> = (0..200).map(|number| format!("user-{number}")).collect();
    let plans: Vec<_> = users.iter().map(|user| limiter.plan(&request_of(user))).collect();
    let results = decide_all(&store, &plans).await;
    let mut overloaded = 0;
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Overloaded, false), "{error}");
        assert!(!error.is_crowded(), "each is alone with its key");
        overloaded += 1;
    }
    assert!(overloaded > 0 && store.server_states()[0].overloaded == overloaded, "{overloaded}");
    assert_eq!((breaker(&store), store.server_states()[0].opened), (BreakerState::Closed, 0));
    let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
    assert_eq!(keys, 200 - overloaded, "what was overloaded was not sent");
}

/// A store is opened before its server is up. Until then every decision fails at once; then it works by itself.
#[tokio::test]
async fn a_store_can_be_opened_before_its_server_is_up() {
    for kind in KINDS {
        let socket = std::env::temp_dir().join(format!("tidegate-{}-{kind:?}-early.sock", std::process::id()));
        let socket = socket.to_str().unwrap();
        let store = RedisStore::open(&format!("redis+unix://{socket}"), long_timeout_options()).unwrap();
        let limiter = limiter(one_limit_of_each_kind(5)[0], &store);
        let error = store.check_servers().await.unwrap_err();
        assert!(error.kind() == StoreErrorKind::Unavailable && error.to_string().contains("is it up?"), "{error}");
        for _ in 0..100 {
            let error = limiter.check(&Request::new("")).await.unwrap_err();
            assert!(error.is_transient() && !error.is_possibly_applied(), "{kind:?}: {error:?}");
        }
        let _server = Server::start_with(kind, &["--unixsocket", socket]);
        assert!(retry_while_transient(async || limiter.check(&Request::new("")).await).await.is_allowed());
        assert!(store.check_servers().await.unwrap().is_empty(), "{kind:?}");
        assert_eq!(count_allowed(&limiter, 1, 9).await, 4, "{kind:?}");
        let _ = std::fs::remove_file(socket);
    }
}

/// A mistyped host name is reported as such, not as a broken connection.
#[tokio::test]
async fn an_unresolvable_host_name_is_reported() {
    let error =
        RedisStore::connect_with("redis://:secret@no-such-host.invalid", long_timeout_options()).await.unwrap_err();
    assert!(error.to_string().contains("the host name of the store cannot be resolved"), "{error}");
    assert!(error.is_transient() && !error.is_possibly_applied(), "{error:?}");
    let sentinels = "redis+sentinel://no-such-host.invalid,nor-this.invalid/limits";
    let error = RedisStore::connect_with(sentinels, long_timeout_options()).await.unwrap_err();
    assert!(error.to_string().contains("the host name of a sentinel cannot be resolved"), "{error}");
}

/// Trap 35, without sentinels: the server is demoted and its host name now resolves to another server. Commands on old connections
/// are refused, so the store reconnects, to the new primary.
#[tokio::test]
async fn a_changed_dns_record_is_followed() {
    for kind in KINDS {
        let path = |name: &str| std::env::temp_dir().join(format!("tidegate-{}-{kind:?}-{name}", std::process::id()));
        let (name, other) = (path("name"), path("other"));
        let old = Server::start_with(kind, &["--unixsocket", name.to_str().unwrap()]);
        let new = Server::start_with(kind, &["--unixsocket", other.to_str().unwrap()]);
        let store = RedisStore::connect_with(&format!("redis+unix://{}", name.display()), long_timeout_options())
            .await
            .unwrap();
        let limiter = limiter(one_limit_of_each_kind(5)[0], &store);
        assert_eq!(count_allowed(&limiter, 1, 2).await, 2, "{kind:?}");
        std::fs::rename(&other, &name).unwrap();
        let mut follow = redis::cmd("REPLICAOF");
        follow.arg("127.0.0.1").arg(new.port()).query::<()>(&mut old.connection()).unwrap();
        let decision = retry_while_transient(async || limiter.check(&Request::new("")).await).await;
        assert_eq!(decision.remaining(), Some(4), "{kind:?}: the new server starts afresh");
        assert_eq!(breaker(&store), BreakerState::Closed, "{kind:?}: refusals are answers");
        let _ = std::fs::remove_file(name);
    }
}

/// The primary hangs and its connections stay open. The sentinels promote the replica, and the store finds it. When the old primary
/// continues, it is a replica and gets no calls.
#[tokio::test]
async fn a_hanging_primary_behind_sentinels_is_replaced() {
    for kind in KINDS {
        let group = SentinelGroup::start(kind, &[], &[]);
        group.wait_until_discovered();
        let store = RedisStore::connect_with(&group.url(), short_timeout_options()).await.unwrap();
        let limiter = limiter(one_limit_of_each_kind(100)[0], &store);
        assert_eq!(count_allowed(&limiter, 10, 5).await, 5, "{kind:?}");
        wait_for_replica(&group.primary);
        group.primary.hang();
        // A sentinel hangs with it.
        group.sentinels[0].hang();
        let decision = retry_while_transient(async || limiter.check(&Request::new("")).await).await;
        assert_eq!(decision.remaining(), Some(49), "{kind:?}: what was sent to the old one is lost with it");
        assert_eq!(store.server_states()[0].address, format!("127.0.0.1:{}", group.replica.port()), "{kind:?}");
        group.primary.resume();
        group.sentinels[0].resume();
        wait_until_reachable(&limiter).await;
        assert_eq!(count_allowed(&limiter, 1, 60).await, 49, "{kind:?}");
    }
}

/// One primary of a cluster hangs. Slots of other servers are unaffected; its own slots fail at once until a replica takes over.
#[tokio::test]
async fn a_hanging_cluster_primary_does_not_affect_the_others() {
    for kind in KINDS {
        let cluster = Cluster::start(kind, 3, true);
        for server in &cluster.servers {
            let mut alone = redis::cmd("CONFIG");
            alone.arg("SET").arg("cluster-require-full-coverage").arg("no");
            alone.query::<()>(&mut server.connection()).unwrap();
        }
        // A generous timeout, so that a busy machine does not look like silence.
        let options = short_timeout_options().with_timeout(Duration::from_secs(3));
        let store = RedisStore::connect_with(&cluster.url(), options).await.unwrap();
        let rule =
            Rule::new("api", one_limit_of_each_kind(10)[0]).with_per(["user"]).with_on_failure(OnFailure::Closed);
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store.clone());
        let owner = |user: &str| {
            let name = key_name(limiter.plan(&request_of(user)).checks()[0].key());
            let slot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut cluster.servers[0].connection());
            cluster.first_owner(slot.unwrap())
        };
        let users: Vec<String> = (0..60).map(|number| format!("user-{number}")).collect();
        let (lost, kept): (Vec<_>, Vec<_>) = users.iter().partition(|user| owner(user) == 1);
        assert!(lost.len() > 5 && kept.len() > 20);
        cluster.servers[1].hang();
        for user in &kept {
            assert!(limiter.check(&request_of(user)).await.unwrap().is_allowed(), "{kind:?} {user}");
        }
        let mut waited = 0;
        for _ in 0..1000 {
            if let Err(error) = limiter.check(&request_of(lost[0])).await {
                waited += u64::from(error.is_possibly_applied());
            }
            assert!(limiter.check(&request_of(kept[0])).await.is_ok(), "{kind:?}");
        }
        assert!(waited <= 10, "{kind:?}: {waited} calls waited for a server that was known to hang");
        // The first subject has used up its limit by now.
        for user in &lost[1..] {
            let decision = retry_while_transient(async || limiter.check(&request_of(user)).await).await;
            assert!(decision.is_allowed(), "{kind:?} {user}");
        }
        cluster.servers[1].resume();
        assert!(limiter.check(&request_of(kept[1])).await.unwrap().is_allowed());
    }
}

/// A cluster that lost a slot refuses every command, and works again as soon as the slot is back.
#[tokio::test]
async fn a_cluster_that_is_down_refuses_and_recovers() {
    for kind in KINDS {
        let server = Server::start_alone_in_cluster(kind);
        let store = server.store_with(long_timeout_options()).await;
        let limiter = limiter(one_limit_of_each_kind(10)[0], &store);
        assert_eq!(count_allowed(&limiter, 1, 2).await, 2, "{kind:?}");
        let mut connection = server.connection();
        let name = key_name(limiter.plan(&Request::new("")).checks()[0].key());
        let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut connection).unwrap();
        let other = (slot + 1) % 16_384;
        let mut tell = |word: &str| redis::cmd("CLUSTER").arg(word).arg(other).query::<()>(&mut connection).unwrap();
        tell("DELSLOTS");
        server.wait_for("CLUSTER", "INFO", "cluster_state:fail");
        for _ in 0..20 {
            let error = limiter.check(&Request::new("")).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.is_possibly_applied()),
                (StoreErrorKind::Refused, false),
                "{kind:?}: {error}"
            );
        }
        tell("ADDSLOTS");
        server.wait_for("CLUSTER", "INFO", "cluster_state:ok");
        assert_eq!(count_allowed(&limiter, 1, 20).await, 8, "{kind:?}");
        assert_eq!(breaker(&store), BreakerState::Closed, "{kind:?}");
    }
}

// === Helpers ===

fn limiter(limit: Limit, store: &RedisStore) -> RedisLimiter {
    let rule = Rule::new("api", limit).with_on_failure(OnFailure::Closed);
    Limiter::new(RuleSet::new([rule]).unwrap(), store.clone())
}

/// Timeouts as short as a busy machine allows.
fn short_timeout_options() -> RedisOptions {
    RedisOptions::new().with_timeout(Duration::from_millis(500)).with_heartbeats(false)
}

fn breaker(store: &RedisStore) -> BreakerState {
    store.server_states()[0].breaker
}

fn request_of(user: &str) -> Request<'_> {
    Request::new("").with_attribute("user", user)
}

/// Waits until the replica has caught up.
fn wait_for_replica(primary: &Server) {
    let mut connection = primary.connection();
    let _: () = redis::cmd("SET").arg("last").arg(1).query(&mut connection).unwrap();
    let reached: u64 = redis::cmd("WAIT").arg(1).arg(60_000).query(&mut connection).unwrap();
    assert_eq!(reached, 1);
}
