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
        let left: Vec<u64> = peek.checks().iter().map(|check| check.outcome().remaining).collect();
        assert_eq!(left, [80, 20]);
    })
    .await;
}

/// The rules have no subjects, so that their keys are in different slots of a cluster. Otherwise a client that repeats a call whose answer was
/// lost would wait twice, or be denied what it has.
#[tokio::test]
async fn a_repeated_reservation_takes_no_second_place_in_a_queue() {
    on_every_store(async |fixture| {
        let tokens = Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap();
        let queue = |places| Limit::leaky_bucket(Rate::per_hour(1).unwrap(), places - 1).unwrap();
        for (number, places) in [10, 25].into_iter().enumerate() {
            let rules = [("tokens", tokens), ("queue", queue(places)), ("other", queue(places))];
            let limiter = fixture.limiter_of(rules.map(|(name, limit)| Rule::new(format!("{name}{number}"), limit)));
            let request = Request::new("").with_cost(10);
            for _ in 0..3 {
                assert!(limiter.reserve(&request, Some("K1")).await.unwrap().is_allowed());
                assert_eq!(remaining(&limiter).await, [90, places - 10, places - 10]);
            }
            let other = limiter.reserve(&request, Some("K2")).await.unwrap();
            assert_eq!(other.is_allowed(), places > 10, "another key is another place");
        }
    })
    .await;
}

/// One limit has forgotten the end, as after a failover or by the bound of remembered ends. The other one refuses, and nobody would end a hold that
/// the call has made under the first.
#[tokio::test]
async fn a_reservation_that_is_refused_holds_nothing_under_a_limit_that_has_forgotten_its_end() {
    on_every_store(async |fixture| {
        let tokens = Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap();
        let limiter = fixture.limiter_of(["a", "b"].map(|rule| Rule::new(rule, tokens)));
        let request = Request::new("").with_cost(10);
        for (forgotten, key) in ["K1", "K2"].into_iter().enumerate() {
            let reservation = limiter.reserve(&request, Some(key)).await.unwrap().reservation().unwrap();
            limiter.commit(&reservation, 10).await.unwrap();
            limiter.store().forget(&[*limiter.plan(&request).checks()[forgotten].key()]).await.unwrap();
            let again = limiter.reserve(&request, Some(key)).await;
            assert!(matches!(again, Err(ReservationError::AlreadyEnded)));
            let outstanding = limiter.outstanding(&request).await.unwrap();
            assert_eq!(outstanding.iter().map(|one| one.reservations).collect::<Vec<_>>(), [0, 0], "{key}");
        }
    })
    .await;
}

/// The count of the new period knows nothing of the hold. Otherwise the work would be committed and counted nowhere.
#[tokio::test]
async fn a_commit_after_a_change_of_the_period_charges_the_new_count_once_beside_a_limit_that_has_its_hold() {
    on_every_store(async |fixture| {
        let bucket = Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap();
        let quota = |period: Period| Limit::quota(100, Periods::utc(period)).unwrap();
        let limiter = |period| fixture.limiter_of([Rule::new("tokens", bucket), Rule::new("calendar", quota(period))]);
        let request = Request::new("").with_cost(80);
        let (before, after) = (limiter(Period::Month), limiter(Period::Year));
        let reservation = before.reserve(&request, Some("k")).await.unwrap().reservation().unwrap();
        for _ in 0..3 {
            after.commit(&reservation, 70).await.unwrap();
            assert_eq!(remaining(&after).await, [30, 30]);
        }
        assert!(matches!(after.commit(&reservation, 71).await, Err(ReservationError::AlreadyEnded)));
        // Without a key, an earlier call may have committed what is not found.
        let reservation = before.reserve(&Request::new("").with_cost(10), None).await.unwrap().reservation().unwrap();
        after.commit(&reservation, 10).await.unwrap();
        assert_eq!(remaining(&after).await, [20, 30]);
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_reservation_whose_rules_were_all_changed_or_removed_is_not_found() {
    on_every_store(async |fixture| {
        let quota = |period: Period| Limit::quota(100, Periods::utc(period)).unwrap();
        let before = fixture.limiter_of([Rule::new("calendar", quota(Period::Month))]);
        let reservation =
            before.reserve(&Request::new("").with_cost(80), Some("k")).await.unwrap().reservation().unwrap();
        for rules in
            [vec![], vec![Rule::new("other", quota(Period::Month))], vec![Rule::new("calendar", quota(Period::Year))]]
        {
            let after = fixture.limiter_of(rules);
            assert!(matches!(after.commit(&reservation, 80).await, Err(ReservationError::NotFound)));
            assert!(matches!(after.release_reservation(&reservation).await, Err(ReservationError::NotFound)));
            assert!(remaining(&after).await.iter().all(|left| *left == 100), "nothing is charged");
        }
        // After the change was taken back.
        before.commit(&reservation, 70).await.unwrap();
        assert_eq!(remaining(&before).await, [30]);
    })
    .await;
}

/// A failover may lose holds that had not reached the replica.
#[tokio::test]
async fn the_commit_of_a_lost_hold_charges_it_beside_one_that_is_found() {
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
        limiter.commit(&half_lost, 60).await.unwrap();
        assert_eq!(left().await, [40, 40], "once");
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

/// What each limit has left.
async fn remaining<S: Store>(limiter: &Limiter<S>) -> Vec<u64> {
    let peek = limiter.peek(&Request::new("")).await.unwrap();
    peek.checks().iter().map(|check| check.outcome().remaining).collect()
}

async fn wait_until_left<S: Store>(limiter: &Limiter<S>, units: u64) {
    let is_left = async { while left(limiter).await != units {} };
    tokio::time::timeout(MAX_WAIT, is_left).await.expect("the commit is applied");
}
