//! Traps 25 to 30, 33 and 40: keys, expiry and commands of the store, on real servers with their own clocks. (Traps 31, 32 and 37
//! to 39 are in `traps_redis_faults.rs`.)

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{
    count_allowed, key_name, left, limits_with_window, long_timeout_options, on_every_store, one_limit_of_each_kind,
};
use redis::Connection;
use tidegate::spi::{PlanMode, Store};
use tidegate::{Ending, Limit, Limiter, MemoryStore, Request, Rule, RuleSet};
use tidegate_redis::RedisStore;

/// Traps 25, 26 and 28: a key was written without its expiry and stayed forever. Every write of every operation sets both at once.
#[tokio::test]
async fn no_operation_leaves_a_key_that_never_expires() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in one_limit_of_each_kind(3).into_iter().chain(limits_with_window(3, Duration::from_secs(60))) {
            let rules = [Rule::new("one", limit).with_per(["user"]), Rule::new("two", limit)];
            let both = Limiter::new(RuleSet::new(rules).unwrap(), store.clone());
            let only = Limiter::new(RuleSet::new([Rule::new("one", limit).with_per(["user"])]).unwrap(), store.clone());
            let request = Request::new("").with_attribute("user", "ann");
            let mut all_expire = |after: &str| {
                let immortal = keys_without_expiry(&mut connection);
                assert!(immortal.is_empty(), "{kind:?} {limit:?} after {after}: {immortal:?}");
            };

            let mut receipt = only.check(&request).await.unwrap().take_grant();
            all_expire("a take");
            only.end(&mut receipt, &Ending::Refund).await.unwrap();
            all_expire("a refund to zero");
            let mut receipt = both.check(&request).await.unwrap().take_grant();
            all_expire("a take by a plan");
            only.charge(&request).await.unwrap();
            all_expire("a charge");
            both.end(&mut receipt, &Ending::Refund).await.unwrap();
            all_expire("a refund");
            let _ = both.take_up_to(&request, 2).await.unwrap();
            all_expire("take_up_to");
            let each = both.plan(&request).with_mode(PlanMode::CountEach);
            let _ = (both.plans().check(&each).await.unwrap(), both.plans().check(&each).await.unwrap());
            all_expire("a denied request that counts");
            assert_eq!(redis::cmd("DBSIZE").query::<u64>(&mut connection).unwrap(), 2, "{kind:?} {limit:?}");
            let _: () = redis::cmd("FLUSHDB").query(&mut connection).unwrap();
        }
    }
}

/// Trap 26: if another client removes the expiry of a key, the next write restores it.
#[tokio::test]
async fn a_write_restores_a_lost_expiry() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in one_limit_of_each_kind(10) {
            let limiter = Limiter::new(RuleSet::new([Rule::new("api", limit)]).unwrap(), store.clone());
            let name = key_name(limiter.plan(&Request::new("")).checks()[0].key());
            let mut receipt = limiter.check(&Request::new("")).await.unwrap().take_grant();
            let mut remove_expiry = || redis::cmd("PERSIST").arg(&name).query::<bool>(&mut connection).unwrap();

            assert!(remove_expiry());
            limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
            assert!(remove_expiry(), "no expiry after a refund: {kind:?} {limit:?}");
            assert_eq!(count_allowed(&limiter, 1, 1).await, 1);
            assert!(remove_expiry(), "no expiry after a take: {kind:?} {limit:?}");
            limiter.charge(&Request::new("")).await.unwrap();
            assert!(remove_expiry(), "no expiry after a charge: {kind:?} {limit:?}");
            limiter.forget(&Request::new("")).await.unwrap();
        }
    }
}

