//! Progressive penalties on real servers: the denial cache loses no strike, a flood of subjects blocks nobody, the states have a
//! lifetime, and in a cluster no strike counts twice.

use std::time::Duration;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{START, key_name, long_timeout_options};
use conformance::topology::Cluster;
use tidegate::limits::Penalty;
use tidegate::rules::AnonymousBounds;
use tidegate::spi::PlanMode;
use tidegate::{Decision, Limit, Limiter, ManualClock, Rate, Request, Rule, RuleSet, Secret};
use tidegate_redis::RedisStore;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Two attempts in an hour; the third strike blocks for two hours, the next one for four.
fn rule() -> Rule {
    let limit = Limit::sliding_log(2, HOUR).unwrap();
    let penalty = Penalty::new(3, 2 * HOUR, 2, 8 * HOUR).unwrap();
    Rule::new("login-ip", limit).with_per(["ip"]).with_security().with_penalty(penalty)
}

async fn limiter(server: &Server, clock: &ManualClock, rule: Rule) -> Limiter<RedisStore> {
    let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
    Limiter::new(RuleSet::new([rule]).unwrap(), store).with_secret(&Secret::new("of the fleet"))
}

async fn attempt(limiter: &Limiter<RedisStore>, ip: &str) -> Decision {
    limiter.check(&Request::new("login").with_attribute("ip", ip)).await.unwrap()
}

#[tokio::test]
async fn a_block_is_answered_from_the_cache_and_no_strike_is_lost() {
    for kind in KINDS {
        let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
        let limiter = limiter(&server, &clock, rule()).await;
        for _ in 0..2 {
            assert!(attempt(&limiter, "192.0.2.7").await.is_allowed());
        }
        // All at one instant: a cached denial of the limit would hide the second and the third strike.
        for retry in [HOUR, HOUR, 2 * HOUR] {
            let decision = attempt(&limiter, "192.0.2.7").await;
            assert_eq!((decision.retry_after(), decision.known_denial()), (Some(retry), None), "{kind:?}");
        }
        // The strike that began the block is known, and so is every denial during it.
        for _ in 0..100 {
            let decision = attempt(&limiter, "192.0.2.7").await;
            assert_eq!((decision.retry_after(), decision.known_denial()), (Some(2 * HOUR), Some(1)), "{kind:?}");
        }
        assert!(attempt(&limiter, "192.0.2.8").await.is_allowed());
        clock.advance(SECOND);
        let decision = attempt(&limiter, "192.0.2.7").await;
        assert_eq!(
            (decision.retry_after(), decision.known_denial()),
            (Some((2 * HOUR).saturating_sub(SECOND)), None),
            "{kind:?}"
        );
        clock.advance((2 * HOUR).saturating_sub(SECOND));
        for _ in 0..2 {
            assert!(attempt(&limiter, "192.0.2.7").await.is_allowed(), "{kind:?}");
        }
        assert_eq!(attempt(&limiter, "192.0.2.7").await.retry_after(), Some(4 * HOUR), "{kind:?}");
    }
}

/// The limit may recover later than the block ends. A client that is told of the block alone would come back too early, and be struck.
#[tokio::test]
async fn a_cached_denial_during_a_block_tells_when_the_limit_admits_again() {
    for kind in KINDS {
        let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
        let penalty = Penalty::new(1, HOUR / 4, 2, HOUR).unwrap();
        let limiter = limiter(&server, &clock, rule().with_penalty(penalty)).await;
        for retry in [None, None, Some(HOUR), Some(HOUR), Some(HOUR)] {
            assert_eq!(attempt(&limiter, "192.0.2.7").await.retry_after(), retry, "{kind:?}");
        }
        let known = attempt(&limiter, "192.0.2.7").await;
        assert_eq!(known.known_denial(), Some(0), "{kind:?}: the denial with the longest retry");
        clock.advance(HOUR);
        assert!(attempt(&limiter, "192.0.2.7").await.is_allowed(), "{kind:?}");
    }
}

#[tokio::test]
async fn a_block_holds_on_every_instance_and_forgetting_ends_it() {
    let (server, clock) = (Server::start(Kind::Redis), ManualClock::starting_at(START));
    let (here, elsewhere) = (limiter(&server, &clock, rule()).await, limiter(&server, &clock, rule()).await);
    for _ in 0..5 {
        drop(attempt(&here, "192.0.2.7").await);
    }
    assert_eq!(attempt(&elsewhere, "192.0.2.7").await.retry_after(), Some(2 * HOUR));
    here.forget(&Request::new("login").with_attribute("ip", "192.0.2.7")).await.unwrap();
    assert!(attempt(&here, "192.0.2.7").await.is_allowed());
    clock.advance(SECOND);
    assert!(attempt(&elsewhere, "192.0.2.7").await.is_allowed());
}

/// Concurrent attempts are combined into batches, in which each denial is a strike of its own until the block begins.
#[tokio::test]
async fn concurrent_attempts_are_struck_one_by_one() {
    for kind in KINDS {
        let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
        let limiter = limiter(&server, &clock, rule()).await;
        let attempts = (0..50).map(|_| attempt(&limiter, "192.0.2.7"));
        let decisions = futures_util::future::join_all(attempts).await;
        let mut retries: Vec<_> = decisions.iter().map(Decision::retry_after).collect();
        retries.sort_unstable();
        assert_eq!(retries[..5], [None, None, Some(HOUR), Some(HOUR), Some(2 * HOUR)], "{kind:?}");
        assert!(retries[5..].iter().all(|retry| *retry == Some(2 * HOUR)), "{kind:?}");
    }
}

