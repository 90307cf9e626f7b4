//! A flood of anonymous subjects: the server stores a bounded number of them, known subjects keep their state, and new ones
//! share overflow buckets, which neither admit nor deny everything.

use std::time::Duration;

use conformance::anonymous::bucket_of;
use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{
    START, decide_all, key_name, limits_with_window, long_timeout_options, one_limit_of_each_kind,
};
use conformance::topology::Cluster;
use redis::Connection;
use tidegate::rules::AnonymousBounds;
use tidegate::spi::{CheckResult, PARTITIONS};
use tidegate::{Decision, Ending, Limit, Limiter, ManualClock, Rate, Request, Rule, RuleSet};
use tidegate_redis::{RedisStore, SubjectStats};

type RedisLimiter = Limiter<RedisStore>;

/// Concurrent requests.
const BATCH_SIZE: usize = 500;

const SECOND: Duration = Duration::from_secs(1);

/// A rule per (anonymous) address and a rule per (authenticated) user.
fn rules(limit: Limit, anonymous: AnonymousBounds) -> RuleSet {
    let public = Rule::new("public", limit).with_action("public").with_per(["ip"]).with_anonymous(anonymous);
    RuleSet::new([public, Rule::new("api", limit).with_action("api").with_per(["user"])]).unwrap()
}

fn cap(max_subjects: u64) -> AnonymousBounds {
    AnonymousBounds::new(max_subjects)
}

/// Subjects of one network: the /64 networks of a /48.
fn flood_addresses(subjects: u64) -> impl Iterator<Item = String> {
    (0..subjects).map(|number| format!("2001:db8:1:{number:x}::1"))
}

fn anonymous_request(ip: &str) -> Request<'_> {
    Request::new("public").with_attribute("ip", ip)
}

async fn ask(limiter: &RedisLimiter, ip: &str) -> Decision {
    limiter.check(&anonymous_request(ip)).await.unwrap()
}

/// Sends one request for each name concurrently. Returns how many passed, and how many were decided on an overflow bucket.
async fn flood(limiter: &RedisLimiter, names: impl Iterator<Item = String>) -> (u64, u64) {
    let (names, mut sums): (Vec<String>, _) = (names.collect(), (0, 0));
    for batch in names.chunks(BATCH_SIZE) {
        let plans: Vec<_> = batch.iter().map(|name| limiter.plan(&anonymous_request(name))).collect();
        for verdict in decide_all(limiter.store(), &plans).await {
            let verdict = verdict.unwrap();
            sums.0 += verdict.granted();
            sums.1 += u64::from(verdict.checks()[0].overflowed);
        }
    }
    sums
}

fn keys(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut server.connection()).unwrap()
}

fn anonymous_stats(store: &RedisStore) -> SubjectStats {
    let mut known = store.anonymous_stats();
    assert_eq!(known.len(), 1, "{known:?}");
    known.remove(0)
}

fn overflowed(decision: &Decision) -> bool {
    decision.checks().iter().any(CheckResult::is_overflowed)
}

#[tokio::test]
async fn fifty_thousand_new_anonymous_subjects_neither_fill_the_server_nor_affect_known_ones() {
    const FLOOD: u64 = 50_000;
    const CAP: u64 = 1_000;
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let limiter = Limiter::new(rules(one_limit_of_each_kind(3)[0], cap(CAP)), store.clone());
        for ip in ["ann", "bob"] {
            assert!(ask(&limiter, ip).await.is_allowed());
        }

        let (passed, shared) = flood(&limiter, flood_addresses(FLOOD)).await;
        let own = FLOOD - shared;
        assert!((CAP - 2..CAP + BATCH_SIZE as u64).contains(&own), "{kind:?}: {own} have a key of their own");
        assert_eq!(
            keys(&server),
            2 + own + u64::from(PARTITIONS),
            "{kind:?}: a network has a bucket in each partition"
        );
        // Each overflow bucket admits three.
        assert_eq!(passed, own + 3 * u64::from(PARTITIONS), "{kind:?}");
        let stats = anonymous_stats(&store);
        assert_eq!((stats.rule.as_str(), stats.overflowing), ("public", true));
        assert_eq!((stats.created, stats.keys), (own + 2, own + 2), "{kind:?}");

        // A subject from before the flood has two of three left, unaffected by others.
        for _ in 0..2 {
            let decision = ask(&limiter, "ann").await;
            assert!(decision.is_allowed() && !overflowed(&decision), "{kind:?}");
        }
        assert!(!ask(&limiter, "ann").await.is_allowed());
        // Authenticated subjects are unaffected, new or not.
        let before = keys(&server);
        for number in 0..100 {
            let user = format!("user {number}");
            let request = Request::new("api").with_attribute("user", &user);
            for left in [2, 1, 0] {
                let decision = limiter.check(&request).await.unwrap();
                assert!(decision.is_allowed() && !overflowed(&decision), "{kind:?}");
                assert_eq!(decision.remaining(), Some(left), "{kind:?}");
            }
        }
        assert_eq!(keys(&server), before + 100, "{kind:?}");
        assert_eq!(keys_without_expiry(&mut server.connection()), 0, "{kind:?}: overflow buckets expire, too");
    }
}

