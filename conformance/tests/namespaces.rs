//! Namespaces: deployments on one store that share nothing, and names that would lead operators to the keys of others.

use conformance::poll::wait_for_some;
use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{count_allowed, long_timeout_options, one_limit_of_each_kind, until};
use tidegate::{Limiter, Rule, RuleSet, StoreErrorKind};
use tidegate_redis::{RedisOptions, RedisStore};

/// The second name begins with the first one and the version of keys.
const NAMES: [&str; 2] = ["run", "run1x"];

#[tokio::test]
async fn deployments_in_different_namespaces_share_no_limit_and_do_not_count_each_other() {
    for kind in KINDS {
        for server in [Server::start(kind), Server::start_alone_in_cluster(kind)] {
            // The longer name first: it would be refused after the shorter one.
            let [short, long] = NAMES.map(options);
            let long = server.store_with(long).await;
            until(|| long.instances() == Some(1)).await;
            let short = server.store_with(short).await;
            until(|| short.instances() == Some(1)).await;
            for store in [&short, &long, &server.store_with(long_timeout_options()).await] {
                for limit in one_limit_of_each_kind(3) {
                    let rules = RuleSet::new([Rule::new("api", limit)]).unwrap();
                    assert_eq!(count_allowed(&Limiter::new(rules, store.clone()), 1, 5).await, 3, "{kind:?} {limit:?}");
                }
            }
            assert_eq!([short.instances(), long.instances()], [Some(1); 2]);
            let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
            let starts = ["run1{", "run1x1{", "tg1{"].map(str::as_bytes);
            let counts = starts.map(|start| keys.iter().filter(|key| key.starts_with(start)).count());
            assert_eq!(counts.iter().sum::<usize>(), keys.len());
            assert_eq!(counts[0], counts[1]);
        }
    }
}

/// Also with a name that continues another one by the digit that follows it in keys.
#[tokio::test]
async fn a_user_with_the_permissions_of_one_namespace_cannot_use_another() {
    for kind in KINDS {
        let server = Server::start(kind);
        for (own, other) in [(NAMES[0], NAMES[1]), (NAMES[1], NAMES[0]), ("tg", "shop"), ("shop", "tg")] {
            let url = server.url().replace("redis://", "redis://gate:key@");
            allow(&server, &["~*", "+info"]);
            let quiet = |name: &str| options(name).with_heartbeats(false);
            let error = RedisStore::connect_with(&url, quiet(own)).await.unwrap_err().to_string();
            assert!(error.contains(&format!("on the keys ~{own}1{{* allow it")), "{kind:?}: {error}");
            let named = error.split("; behind").next().unwrap();
            let named: Vec<&str> = named.split_whitespace().filter(|word| word.starts_with(['+', '~'])).collect();
            allow(&server, &named);
            // It counts itself, and looks for other namespaces as far as it may.
            let store = RedisStore::connect_with(&url, options(own)).await.unwrap();
            until(|| store.instances() == Some(1)).await;
            let error = RedisStore::connect_with(&url, quiet(other)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{kind:?}: {error}");
            drop(store);
            let _: () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_namespace_that_begins_with_that_of_a_running_deployment_is_refused() {
    for kind in KINDS {
        for server in [Server::start(kind), Server::start_alone_in_cluster(kind)] {
            let shop = server.store_with(options("shop")).await;
            until(|| shop.instances() == Some(1)).await;
            // It begins to count only when it is no longer refused.
            let waiting = RedisStore::open(&server.url(), options("shop2")).unwrap();
            let mut connection = server.connection();
            wait_for_some("the opened store looks for others", async || (checks(&server) > 0).then_some(())).await;
            for refused in ["shop2", "shop-eu", "shop1"] {
                let error = RedisStore::connect_with(&server.url(), options(refused)).await.unwrap_err();
                let text = error.to_string();
                assert!(!error.is_transient() && !error.is_possibly_applied(), "{kind:?}: {text}");
                assert!(text.contains("begins with `shop`") && text.contains("--namespace"), "{kind:?}: {text}");
                let list = format!("{refused}1{{00}}@instances");
                let exists: bool = redis::cmd("EXISTS").arg(list).query(&mut connection).unwrap();
                assert!(!exists, "{kind:?}: a refused instance does not count");
            }
            for accepted in ["shop", "sho", "eu-shop", "Shop2", "tg"] {
                server.store_with(options(accepted).with_heartbeats(false)).await;
            }
            drop(shop);
            let _: () = redis::cmd("DEL").arg("shop1{00}@instances").query(&mut connection).unwrap();
            until(|| waiting.instances() == Some(1)).await;
            server.store_with(options("shop2")).await;
        }
    }
}

/// Otherwise a deployment that came later could keep it from restarting an instance.
#[tokio::test]
async fn a_running_deployment_starts_further_instances_whoever_came_later() {
    let server = Server::start(Kind::Redis);
    let first = server.store_with(options("shop-eu")).await;
    until(|| first.instances() == Some(1)).await;
    assert!(first.warnings().is_empty());
    let later = server.store_with(options("shop")).await;
    until(|| later.instances() == Some(1)).await;
    let second = server.store_with(options("shop-eu")).await;
    until(|| second.instances() == Some(2)).await;
    let warnings = second.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("begins with `shop`"), "{warnings:?}");
}

// === Helpers ===

/// A store that counts as an instance.
fn options(namespace: &str) -> RedisOptions {
    long_timeout_options().with_namespace(namespace.parse().unwrap()).with_heartbeats(true)
}

/// Gives the user `gate` exactly these permissions.
fn allow(server: &Server, permissions: &[&str]) {
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("gate").arg(&["reset", "on", ">key"]).arg(permissions);
    user.query::<()>(&mut server.connection()).unwrap();
}

/// The number of calls that look for other namespaces.
fn checks(server: &Server) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_exists:calls="));
    calls.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}