/// Trap 27: a count equal to the cost was taken for the first hit, so the window restarted after a refund to zero.
#[tokio::test]
async fn a_refund_to_zero_does_not_move_the_window() {
    on_every_store(async |fixture| {
        let window = Duration::from_secs(10);
        let limiter = fixture.limiter(Limit::fixed_window(5, window).unwrap());
        fixture.clock.advance(Duration::from_secs(3));
        for seconds_left in [7, 6, 5] {
            let mut decision = limiter.check(&Request::new("").with_cost(5)).await.unwrap();
            assert!(decision.is_allowed());
            assert_eq!(decision.checks()[0].outcome().reset_after, Duration::from_secs(seconds_left));
            limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
            fixture.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(count_allowed(&limiter, 5, 2).await, 1);
        fixture.clock.advance(Duration::from_secs(4));
        assert_eq!(left(&limiter).await, 5);
    })
    .await;
}

/// Trap 29: milliseconds were passed as seconds. A key expires when its state no longer matters, plus two seconds as a margin for
/// backward clock steps.
#[tokio::test]
async fn a_key_expires_when_its_state_no_longer_matters() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for window in [Duration::from_secs(1), Duration::from_secs(600), Duration::from_secs(86_400)] {
            for limit in limits_with_window(10, window) {
                let limiter = Limiter::new(RuleSet::new([Rule::new("api", limit)]).unwrap(), store.clone());
                let decision = limiter.check(&Request::new("").with_cost(5)).await.unwrap();
                let name = key_name(limiter.plan(&Request::new("")).checks()[0].key());
                let expires: u64 = redis::cmd("PEXPIRETIME").arg(name).query(&mut connection).unwrap();
                let ends = decision.decided_at().plus(decision.checks()[0].outcome().reset_after).as_micros() / 1_000;
                // The server measures the expiry from its own reading of the clock, a moment before or after ours.
                assert!(expires.abs_diff(ends + 2_000) < 500, "{kind:?} {limit:?}: {expires} for {ends}");
            }
        }
    }
}

/// Trap 30: each request needed a second command for the expiry. Here it is one read and one write, and a denial only reads.
#[tokio::test]
async fn a_decision_costs_one_read_and_at_most_one_write_for_each_key() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in one_limit_of_each_kind(10) {
            let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut connection).unwrap();
            let rule = Rule::new("api", limit).with_denial_cache(false);
            let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store.clone());
            assert_eq!(count_allowed(&limiter, 1, 25).await, 10);
            let expected = [("evalsha", 25), ("get", 25), ("psetex", 10), ("time", 25)];
            assert_eq!(calls(&mut connection), to_map(&expected), "{kind:?} {limit:?}");
            for _ in 0..5 {
                assert_eq!(left(&limiter).await, 0);
            }
            let expected = [("evalsha", 25), ("evalsha_ro", 5), ("get", 25), ("mget", 5), ("psetex", 10), ("time", 30)];
            assert_eq!(calls(&mut connection), to_map(&expected), "{kind:?} {limit:?}");
        }
    }
}

/// Every state is a string embedded in its key's object, and on Redis the states of buckets and fixed windows are integers.
/// (Valkey 9 stores values written by scripts as strings, of the same size.)
#[tokio::test]
async fn states_are_small() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for (index, limit) in limits_with_window(10, Duration::from_secs(60)).into_iter().enumerate() {
            let limiter = Limiter::new(RuleSet::new([Rule::new("api", limit)]).unwrap(), store.clone());
            assert_eq!(count_allowed(&limiter, 1, 3).await, 3);
            let name = key_name(limiter.plan(&Request::new("")).checks()[0].key());
            let found: String = redis::cmd("TYPE").arg(&name).query(&mut connection).unwrap();
            assert_eq!(found, "string", "{kind:?} {limit:?}");
            let found: String = redis::cmd("OBJECT").arg("ENCODING").arg(&name).query(&mut connection).unwrap();
            let encodings: &[&str] = if kind == Kind::Redis && index < 3 { &["int"] } else { &["int", "embstr"] };
            assert!(encodings.contains(&found.as_str()), "{kind:?} {limit:?}: {found}");
        }
    }
}