/// The flood ends when its keys have expired, by the clock of the server.
#[tokio::test]
async fn new_subjects_get_own_keys_again_after_the_flood_expired() {
    for kind in KINDS {
        let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
        for (number, limit) in limits_with_window(4, 60 * SECOND).into_iter().enumerate() {
            let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
            let limiter = Limiter::new(rules(limit, cap(3)), store.clone());
            let name = |who: &str| format!("{kind:?} {number} {who}");
            for who in ["a", "b", "c"] {
                assert!(!overflowed(&ask(&limiter, &name(who)).await), "{limit:?}");
            }
            assert!(overflowed(&ask(&limiter, &name("d")).await), "{limit:?}");
            assert!(anonymous_stats(&store).overflowing);
            let longest = ask(&limiter, &name("a")).await.checks()[0].outcome().reset_after;

            // A sliding window's count matters for two windows.
            clock.advance(longest.min(10 * SECOND));
            assert!(overflowed(&ask(&limiter, &name("e")).await) || longest < 20 * SECOND, "{limit:?}");
            // The margin for backward clock steps, and one slice of the cardinality count.
            clock.advance(longest + 3 * SECOND);
            let _ = ask(&limiter, &name("f")).await;
            assert!(!overflowed(&ask(&limiter, &name("g")).await), "{limit:?}");
            let stats = anonymous_stats(&store);
            assert_eq!((stats.overflowing, stats.keys, stats.created), (false, 1, 4), "{limit:?}");
        }
    }
}

/// A subject in use keeps its key and keeps counting towards the cap: otherwise a client could keep old keys alive, create new
/// ones, and exceed any cap.
#[tokio::test]
async fn keys_in_use_keep_counting_towards_the_cap() {
    let (server, clock) = (Server::start(Kind::Redis), ManualClock::starting_at(START));
    for limit in limits_with_window(1000, 60 * SECOND) {
        let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
        let limiter = Limiter::new(rules(limit, cap(10)), store.clone());
        // Renewed before each expiry, for much longer than a key lives.
        for round in 0..30 {
            for ip in 0..10 {
                let decision = limiter.check(&anonymous_request(&format!("{ip}")).with_cost(60)).await.unwrap();
                assert!(decision.is_allowed() && !overflowed(&decision), "{limit:?} {round}");
            }
            let (_, shared) = flood(&limiter, (0..20).map(|number| format!("{round} {number}"))).await;
            assert_eq!(shared, 20, "{limit:?} {round}");
            assert_eq!((anonymous_stats(&store).created, anonymous_stats(&store).keys), (10, 10), "{limit:?} {round}");
            clock.advance(5 * SECOND);
        }
        let _: () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
    }
}

/// The same with `forget_after`, by the real clock of the server: a key lives for two seconds.
#[tokio::test]
async fn keys_with_forget_after_count_towards_the_cap_until_they_expire() {
    let server = Server::start(Kind::Redis);
    let store = server.store_with(long_timeout_options()).await;
    let anonymous = AnonymousBounds::default().with_forget_after(Duration::ZERO);
    let limiter = Limiter::new(rules(one_limit_of_each_kind(100)[0], anonymous), store.clone());
    let (name, mut connection) =
        (key_name(limiter.plan(&anonymous_request("ann")).checks()[0].key()), server.connection());
    let mut left = || redis::cmd("PTTL").arg(&name).query::<i64>(&mut connection).unwrap();
    let begin = ask(&limiter, "ann").await.decided_at();
    assert!((1_000..=2_001).contains(&left()), "although an hour would pass until it stops mattering");
    let mut last = begin;
    while last.since(begin) < 3 * SECOND {
        while left() > 1_500 {}
        last = ask(&limiter, "ann").await.decided_at();
    }
    // Without the second request it would have expired by now.
    assert_eq!((anonymous_stats(&store).keys, anonymous_stats(&store).created), (1, 1));
    while left() >= 0 {}
    assert_eq!(ask(&limiter, "ann").await.remaining(), Some(99), "forgotten");
    assert_eq!(anonymous_stats(&store).created, 2);
}