/// Newcomers past the bound share overflow buckets. A block of such a bucket would hit bystanders.
#[tokio::test]
async fn a_flood_of_addresses_blocks_nobody_else_and_creates_no_penalties() {
    for kind in KINDS {
        let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
        let limit = Limit::token_bucket(2, Rate::per_second(1).unwrap()).unwrap();
        let penalty = Penalty::new(1, HOUR, 2, HOUR).unwrap();
        let rule = Rule::new("login-ip", limit).with_per(["ip"]).with_security().with_penalty(penalty);
        let limiter = limiter(&server, &clock, rule.with_anonymous(AnonymousBounds::new(10))).await;
        let address = |number: u32| format!("2001:db8:0:{number:x}::1");
        for number in 0..20 {
            drop(attempt(&limiter, &address(number)).await);
        }
        let (mut overflowed, mut denied) = (0, 0);
        for number in 100..2_100_u32 {
            let decision = attempt(&limiter, &address(number / 5)).await;
            overflowed += u32::from(decision.checks()[0].is_overflowed());
            denied += u32::from(!decision.is_allowed());
            assert!(decision.retry_after().is_none_or(|retry| retry <= SECOND), "{kind:?}: {decision:?}");
        }
        assert!(overflowed >= 1_900 && denied > 1_000, "{kind:?}: {overflowed} {denied}");
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*login-ip:p*").query(&mut server.connection()).unwrap();
        assert_eq!(keys, Vec::<Vec<u8>>::new(), "{kind:?}");
    }
}

/// The keys of a rule and its penalty are in one slot, so a strike and the denial that it is for are one step. Other rules of the plan are in
/// other slots.
#[tokio::test]
async fn a_denial_across_slots_is_one_strike() {
    let (server, clock) = (Server::start_alone_in_cluster(Kind::Redis), ManualClock::starting_at(START));
    let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
    for mode in [PlanMode::AllOrNothing, PlanMode::CountEach] {
        let wide = |id: &str| Rule::new(format!("{id}-{mode:?}"), Limit::sliding_log(1_000, HOUR).unwrap());
        let rules = [rule(), wide("tenant").with_per(["tenant"]), wide("agent").with_per(["agent"])];
        let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store.clone());
        let ip = format!("192.0.2.{}", mode as u8);
        let request = Request::new("login").with_attribute("ip", ip.as_str());
        let request = request.with_attribute("tenant", "acme").with_attribute("agent", "curl");
        let mut retries = Vec::new();
        for _ in 0..7 {
            let decision = limiter.plans().check(&limiter.plan(&request).with_mode(mode)).await.unwrap();
            retries.push(decision.retry_after());
        }
        let blocked = Some(2 * HOUR);
        assert_eq!(retries, [None, None, Some(HOUR), Some(HOUR), blocked, blocked, blocked], "{mode:?}");
    }
}

/// While its slot moves, the keys of a rule and its penalty may be on two servers. Denials are no strikes then, and blocks hold.
#[tokio::test]
async fn while_a_slot_moves_blocks_hold_and_no_strike_counts_twice() {
    let (cluster, clock) = (Cluster::start(Kind::Redis, 3, false), ManualClock::starting_at(START));
    let options = long_timeout_options().with_clock(clock.clone());
    let limiter =
        Limiter::new(RuleSet::new([rule()]).unwrap(), RedisStore::connect_with(&cluster.url(), options).await.unwrap());
    let names = |ip: &str| -> Vec<Vec<u8>> {
        let plan = limiter.plan(&Request::new("login").with_attribute("ip", ip));
        plan.checks().iter().map(|check| key_name(check.key())).collect()
    };
    let partition =
        |ip: &str| limiter.plan(&Request::new("login").with_attribute("ip", ip)).checks()[0].key().partition();
    let blocked = "192.0.2.7";
    let mut slot_of_key = redis::cmd("CLUSTER");
    slot_of_key.arg("KEYSLOT").arg(&names(blocked)[0]);
    let slot: u16 = slot_of_key.query(&mut cluster.servers[0].connection()).unwrap();
    let address = |number: u32| format!("198.51.{}.{}", number / 250, number % 250);
    let other = (0..60_000).map(address).find(|ip| partition(ip) == partition(blocked)).unwrap();
    for _ in 0..5 {
        drop(attempt(&limiter, blocked).await);
    }
    let (source, target) = (cluster.first_owner(slot), (cluster.first_owner(slot) + 1) % 3);
    cluster.start_slot_move(slot, source, target);
    cluster.migrate(source, target, &names(blocked)[..1]);
    clock.advance(2 * SECOND);
    assert_eq!(attempt(&limiter, blocked).await.retry_after(), Some((2 * HOUR).saturating_sub(2 * SECOND)));
    let mut admitted = 0;
    for _ in 0..20 {
        let decision = attempt(&limiter, &other).await;
        admitted += u32::from(decision.is_allowed());
        assert!(decision.retry_after().is_none_or(|retry| retry == HOUR), "it is not blocked");
    }
    assert_eq!(admitted, 2);
    cluster.move_keys(slot, source, target);
    cluster.finish_slot_move(slot, target);
    clock.advance(2 * SECOND);
    assert_eq!(attempt(&limiter, blocked).await.retry_after(), Some((2 * HOUR).saturating_sub(4 * SECOND)));
    let limited = HOUR.saturating_sub(2 * SECOND);
    for retry in [limited, limited, 2 * HOUR] {
        assert_eq!(attempt(&limiter, &other).await.retry_after(), Some(retry));
    }
}