/// Trap 33: braces in user input moved a key to another slot, or the keys of one plan to different slots. The slot of every key
/// depends only on its partition, its only hash tag.
#[tokio::test]
async fn no_subject_or_rule_name_changes_the_slot_of_a_key() {
    for kind in KINDS {
        let server = Server::start_with(kind, &["--cluster-enabled", "yes"]);
        let mut connection = server.connection();
        let mut slot =
            |name: &[u8]| -> u16 { redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut connection).unwrap() };
        let limit = one_limit_of_each_kind(3)[0];
        let per_user = Rule::new("{a}", limit).with_limit("{b}", limit).with_per(["user"]);
        let rules = [per_user, Rule::new("}{", limit).with_per(["user"]).with_budget("{{x}}"), Rule::new("{}", limit)];
        let limiter = Limiter::new(RuleSet::new(rules).unwrap(), MemoryStore::new());
        for number in 0..300 {
            let user = format!("{{{number}}}{{x}}");
            let plan = limiter.plan(&Request::new("").with_attribute("user", &user));
            let names: Vec<_> = plan.checks().iter().map(|check| key_name(check.key())).collect();
            for name in &names {
                let tag = &name[3..7];
                assert!(name.starts_with(b"tg1{") && tag.ends_with(b"}"), "{}", name.escape_ascii());
                assert_eq!(slot(name), slot(tag), "{}", name.escape_ascii());
                let (readable, _hash) = name.split_at(name.len() - 16);
                let braces = readable.iter().filter(|byte| b"{}".contains(byte)).count();
                assert_eq!(braces, 2, "only the braces of the hash tag: {}", name.escape_ascii());
            }
            let slots: Vec<_> = names[..3].iter().map(|name| slot(name)).collect();
            assert!(slots.iter().all(|found| *found == slots[0]), "all limits of one user are in one slot");
        }
    }
}

/// Trap 33: a script accessed keys that were not passed to it, which a cluster refuses.
#[tokio::test]
async fn a_server_in_cluster_mode_accepts_every_script() {
    for kind in KINDS {
        let server = Server::start_alone_in_cluster(kind);
        let limits = one_limit_of_each_kind(10);
        let request = Request::new("").with_attribute("user", "ann");
        let together =
            limits.iter().enumerate().map(|(i, limit)| Rule::new(format!("r{i}"), *limit).with_per(["user"]));
        let apart = limits.iter().enumerate().map(|(i, limit)| Rule::new(format!("s{i}"), *limit));
        for rules in [together.collect::<Vec<_>>(), apart.collect()] {
            let limiter = Limiter::new(RuleSet::new(rules).unwrap(), server.store_with(long_timeout_options()).await);
            let mut receipt = limiter.check(&request).await.unwrap().take_grant();
            limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
            limiter.charge(&request).await.unwrap();
            assert_eq!(limiter.take_up_to(&request, 20).await.unwrap().granted(), 9, "{kind:?}");
            limiter.forget(&request).await.unwrap();
            assert_eq!(limiter.peek(&request).await.unwrap().remaining(), Some(10), "{kind:?}");
        }
        assert_eq!(redis::cmd("DBSIZE").query::<u64>(&mut server.connection()).unwrap(), 0);
    }
}

/// Trap 40: forgetting one subject scanned all keys of the server.
#[tokio::test]
async fn forgetting_a_subject_deletes_its_keys_without_a_scan() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        let rules = one_limit_of_each_kind(5).into_iter().enumerate();
        let rules = RuleSet::new(rules.map(|(i, limit)| Rule::new(format!("r{i}"), limit).with_per(["user"]))).unwrap();
        let limiter: Limiter<RedisStore> = Limiter::new(rules, store);
        let request_of = |user| Request::new("").with_attribute("user", user);
        for user in ["ann", "ann", "bob"] {
            assert!(limiter.check(&request_of(user)).await.unwrap().is_allowed());
        }
        let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut connection).unwrap();
        limiter.forget(&request_of("ann")).await.unwrap();
        assert_eq!(calls(&mut connection), to_map(&[("del", 1)]), "{kind:?}");
        for (user, left) in [("ann", 5), ("bob", 4)] {
            let peeked = limiter.store().decide(&limiter.plan(&request_of(user)).with_peek()).await.unwrap();
            assert!(
                peeked.checks().iter().all(|judged| judged.outcome.remaining == left),
                "{kind:?} {user}: {peeked:?}"
            );
        }
    }
}

// === Helpers ===

fn keys_without_expiry(connection: &mut Connection) -> Vec<String> {
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    let mut ttl = |name: &Vec<u8>| redis::cmd("PTTL").arg(name).query::<i64>(connection).unwrap();
    names.into_iter().filter(|name| ttl(name) == -1).map(|name| name.escape_ascii().to_string()).collect()
}

/// The number of calls of each command since the last reset, except `CONFIG` and `INFO`.
fn calls(connection: &mut Connection) -> BTreeMap<String, u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let counted = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    counted.filter(|(name, _)| !name.starts_with("config") && name != "info").collect()
}

fn to_map(calls: &[(&str, u64)]) -> BTreeMap<String, u64> {
    calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}