/// Every operation on an anonymous subject's own key sets `forget_after` as its expiry; overflow buckets expire with their state.
#[tokio::test]
async fn forget_after_bounds_the_life_of_a_key() {
    for kind in KINDS {
        let server = Server::start(kind);
        for limit in one_limit_of_each_kind(30) {
            let store = server.store_with(long_timeout_options()).await;
            let mut connection = server.connection();
            let anonymous = AnonymousBounds::new(1).with_forget_after(60 * SECOND);
            let both = two_rules(limit, anonymous);
            let limiter = Limiter::new(RuleSet::new(both).unwrap(), store);
            let request = anonymous_request("192.0.2.1");
            let names: Vec<_> = limiter.plan(&request).checks().iter().map(|check| key_name(check.key())).collect();
            let mut ends_early = |after: &str| {
                for name in &names {
                    let left: i64 = redis::cmd("PTTL").arg(name).query(&mut connection).unwrap();
                    assert!((1..=62_001).contains(&left), "{kind:?} {limit:?} after {after}: {left}");
                }
            };
            let mut receipt = limiter.check(&request).await.unwrap().take_grant();
            ends_early("a plan");
            limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
            ends_early("a refund");
            let _ = limiter.take_up_to(&request, 2).await.unwrap();
            ends_early("take_up_to");
            limiter.charge(&request).await.unwrap();
            ends_early("a charge");
            let mut receipt = limiter.check(&request).await.unwrap().take_grant();
            limiter.end(&mut receipt, &Ending::Settle(5.into())).await.unwrap();
            ends_early("a settlement");

            let only = Limiter::new(rules(limit, anonymous), limiter.store().clone());
            let alone = key_name(only.plan(&request).checks()[0].key());
            assert!(!overflowed(&ask(&only, "192.0.2.1").await));
            let left: i64 = redis::cmd("PTTL").arg(&alone).query(&mut connection).unwrap();
            assert!((1..=62_001).contains(&left), "{kind:?} {limit:?}: {left}");
            assert!(overflowed(&ask(&only, "192.0.2.2").await));
            let bucket = key_name(&bucket_of(&only.plan(&anonymous_request("192.0.2.2")).checks()[0]));
            let left: i64 = redis::cmd("PTTL").arg(&bucket).query(&mut connection).unwrap();
            assert!(left > 62_001, "{kind:?} {limit:?}: {left}");
            let _: () = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
        }
    }
}

fn two_rules(limit: Limit, anonymous: AnonymousBounds) -> [Rule; 2] {
    ["one", "two"].map(|id| Rule::new(id, limit).with_per(["ip"]).with_anonymous(anonymous))
}

/// Neither free requests nor later charges create keys past the cap.
#[tokio::test]
async fn past_the_cap_no_operation_creates_a_key_for_a_new_subject() {
    for kind in KINDS {
        let server = Server::start(kind);
        for limit in one_limit_of_each_kind(30) {
            let store = server.store_with(long_timeout_options()).await;
            let limiter = Limiter::new(RuleSet::new(two_rules(limit, cap(1))).unwrap(), store.clone());
            assert!(ask(&limiter, "192.0.2.1").await.is_allowed());
            let new = anonymous_request("192.0.2.2");
            let plan = limiter.plan(&new);
            let exists = || {
                let mut exists = redis::cmd("EXISTS");
                plan.checks().iter().for_each(|check| _ = exists.arg(key_name(check.key())));
                exists.query::<u64>(&mut server.connection()).unwrap()
            };
            let left = async || limiter.peek(&new).await.unwrap().remaining().unwrap();

            let mut free = limiter.check(&anonymous_request("192.0.2.2").with_cost(0)).await.unwrap();
            assert!(free.is_allowed() && !overflowed(&free));
            assert_eq!((exists(), left().await), (0, 30), "{kind:?} {limit:?}");
            limiter.end(&mut free.take_grant(), &Ending::Settle(3.into())).await.unwrap();
            assert_eq!((exists(), left().await), (0, 27), "{kind:?} {limit:?}: charged to the bucket");
            limiter.charge(&new).await.unwrap();
            assert_eq!((exists(), left().await), (0, 26), "{kind:?} {limit:?}");
            let mut two = limiter.take_up_to(&new, 2).await.unwrap();
            assert_eq!(
                (two.granted(), overflowed(&two), exists(), left().await),
                (2, true, 0, 24),
                "{kind:?} {limit:?}"
            );
            // A refund would go to other subjects.
            limiter.end(&mut two.take_grant(), &Ending::Refund).await.unwrap();
            assert_eq!((exists(), left().await), (0, 24), "{kind:?} {limit:?}");
            let mut one = limiter.check(&new).await.unwrap();
            limiter.end(&mut one.take_grant(), &Ending::Settle(0.into())).await.unwrap();
            assert_eq!((exists(), left().await), (0, 23), "{kind:?} {limit:?}");
            let mut one = limiter.check(&new).await.unwrap();
            limiter.end(&mut one.take_grant(), &Ending::Settle(3.into())).await.unwrap();
            assert_eq!((exists(), left().await), (0, 20), "{kind:?} {limit:?}");
            assert_eq!(keys(&server), 2 + 2, "{kind:?} {limit:?}: those of the first, and a bucket for each rule");
            let _: () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
        }
    }
}

