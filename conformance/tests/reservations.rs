//! Reservations: repeated ones, those that the store has lost, and those that end in the background.

mod front_ends;

use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{MAX_WAIT, key_name, left, long_timeout_options, on_every_store};
use tidegate::grants::GrantError;
use tidegate::limits::{Period, Periods};
use tidegate::spi::Store;
use tidegate::{Ending, Limit, Limiter, Rate, Request, Rule, RuleSet, Timestamp};
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

/// The rules of the slots and of the line have no subject, so that their keys are in other slots of a cluster than the two others, and are
/// asked first. Otherwise a client could free the slot of work that goes on, by its own key and another cost, or wait twice.
#[tokio::test]
async fn a_repeated_or_reused_key_changes_no_slot_and_no_place_in_a_queue() {
    on_every_store(async |fixture| {
        let queue = |places: u64| Limit::leaky_bucket(Rate::per_hour(1).unwrap(), places - 1).unwrap();
        let limiter = fixture.limiter_of([
            Rule::new("tokens", Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap()).with_per(["tenant"]),
            Rule::new("queue", queue(30)).with_per(["tenant"]),
            Rule::new("slots", Limit::concurrency(20, Duration::from_secs(3600)).unwrap()),
            Rule::new("line", queue(10)),
        ]);
        let request = |cost| Request::new("").with_attribute("tenant", "acme").with_cost(cost);
        let left = async || {
            let peek = limiter.peek(&request(1)).await.unwrap();
            peek.checks().iter().map(|check| check.outcome().remaining).collect::<Vec<_>>()
        };
        let mut first = limiter.reserve(&request(10), Some("K1")).await.unwrap().take_grant();
        for cost in [0, 1, 10, 11] {
            match limiter.reserve(&request(cost), Some("K1")).await {
                Ok(decision) => assert!(decision.is_allowed() && cost == 10, "{cost}"),
                Err(error) => assert!(matches!(error, GrantError::KeyReused) && cost != 10, "{cost}: {error}"),
            }
            assert_eq!(left().await, [90, 20, 10, 0], "{cost}");
        }
        limiter.end(&mut first, &Ending::Commit(10.into())).await.unwrap();
        assert!(matches!(limiter.reserve(&request(10), Some("K1")).await, Err(GrantError::AlreadyEnded)));
        assert_eq!(left().await, [90, 20, 20, 0]);
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
            let mut reservation = limiter.reserve(&request, Some(key)).await.unwrap().take_grant();
            limiter.end(&mut reservation, &Ending::Commit(10.into())).await.unwrap();
            limiter.store().forget(&[*limiter.plan(&request).checks()[forgotten].key()]).await.unwrap();
            let again = limiter.reserve(&request, Some(key)).await;
            assert!(matches!(again, Err(GrantError::AlreadyEnded)));
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
        let mut reservation = before.reserve(&request, Some("k")).await.unwrap().take_grant();
        for _ in 0..3 {
            after.end(&mut reservation, &Ending::Commit(70.into())).await.unwrap();
            assert_eq!(remaining(&after).await, [30, 30]);
        }
        assert!(matches!(after.end(&mut reservation, &Ending::Commit(71.into())).await, Err(GrantError::AlreadyEnded)));
        // Without a key, an earlier call may have committed what is not found.
        let mut reservation = before.reserve(&Request::new("").with_cost(10), None).await.unwrap().take_grant();
        after.end(&mut reservation, &Ending::Commit(10.into())).await.unwrap();
        assert_eq!(remaining(&after).await, [20, 30]);
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
        let reserve = async || limiter.reserve(&request, Some("K1")).await.unwrap().take_grant();
        let left = async || {
            let peek = limiter.peek(&request).await.unwrap();
            peek.checks().iter().map(|check| check.outcome().remaining).collect::<Vec<_>>()
        };
        let mut lost = reserve().await;
        limiter.forget(&request).await.unwrap();
        assert!(matches!(limiter.end(&mut lost, &Ending::Commit(60.into())).await, Err(GrantError::NotHeld)));
        assert_eq!(left().await, [100, 100]);
        let mut half_lost = reserve().await;
        limiter.forget(&Request::new("b")).await.unwrap();
        limiter.end(&mut half_lost, &Ending::Commit(60.into())).await.unwrap();
        limiter.end(&mut half_lost, &Ending::Commit(60.into())).await.unwrap();
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
        let mut decision = limiter.reserve(&Request::new("").with_cost(60), None).await.unwrap();
        limiter.store().set_period_clock(Timestamp::from_micros(1_000_000_000_000_000)); // in 2001
        limiter.spawn_end(decision.take_grant(), &Ending::Commit(10.into()));
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
        let both = rules.map(|rule| Rule::new(rule.id, limit));
        let both = Limiter::new(RuleSet::new(both).unwrap(), limiter.store().clone());
        let mut decision = both.reserve(&Request::new("").with_cost(60), None).await.unwrap();
        let plan = limiter.plan(&Request::new("other"));
        let name = key_name(plan.checks()[0].key());
        let _: () = redis::cmd("SET").arg(&name).arg("newer").query(&mut server.connection()).unwrap();
        both.spawn_end(decision.take_grant(), &Ending::Commit(10.into()));
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
