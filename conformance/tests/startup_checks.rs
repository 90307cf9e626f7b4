//! The checks at startup of a store: certificates, permissions, and server settings that hurt limits.

use std::path::PathBuf;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{count_allowed, left, long_timeout_options, one_limit_of_each_kind};
use conformance::test_ca::TestCa;
use conformance::topology::SentinelGroup;
use tempfile::TempDir;
use tidegate::{Ending, Limit, Limiter, Request, Rule, RuleSet, StoreErrorKind};
use tidegate_redis::RedisStore;

/// A certificate is accepted only if the given CA signed it for the given host.
#[tokio::test]
async fn a_certificate_is_checked_against_the_ca_and_the_host() {
    let folder = TempDir::new().unwrap();
    let [right, wrong] = ["right", "wrong"].map(|name| TestCa::new(&folder.path().join(name)));
    let server = right.start(Kind::Redis, "localhost", &["--requirepass", "pw"]);
    let url = |host: &str, ca: &str| format!("rediss://:pw@{}/2?ca={ca}", server.address(host));
    let store = RedisStore::connect_with(&url("localhost", &right.ca()), long_timeout_options()).await.unwrap();
    assert_eq!(count_allowed(&limiter(one_limit_of_each_kind(3)[0], &store), 1, 5).await, 3);
    let mut connection = server.server.connection();
    let keys: (u64, u64) =
        redis::pipe().cmd("DBSIZE").cmd("SELECT").arg(2).ignore().cmd("DBSIZE").query(&mut connection).unwrap();
    assert_eq!(keys, (0, 1), "the database of the URL is used");

    let system = format!("rediss://:pw@{}", server.address("localhost"));
    for url in [url("localhost", &wrong.ca()), url("127.0.0.1", &right.ca()), system] {
        let error = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap_err();
        assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Denied, false), "{url}: {error}");
        assert!(error.to_string().contains("certificate of the store is not trusted"), "{url}: {error}");
    }
}

/// TLS to a plain port, and files without a certificate.
#[tokio::test]
async fn impossible_tls_settings_are_reported() {
    let folder = TempDir::new().unwrap();
    let test_ca = TestCa::new(folder.path());
    let server = Server::start(Kind::Redis);
    let plain = server.url().replace("redis://", "rediss://");
    // The server takes the TLS handshake for the start of a command and waits for its end.
    let error = RedisStore::connect(&format!("{plain}?ca={}", test_ca.ca())).await.unwrap_err();
    assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Unavailable, false), "{error}");
    let empty: PathBuf = folder.path().join("empty.pem");
    std::fs::write(&empty, "nothing").unwrap();
    for (ca, why) in [(empty.to_str().unwrap(), "no certificate in it"), ("/does/not/exist", "CA file")] {
        let error = RedisStore::connect_with(&format!("{plain}?ca={ca}"), long_timeout_options()).await.unwrap_err();
        assert!(error.to_string().contains(why) && !error.is_transient(), "{error}");
    }
}

/// The store connects to each server of a cluster on its TLS port.
#[tokio::test]
async fn a_cluster_works_over_tls() {
    let folder = TempDir::new().unwrap();
    let test_ca = TestCa::new(folder.path());
    let bus = conformance::server::free_port().to_string();
    let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus];
    let server = test_ca.start(Kind::Redis, "localhost", &cluster);
    let mut connection = server.server.connection();
    let _: () = redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).query(&mut connection).unwrap();
    server.server.wait_for("CLUSTER", "INFO", "cluster_state:ok");
    let url = format!("rediss+cluster://{}?ca={}", server.address("localhost"), test_ca.ca());
    let store = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap();
    let rules = one_limit_of_each_kind(3).into_iter().enumerate().map(|(i, limit)| Rule::new(format!("r{i}"), limit));
    assert_eq!(count_allowed(&Limiter::new(RuleSet::new(rules).unwrap(), store), 1, 5).await, 3);
}

/// Trap 41: the error names exactly the permissions that the store needs; none can be left out. A missing one is reported at
/// startup, with the ACL line to use.
#[tokio::test]
async fn the_permissions_in_the_error_are_sufficient_and_necessary() {
    for kind in KINDS {
        let server = Server::start(kind);
        let url = server.url().replace("redis://", "redis://gate:key@");
        allow(&server, &["~*", "+info"]);
        let error = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap_err();
        assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Denied, false), "{kind:?}: {error}");
        let named = named(&error.to_string(), "; behind");
        allow(&server, &words(&named));
        let store = RedisStore::connect_with(&url, long_timeout_options()).await.unwrap();
        for limit in one_limit_of_each_kind(5) {
            do_everything(&limiter(limit, &store), kind).await;
            limiter(limit, &store).ping().await.unwrap();
        }
        let third = format!("{url}/3");
        let error = RedisStore::connect_with(&third, long_timeout_options()).await.unwrap_err();
        assert!(error.kind() == StoreErrorKind::Denied && error.to_string().contains("+select"), "{kind:?}: {error}");
        allow(&server, &[&words(&named)[..], &["+select"]].concat());
        RedisStore::connect_with(&third, long_timeout_options()).await.unwrap();
        for without in &named {
            let fewer: Vec<String> = named.iter().filter(|word| *word != without).cloned().collect();
            allow(&server, &words(&fewer));
            let opened = RedisStore::connect_with(&url, long_timeout_options()).await;
            let error = opened.expect_err(&format!("{kind:?} is content without {without}"));
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{kind:?} without {without}: {error}");
            assert!(
                error.to_string().contains("+evalsha +evalsha_ro +script|load"),
                "{kind:?} without {without}: {error}"
            );
        }
    }
}

