//! Reservations: repeated ones, those that the store has lost, and those that end in the background.

use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{MAX_WAIT, key_name, left, long_timeout_options, on_every_store};
use tidegate::spi::Store;
use tidegate::{Limit, Limiter, Period, Periods, Rate, Request, ReservationError, Rule, RuleSet, Timestamp};
use tidegate_redis::RedisStore;

/// Otherwise one hold would stand for two actions, and the second would take no place in its queue.
#[tokio::test]
async fn the_same_idempotency_key_under_other_limits_is_another_reservation() {
    on_every_store(async |fixture| {
        let tokens = Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap();
        let queue = Limit::leaky_bucket(Rate::per_hour(1).unwrap(), 29).unwrap();
        let limiter = fixture.limiter_of([
            Rule::new("tokens", tokens).with_per(["tenant"]),
            Rule::new("queue", queue).with_action("b").with_per(["tenant"]),
        ]);
        let request = |action: &'static str| Request::new(action).with_attribute("tenant", "acme").with_cost(10);
        for action in ["a", "b", "a", "b", "b"] {
            let decision = limiter.reserve(&request(action), Some("K1")).await.unwrap();
            assert!(decision.is_allowed(), "{action}");
        }
        let outstanding = limiter.outstanding(&request("b")).await.unwrap();
        assert_eq!((outstanding[0].reservations, outstanding[0].units), (2, 20));
        let peek = limiter.peek(&request("b")).await.unwrap();
        let remaining: Vec<u64> = peek.checks().iter().map(|check| check.outcome().remaining).collect();
        assert_eq!(remaining, [80, 20]);
    })
    .await;
}

/// A failover may lose holds that had not reached the replica.
#[tokio::test]
async fn a_commit_of_a_hold_that_the_store_has_lost_charges_only_limits_that_have_theirs() {
    on_every_store(async |fixture| {
        let window = Limit::fixed_window(100, Duration::from_secs(100_000)).unwrap();
        let limiter = fixture.limiter_of([Rule::new("all", window), Rule::new("a", window).with_action("a")]);
        let request = Request::new("a").with_cost(60);
        let reserve = async || limiter.reserve(&request, Some("K1")).await.unwrap().reservation().unwrap();
        let left = async || {
            let peek = limiter.peek(&request).await.unwrap();
            peek.checks().iter().map(|check| check.outcome().remaining).collect::<Vec<_>>()
        };
        let lost = reserve().await;
        limiter.forget(&request).await.unwrap();
        assert!(matches!(limiter.commit(&lost, 60).await, Err(ReservationError::NotFound)));
        assert_eq!(left().await, [100, 100]);
        let half_lost = reserve().await;
        limiter.forget(&Request::new("b")).await.unwrap();
        limiter.commit(&half_lost, 60).await.unwrap();
        assert_eq!(left().await, [100, 40]);
    })
    .await;
}

/// Nobody waits for such a commit, so nobody would see that it was dropped.
#[tokio::test]
async fn a_commit_in_the_background_with_stale_periods_is_sent_again() {
    for kind in KINDS {
        let server = Server::start(kind);
        let limit = Limit::quota(100, Periods::utc(Period::Year)).unwrap();
        let limiter = limiter(&server, [Rule::new("year", limit)]).await;
        let decision = limiter.reserve(&Request::new("").with_cost(60), None).await.unwrap();
        limiter.store().set_period_clock(Timestamp::from_micros(1_000_000_000_000_000)); // in 2001
        limiter.commit_soon(&decision.reservation().unwrap(), 10);
        wait_until_left(&limiter, 90).await;
    }
}

#[tokio::test]
async fn an_unreadable_value_does_not_drop_the_other_commits_in_the_background() {
    for kind in KINDS {
        let server = Server::start(kind);
        let limit = Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap();
        let rules = ["other", "good"].map(|rule| Rule::new(rule, limit).with_action(rule));
        let limiter = limiter(&server, rules.clone()).await;
        let both = rules.map(|rule| Rule::new(rule.id(), limit));
        let both = Limiter::new(RuleSet::new(both).unwrap(), limiter.store().clone());
        let decision = both.reserve(&Request::new("").with_cost(60), None).await.unwrap();
        let plan = limiter.plan(&Request::new("other"));
        let name = key_name(plan.checks()[0].key());
        let _: () = redis::cmd("SET").arg(&name).arg("newer").query(&mut server.connection()).unwrap();
        both.commit_soon(&decision.reservation().unwrap(), 10);
        let is_committed = async || {
            let peek = limiter.peek(&Request::new("good")).await.unwrap();
            peek.remaining() == Some(90)
        };
        tokio::time::timeout(MAX_WAIT, async { while !is_committed().await {} }).await.expect("the commit is applied");
    }
}

async fn limiter(server: &Server, rules: impl IntoIterator<Item = Rule>) -> Limiter<RedisStore> {
    let store = server.store_with(long_timeout_options()).await;
    Limiter::new(RuleSet::new(rules).unwrap(), store)
}

async fn wait_until_left<S: Store>(limiter: &Limiter<S>, units: u64) {
    let is_left = async { while left(limiter).await != units {} };
    tokio::time::timeout(MAX_WAIT, is_left).await.expect("the commit is applied");
}
