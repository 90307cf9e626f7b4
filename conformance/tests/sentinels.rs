//! A real primary with a replica and three sentinels: the store follows a failover, survives the loss of a sentinel, and counts
//! nothing twice.

use conformance::server::{KINDS, Kind, Server, free_port};
use conformance::suite::{
    count_allowed, limits_of_every_kind, long_timeout_options, one_limit_of_each_kind, retry_while_transient,
};
use conformance::test_ca::TestCa;
use conformance::topology::{PRIMARY_NAME, SentinelGroup};
use tempfile::TempDir;
use tidegate::{Limit, Limiter, OnFailure, Request, Rule, RuleSet, StoreErrorKind};
use tidegate_redis::RedisStore;

/// The primary dies. Until the failover, requests give transient errors; then the store finds the new primary, which has the
/// state.
#[tokio::test]
async fn the_store_follows_a_failover_and_keeps_the_consumption() {
    for kind in KINDS {
        let mut group = SentinelGroup::start(kind, &[], &[]);
        group.wait_until_discovered();
        let store = RedisStore::connect_with(&group.url(), long_timeout_options()).await.unwrap();
        for limit in limits_of_every_kind(10) {
            assert_eq!(count_allowed(&limiter(limit, &store), 3, 2).await, 2, "{kind:?} {limit:?}");
        }
        wait_for_replica(&group.primary);
        group.primary.kill();
        // A sentinel dies too: two are enough for the failover, and one is enough to find the primary.
        group.sentinels[0].kill();
        for limit in limits_of_every_kind(10) {
            let limiter = limiter(limit, &store);
            let decision = retry_while_transient(async || limiter.check(&Request::new("")).await).await;
            assert_eq!(decision.remaining(), Some(3), "{kind:?} {limit:?}");
            assert_eq!(count_allowed(&limiter, 1, 9).await, 3, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 35: the old primary is demoted and its connections stay up. What it refuses as `READONLY` was not carried out, so it
/// is sent to the new primary within the same request.
#[tokio::test]
async fn a_demoted_primary_is_replaced_within_the_same_request() {
    for kind in KINDS {
        let group = SentinelGroup::start(kind, &[], &[]);
        let store = RedisStore::connect_with(&group.url(), long_timeout_options()).await.unwrap();
        let limiter = limiter(one_limit_of_each_kind(10)[0], &store);
        assert_eq!(count_allowed(&limiter, 1, 4).await, 4, "{kind:?}");
        wait_for_replica(&group.primary);
        // Demoted by hand, with new sentinels that know it at once: the running ones would take their time.
        let (old, new) = (&group.primary, &group.replica);
        for sentinel in &group.sentinels {
            let mut connection = sentinel.connection();
            let mut tell = |words: &[&str]| redis::cmd("SENTINEL").arg(words).query::<()>(&mut connection).unwrap();
            tell(&["REMOVE", PRIMARY_NAME]);
            tell(&["MONITOR", PRIMARY_NAME, "127.0.0.1", &new.port().to_string(), "2"]);
        }
        let follow = |server: &Server, words: [&str; 2]| {
            redis::cmd("REPLICAOF").arg(&words[..]).query::<()>(&mut server.connection()).unwrap();
        };
        follow(new, ["NO", "ONE"]);
        follow(old, ["127.0.0.1", &new.port().to_string()]);
        let decision = limiter.check(&Request::new("")).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.remaining()), (true, Some(5)), "{kind:?}");
        assert_eq!(count_allowed(&limiter, 1, 9).await, 5, "{kind:?}");
    }
}

/// Sentinels and data servers may have different passwords.
#[tokio::test]
async fn sentinels_and_servers_may_have_different_passwords() {
    let servers = ["--requirepass", "pw-of-servers", "--masterauth", "pw-of-servers"];
    let auth = format!("sentinel auth-pass {PRIMARY_NAME} pw-of-servers");
    let group = SentinelGroup::start(Kind::Redis, &servers, &["requirepass pw-of-sentinels", &auth]);
    let with_password = group.url().replace("://", "://:pw-of-servers@");
    let store =
        RedisStore::connect_with(&format!("{with_password}?sentinel_password=pw-of-sentinels"), long_timeout_options())
            .await
            .unwrap();
    assert_eq!(count_allowed(&limiter(one_limit_of_each_kind(3)[0], &store), 1, 5).await, 3);

    let bare = format!("{}?sentinel_password=pw-of-sentinels", group.url());
    for (url, remedy) in [
        (with_password.clone(), "add ?sentinel_password="),
        (format!("{with_password}?sentinel_password=wrong"), "a sentinel rejects"),
        (bare, "put it into the URL"),
    ] {
        let error = RedisStore::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(remedy) && !error.to_string().contains("pw-of"), "{error}");
    }
}

/// The store connects to sentinels and primary over TLS and checks their certificates.
#[tokio::test]
async fn sentinels_and_their_primary_work_over_tls() {
    // The installed Valkey is built without TLS.
    let kind = Kind::Redis;
    let folder = TempDir::new().unwrap();
    let test_ca = TestCa::new(folder.path());
    let primary = test_ca.start(kind, "127.0.0.1", &["--tls-replication", "yes"]);
    let address = primary.address("127.0.0.1");
    let port = free_port();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let settings = [
        format!("tls-port {port}"),
        "tls-replication yes".to_owned(),
        "tls-auth-clients no".to_owned(),
        format!("tls-cert-file {}", file("cert.pem")),
        format!("tls-key-file {}", file("key.pem")),
        format!("tls-ca-cert-file {}", test_ca.ca()),
        format!("sentinel monitor {PRIMARY_NAME} {} 1", address.replace(':', " ")),
    ];
    let sentinel = Server::start_sentinel(kind, &settings);
    let url = format!("rediss+sentinel://127.0.0.1:{port}/{PRIMARY_NAME}?ca={}", test_ca.ca());
    let store = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap();
    assert_eq!(count_allowed(&limiter(one_limit_of_each_kind(3)[0], &store), 1, 5).await, 3);
    assert_eq!(store.server_states()[0].address, address, "at its TLS port");
    // Neither certificate is accepted without its certificate authority.
    let other = TestCa::new(&folder.path().join("other"));
    let error =
        RedisStore::connect_with(&url.replace(&test_ca.ca(), &other.ca()), long_timeout_options()).await.unwrap_err();
    assert!(error.kind() == StoreErrorKind::Denied && error.to_string().contains("not trusted"), "{kind:?}: {error}");
    drop(sentinel);
}

/// An unknown primary name and unreachable sentinels give clear errors.
#[tokio::test]
async fn an_unknown_primary_name_and_unreachable_sentinels_are_reported() {
    let mut group = SentinelGroup::start(Kind::Redis, &[], &[]);
    let wrong = group.url().replace(PRIMARY_NAME, "unheard-of");
    let error = RedisStore::connect(&wrong).await.unwrap_err();
    assert!(error.to_string().contains("know no primary of this name"), "{error}");
    let url = group.url();
    for sentinel in &mut group.sentinels {
        sentinel.kill();
    }
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("no sentinel answers"), "{error}");
    // A server where a sentinel should be.
    let server = group.primary.url().replace("redis://", "redis+sentinel://");
    let error = RedisStore::connect(&format!("{server}/{PRIMARY_NAME}")).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("no sentinel at"), "{error}");
}

/// Dead sentinels matter only when the primary is unknown.
#[tokio::test]
async fn a_connected_store_needs_no_sentinel() {
    let mut group = SentinelGroup::start(Kind::Redis, &[], &[]);
    let store = RedisStore::connect_with(&group.url(), long_timeout_options()).await.unwrap();
    for sentinel in &mut group.sentinels {
        sentinel.kill();
    }
    assert_eq!(count_allowed(&limiter(one_limit_of_each_kind(3)[0], &store), 1, 5).await, 3);
}

// === Helpers ===

fn limiter(limit: Limit, store: &RedisStore) -> Limiter<RedisStore> {
    Limiter::new(RuleSet::new([Rule::new("api", limit).with_on_failure(OnFailure::Closed)]).unwrap(), store.clone())
}

/// Waits until the replica has caught up.
fn wait_for_replica(primary: &Server) {
    let mut connection = primary.connection();
    let _: () = redis::cmd("SET").arg("last").arg(1).query(&mut connection).unwrap();
    let reached: u64 = redis::cmd("WAIT").arg(1).arg(60_000).query(&mut connection).unwrap();
    assert_eq!(reached, 1);
}