/// Clusters and sentinels need a few more, which the same error names.
#[tokio::test]
async fn the_permissions_for_clusters_and_sentinels_are_sufficient_and_necessary() {
    let server = Server::start_alone_in_cluster(Kind::Redis);
    let group = SentinelGroup::start(Kind::Redis, &[], &[]);
    allow(&server, &["~*"]);
    let with_user = |url: String| url.replace("://", "://gate:key@");
    let error = RedisStore::connect_with(&with_user(server.url()), long_timeout_options()).await.unwrap_err();
    let all = named(&error.to_string(), "no end");
    for (server, url, needed) in [(&server, server.url(), "+cluster|slots"), (&group.primary, group.url(), "+role")] {
        allow(server, &words(&all));
        let store = RedisStore::connect_with(&with_user(url.clone()), long_timeout_options()).await.unwrap();
        do_everything(&limiter(one_limit_of_each_kind(5)[0], &store), Kind::Redis).await;
        let fewer: Vec<String> = all.iter().filter(|word| *word != needed).cloned().collect();
        allow(server, &words(&fewer));
        let error = RedisStore::connect_with(&with_user(url), long_timeout_options()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Denied, "without {needed}: {error}");
    }
}

/// A replica is refused at startup, not at the first request.
#[tokio::test]
async fn a_replica_is_refused_at_startup() {
    for kind in KINDS {
        let primary = Server::start(kind);
        let replica = Server::start_with(kind, &["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        let error = RedisStore::connect_with(&replica.url(), long_timeout_options()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{kind:?}: {error}");
        assert!(error.to_string().contains("connect to its primary"), "{kind:?}: {error}");
    }
}

/// Each harmful setting is reported with its remedy; a well configured server gives no warning.
#[tokio::test]
async fn harmful_server_settings_are_reported_at_startup() {
    for kind in KINDS {
        for (arguments, expected) in [
            (&["--maxmemory-policy", "allkeys-lru"][..], &["set it to noeviction"][..]),
            (&["--maxmemory", "0"], &["set maxmemory"]),
            (&["--appendonly", "yes", "--appendfsync", "always"], &["appendfsync always"]),
            (&["--appendonly", "yes", "--appendfsync", "everysec"], &[]),
            (&["--save", "3600 1"], &["set save to"]),
            (&[], &[]),
        ] {
            let server = Server::start_with(kind, arguments);
            let warnings = server.store_with(long_timeout_options()).await.warnings().to_vec();
            assert_eq!(warnings.len(), expected.len(), "{kind:?} {arguments:?}: {warnings:?}");
            for (warning, text) in warnings.iter().zip(expected) {
                assert!(warning.contains(text), "{kind:?} {arguments:?}: {warning}");
            }
        }
    }
}

/// In a cluster each warning names its server.
#[tokio::test]
async fn warnings_of_a_cluster_name_the_server() {
    let server = Server::start_alone_in_cluster(Kind::Redis);
    let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0").query(&mut server.connection()).unwrap();
    let warnings = server.store_with(long_timeout_options()).await.warnings().to_vec();
    assert!(warnings.len() == 1 && warnings[0].starts_with(&format!("127.0.0.1:{}: ", server.port())), "{warnings:?}");
}

// === Helpers ===

fn limiter(limit: Limit, store: &RedisStore) -> Limiter<RedisStore> {
    Limiter::new(RuleSet::new([Rule::new("api", limit)]).unwrap(), store.clone())
}

/// Gives the user `gate` exactly these permissions.
fn allow(server: &Server, permissions: &[&str]) {
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("gate").arg("reset").arg("on").arg(">key").arg(permissions);
    user.query::<()>(&mut server.connection()).unwrap();
}

/// The permissions that `message` names, up to `end`.
fn named(message: &str, end: &str) -> Vec<String> {
    let message = message.split(end).next().unwrap();
    message.split_whitespace().filter(|word| word.starts_with(['+', '~'])).map(str::to_owned).collect()
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

async fn do_everything(limiter: &Limiter<RedisStore>, kind: Kind) {
    let mut decision = limiter.check(&Request::new("")).await.unwrap();
    limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
    limiter.charge(&Request::new("")).await.unwrap();
    assert_eq!(limiter.take_up_to(&Request::new(""), 9).await.unwrap().granted(), 4, "{kind:?}");
    limiter.forget(&Request::new("")).await.unwrap();
    assert_eq!(left(limiter).await, 5, "{kind:?}");
}
