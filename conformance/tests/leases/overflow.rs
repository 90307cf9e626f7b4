//! Slots of new subjects in overflow buckets: held, renewed and released like all others.

use std::time::Duration;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{START, long_timeout_options};
use tidegate::grants::{GrantError, Retake};
use tidegate::rules::AnonymousBounds;
use tidegate::spi::{Adjustment, Store};
use tidegate::{Decision, Ending, Grant, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};
use tidegate_redis::RedisStore;

use crate::leases::{LEASE, slots};

async fn ask(limiter: &Limiter<RedisStore>, ip: &str) -> Decision {
    limiter.check(&Request::new("").with_attribute("ip", ip)).await.unwrap()
}

/// A limiter on a store that has as many subjects as it may.
async fn full_limiter(server: &Server, clock: &ManualClock, anonymous: bool) -> Limiter<RedisStore> {
    let rule = Rule::new(format!("exports-{anonymous}"), slots(2)).with_per(["ip"]);
    let rule = if anonymous { rule.with_anonymous(AnonymousBounds::new(1)) } else { rule.with_max_subjects(1) };
    let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
    let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store);
    for number in 0..3 {
        assert!(ask(&limiter, &format!("192.0.2.{number}")).await.is_allowed());
    }
    limiter
}

#[tokio::test]
async fn slots_of_newcomers_are_held_renewed_and_released_in_overflow_buckets() {
    let clusters = [Server::start_alone_in_cluster(Kind::Redis)].into_iter();
    for server in KINDS.into_iter().map(Server::start).chain(clusters) {
        for anonymous in [false, true] {
            let clock = ManualClock::starting_at(START);
            let limiter = full_limiter(&server, &clock, anonymous).await;
            let mut decision = ask(&limiter, "198.51.100.7").await;
            assert!(decision.is_allowed() && decision.checks()[0].is_overflowed());
            let mut lease = decision.take_grant();
            let mut copy = Grant::from_bytes(&lease.to_bytes()).unwrap();
            for _ in 0..4 {
                clock.advance(LEASE / 2);
                limiter.renew(&lease, Retake::No).await.unwrap();
            }
            assert_eq!(remaining(&limiter).await, 1, "it is held for as long as it is renewed");
            limiter.end(&mut copy, &Ending::Release).await.unwrap();
            assert_eq!(remaining(&limiter).await, 2);
            assert!(matches!(limiter.end(&mut lease, &Ending::Release).await, Err(GrantError::NotHeld)));
        }
    }
}

#[tokio::test]
async fn reservations_of_newcomers_are_held_and_committed_in_overflow_buckets() {
    for server in KINDS.into_iter().map(Server::start) {
        for anonymous in [false, true] {
            let clock = ManualClock::starting_at(START);
            let limit = Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap();
            let rule = Rule::new(format!("tokens-{anonymous}"), limit).with_per(["ip"]);
            let rule = if anonymous { rule.with_anonymous(AnonymousBounds::new(1)) } else { rule.with_max_subjects(1) };
            let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
            let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store);
            assert!(ask(&limiter, "192.0.2.1").await.is_allowed() && ask(&limiter, "192.0.2.2").await.is_allowed());
            let request = Request::new("").with_attribute("ip", "198.51.100.7").with_cost(60);
            let mut decision = limiter.reserve(&request, Some("a")).await.unwrap();
            assert!(decision.is_allowed() && decision.checks()[0].is_overflowed());
            let again = limiter.reserve(&request, Some("a")).await.unwrap();
            assert_eq!((decision.remaining(), again.remaining()), (Some(40), Some(40)));
            let mut copy = Grant::from_bytes(&decision.take_grant().to_bytes()).unwrap();
            limiter.end(&mut copy, &Ending::Commit(10.into())).await.unwrap();
            limiter.end(&mut copy, &Ending::Commit(10.into())).await.unwrap();
            let peek = Request::new("").with_attribute("ip", "198.51.100.7");
            assert_eq!(limiter.peek(&peek).await.unwrap().remaining(), Some(90));
        }
    }
}

/// Newcomers without an address move from bucket to bucket. A keyed reservation that moved would be a second one, and after its end a new one.
#[tokio::test]
async fn a_repeated_reservation_of_a_newcomer_finds_its_overflow_bucket_at_all_times() {
    let clock = ManualClock::starting_at(START);
    repeat_in_overflow_bucket(MemoryStore::new().with_max_keys(4).with_clock(clock.clone()), &clock).await;
    for server in KINDS.into_iter().map(Server::start) {
        let clock = ManualClock::starting_at(START);
        repeat_in_overflow_bucket(server.store_with(long_timeout_options().with_clock(clock.clone())).await, &clock)
            .await;
    }
}

async fn repeat_in_overflow_bucket(store: impl Store, clock: &ManualClock) {
    let rotation = Duration::from_secs(60);
    let rule = Rule::new("tokens", Limit::fixed_window(100, rotation).unwrap()).with_per(["user"]);
    let rules = RuleSet::new([rule.with_max_subjects(1)]).unwrap();
    let limiter = Limiter::new(rules, store).with_reservation_ttl(100 * rotation);
    // Up to the bound, these have keys of their own for the whole test.
    for user in (0..20).map(|number| number.to_string()) {
        let _ = limiter.reserve(&Request::new("").with_attribute("user", &user), None).await.unwrap();
    }
    let request = Request::new("").with_attribute("user", "new").with_cost(60);
    let mut first = limiter.reserve(&request, Some("a")).await.unwrap();
    assert!(first.is_allowed() && first.checks()[0].is_overflowed());
    let mut reservation = first.take_grant();
    for _ in 0..20 {
        clock.advance(rotation);
        let mut again = limiter.reserve(&request, Some("a")).await.unwrap();
        assert!(again.checks()[0].is_overflowed());
        assert_eq!(again.take_grant(), reservation, "in the same bucket");
    }
    limiter.end(&mut reservation, &Ending::Commit(10.into())).await.unwrap();
    for _ in 0..20 {
        clock.advance(rotation);
        let again = limiter.reserve(&request, Some("a")).await;
        assert!(matches!(again, Err(GrantError::AlreadyEnded)));
    }
}

/// The limiter does not know in which bucket a decision would have taken its slot.
#[tokio::test]
async fn the_slot_of_a_newcomer_that_went_away_during_the_decision_is_released() {
    for kind in KINDS {
        let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
        let limiter = full_limiter(&server, &clock, true).await;
        let request = Request::new("").with_attribute("ip", "198.51.100.7");
        let plan = limiter.plan(&request);
        assert!(limiter.store().decide(&plan).await.unwrap().checks()[0].overflowed);
        assert_eq!(remaining(&limiter).await, 1);
        let release = Adjustment::release(&plan.checks()[0], plan.lease_owner().unwrap());
        limiter.store().apply(&[release]).await.outcomes().unwrap();
        assert_eq!(remaining(&limiter).await, 2);
    }
}

/// The slots that are free in the overflow bucket of the newcomer.
async fn remaining(limiter: &Limiter<RedisStore>) -> u64 {
    // The bound is kept by subjects that hold slots.
    for number in 10..13 {
        let _held = ask(limiter, &format!("192.0.2.{number}")).await;
    }
    let peek = limiter.peek(&Request::new("").with_attribute("ip", "198.51.100.7")).await.unwrap();
    assert!(peek.checks()[0].is_overflowed());
    peek.remaining().unwrap()
}