/// A charge that creates a key counts towards the cap.
#[tokio::test]
async fn charges_of_new_subjects_count_towards_the_cap() {
    let server = Server::start(Kind::Redis);
    let store = server.store_with(long_timeout_options()).await;
    let limiter = Limiter::new(rules(one_limit_of_each_kind(30)[0], cap(5)), store.clone());
    for number in 0..50 {
        let name = format!("{number}");
        let mut free = limiter.check(&anonymous_request(&name).with_cost(0)).await.unwrap();
        limiter.end(&mut free.take_grant(), &Ending::Settle(1.into())).await.unwrap();
    }
    assert_eq!(
        (anonymous_stats(&store).created, anonymous_stats(&store).keys, anonymous_stats(&store).overflowing),
        (5, 5, true)
    );
    assert!(keys(&server) > 5 && keys(&server) <= 5 + 45);
    assert!(!overflowed(&ask(&limiter, "3").await), "one that has a key");
    assert!(overflowed(&ask(&limiter, "7").await));
}

/// In a cluster the overflow bucket lies in the slot of the subject's own key. It is refunded when another part of the plan denies.
/// Anonymous subjects are also served while their slot moves, when a script may not use two keys.
#[tokio::test]
async fn the_cap_holds_in_a_cluster() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
    let limiter = Limiter::new(rules(one_limit_of_each_kind(3)[0], cap(100)), store.clone());
    let (passed, shared) = flood(&limiter, flood_addresses(20_000)).await;
    let own = 20_000 - shared;
    assert!((100..100 + BATCH_SIZE as u64).contains(&own), "{own}");
    let all: u64 = cluster.servers.iter().map(keys).sum();
    assert_eq!(all, own + u64::from(PARTITIONS));
    assert_eq!(passed, own + 3 * u64::from(PARTITIONS));
    assert!(!overflowed(&ask(&limiter, "2001:db8:1:0::1").await));

    let rate = Rate::per_hour(1).unwrap();
    let wide = Rule::new("wide", Limit::token_bucket(5, rate).unwrap()).with_per(["ip"]).with_anonymous(cap(1));
    // A known denial of this rule would not show the result of the other.
    let narrow = Rule::new("narrow", Limit::token_bucket(2, rate).unwrap()).with_denial_cache(false);
    let limiter = Limiter::new(RuleSet::new([wide, narrow]).unwrap(), store.clone());
    assert!(ask(&limiter, "ann").await.is_allowed());
    let count_allowed = async |times: u32| {
        let mut passed = 0;
        for _ in 0..times {
            let decision = ask(&limiter, "192.0.2.2").await;
            assert!(overflowed(&decision));
            passed += u32::from(decision.is_allowed());
        }
        passed
    };
    assert_eq!(count_allowed(4).await, 1);
    let decision = limiter.peek(&anonymous_request("192.0.2.2")).await.unwrap();
    assert_eq!(decision.checks()[0].outcome().remaining, 4, "three that were denied have taken nothing");

    let limiter = Limiter::new(rules(one_limit_of_each_kind(3)[0], cap(100)), store);
    let plan = limiter.plan(&anonymous_request("carl"));
    let name = key_name(plan.checks()[0].key());
    let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut cluster.servers[0].connection()).unwrap();
    let source = cluster.first_owner(slot);
    cluster.start_slot_move(slot, source, (source + 1) % 3);
    let carl = ask(&limiter, "carl").await;
    assert!(carl.is_allowed() && !overflowed(&carl), "it gets a key rather than an error");
    limiter.charge(&anonymous_request("dora")).await.unwrap();
}

fn keys_without_expiry(connection: &mut Connection) -> usize {
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    let left = |name: &Vec<u8>| redis::cmd("PTTL").arg(name).query::<i64>(connection).unwrap();
    names.iter().map(left).filter(|left| *left < 0).count()
}
