//! Quotas by calendar on every store: trap 22, and what an instance with a wrong clock decides.

use std::time::Duration;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{count_allowed, left, long_timeout_options, on_every_store};
use futures_util::future::join_all;
use tidegate::limits::{Period, Periods};
use tidegate::spi::{Check, Gate, Plan, Store, Subject};
use tidegate::{Clock, Ending, Limit, Limiter, Request, Rule, RuleSet, SystemClock, Timestamp};

fn quota(amount: u64, period: Period) -> Limit {
    Limit::quota(amount, Periods::new(period, "Europe/Berlin", None).unwrap()).unwrap()
}

/// Trap 22: limiters with months of 30 days, midnights in UTC, or days of 24 hours. The last day of March in Berlin ends at 22:00 UTC.
#[tokio::test]
async fn a_month_ends_at_midnight_of_its_time_zone() {
    on_every_store(async |fixture| {
        let end = Timestamp::from_micros(1_806_530_400_000_000); // 2027-04-01 00:00 in Berlin
        let limiter = fixture.limiter(quota(10, Period::Month));
        fixture.clock.set(Timestamp::from_micros(end.as_micros() - 1));
        assert_eq!(count_allowed(&limiter, 1, 20).await, 10);
        let denied = limiter.check(&Request::new("")).await.unwrap();
        assert_eq!(denied.retry_after(), Some(Duration::from_micros(1)));
        fixture.clock.set(end);
        assert_eq!(count_allowed(&limiter, 1, 20).await, 10);
    })
    .await;
}

/// A8: actions that name the same budget share one quota, each at its own price.
#[tokio::test]
async fn actions_with_the_same_budget_share_one_quota() {
    on_every_store(async |fixture| {
        let rule = |action: &str, cost| {
            let rule = Rule::new(action, quota(100, Period::Day)).with_action(action).with_per(["tenant"]);
            rule.with_budget("compute").with_cost(cost)
        };
        let limiter = fixture.limiter_of([rule("query", 1), rule("export", 30)]);
        let request = |action: &'static str| Request::new(action).with_attribute("tenant", "acme");
        for (action, remaining) in [("export", 70), ("query", 69), ("export", 39), ("export", 9), ("query", 8)] {
            assert_eq!(limiter.check(&request(action)).await.unwrap().remaining(), Some(remaining), "{action}");
        }
        let denied = limiter.check(&request("export")).await.unwrap();
        assert!(!denied.is_allowed() && denied.retry_after().is_some());
        assert!(limiter.check(&request("query")).await.unwrap().is_allowed());
    })
    .await;
}

/// The periods that such an instance sends do not contain the time of the server: it sends them again, by that time.
#[tokio::test]
async fn an_instance_with_a_wrong_clock_decides_by_the_periods_of_the_server() {
    for kind in KINDS {
        let server = Server::start(kind);
        wrong_clocks(&server, &format!("{kind:?}")).await;
    }
    // A plan across slots is decided part by part.
    wrong_clocks(&Server::start_alone_in_cluster(Kind::Redis), "in a cluster").await;
}

async fn wrong_clocks(server: &Server, place: &str) {
    let store = server.store_with(long_timeout_options()).await;
    let wrong = || {
        store.set_period_clock(Timestamp::from_micros(1_000_000_000_000_000)); // in 2001
        store.clone()
    };
    let limiter = Limiter::new(RuleSet::new([Rule::new("month", quota(10, Period::Month))]).unwrap(), store.clone());
    wrong();
    let mut decision = limiter.check(&Request::new("").with_cost(6)).await.unwrap();
    let now = SystemClock::new().now();
    let end = Periods::new(Period::Month, "Europe/Berlin", None).unwrap().end_after(now);
    // Computed from the time of the server, which is the time of this machine; a month may end between two lines.
    let reset = decision.decided_at().plus(decision.reset_after().unwrap());
    assert!(reset >= end || end.since(reset) < Duration::from_secs(32 * 86_400), "{place}: {reset:?}, not {end:?}");
    assert_eq!(decision.remaining(), Some(4), "{place}");
    wrong();
    assert_eq!(left(&limiter).await, 4, "{place}: a peek");
    wrong();
    limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
    assert_eq!(left(&limiter).await, 10, "{place}: a refund");
    wrong();
    limiter.charge(&Request::new("").with_cost(3)).await.unwrap();
    assert_eq!(left(&limiter).await, 7, "{place}: a charge");
    wrong();
    assert_eq!(limiter.take_up_to(&Request::new(""), 5).await.unwrap().granted(), 5, "{place}: several units");
    let mut reserved = limiter.reserve(&Request::new("").with_cost(2), None).await.unwrap();
    wrong();
    limiter.spawn_end(reserved.take_grant(), &Ending::Commit(1.into()));
    while store.background_adjustments() > 0 {
        conformance::poll::pause_task().await;
    }
    assert_eq!(left(&limiter).await, 1, "{place}: a commit in the background");

    let gates = [Gate::for_rule("a", quota(4, Period::Day)), Gate::for_rule("b", quota(3, Period::Week))];
    let plan = |subjects: [u128; 2]| {
        let checks = gates.iter().zip(subjects).map(|(gate, subject)| Check::new(gate, Subject::from_hash(subject), 1));
        Plan::new(checks).unwrap()
    };
    // In a cluster, the subjects of the first are in two slots.
    let across = plan([1 << 96, 2 << 96]);
    for granted in [1, 1, 1, 0] {
        let verdict = wrong().decide(&across).await.unwrap();
        assert_eq!(verdict.granted(), granted, "{place}: a plan of two");
    }
    let plans = [plan([7, 7]), plan([7, 7]), plan([7, 7]), plan([7, 7])];
    let (_, verdicts) = wrong().decide_batch(&plans).await;
    let granted: u64 = verdicts.into_iter().map(|verdict| verdict.unwrap().granted()).sum();
    assert_eq!(granted, 3, "{place}: a batch");
}

/// A plan that is sent again may share a batch with others that were packed by the wrong clock, too.
#[tokio::test]
async fn requests_at_the_same_time_on_an_instance_with_a_wrong_clock_are_all_decided() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let limiter = Limiter::new(RuleSet::new([Rule::new("day", quota(64, Period::Year))]).unwrap(), store.clone());
        store.set_period_clock(Timestamp::from_micros(1_000_000_000_000_000)); // in 2001
        let request = Request::new("");
        let decide = async |turns: usize| {
            // The first calls are under way while others are packed.
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            limiter.check(&request).await
        };
        let decisions = join_all((0..64).map(|number| decide(number % 16))).await;
        assert!(decisions.into_iter().all(|decision| decision.unwrap().is_allowed()), "{kind:?}");
    }
}

/// A stream that goes on after its reservation was committed at the end of a month belongs to that month.
#[tokio::test]
async fn a_late_charge_counts_in_the_period_in_which_the_reservation_was_made() {
    on_every_store(async |fixture| {
        let end = Timestamp::from_micros(1_806_530_400_000_000); // 2027-04-01 00:00 in Berlin
        let limiter = fixture.limiter(quota(100, Period::Month));
        fixture.clock.set(Timestamp::from_micros(end.as_micros() - 180_000_000));
        let mut decision = limiter.reserve(&Request::new("").with_cost(60), None).await.unwrap();
        let mut reservation = decision.take_grant();
        limiter.end(&mut reservation, &Ending::Settle(60.into())).await.unwrap();
        fixture.clock.set(end.plus(Duration::from_secs(60)));
        limiter.end(&mut reservation, &Ending::Settle(90.into())).await.unwrap();
        assert_eq!(left(&limiter).await, 100, "the month before had 40 left");
        limiter.end(&mut reservation, &Ending::Settle(115.into())).await.unwrap();
        assert_eq!(left(&limiter).await, 85, "15 more than it had are debt");
    })
    .await;
}

/// The key of the state was to expire when the larger amount had paid the debt.
#[tokio::test]
async fn a_debt_outlasts_a_lowered_amount() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let limiter = |amount| {
            let rule = Rule::new("day", quota(amount, Period::Day)).with_denial_cache(false);
            Limiter::new(RuleSet::new([rule]).unwrap(), store.clone())
        };
        limiter(1000).charge(&Request::new("").with_cost(2000)).await.unwrap();
        let denied = limiter(100).check(&Request::new("")).await.unwrap();
        let (mut connection, mut kept) = (server.connection(), 0);
        for key in redis::cmd("KEYS").arg("*").query::<Vec<Vec<u8>>>(&mut connection).unwrap() {
            kept = kept.max(redis::cmd("PTTL").arg(key).query::<i64>(&mut connection).unwrap());
        }
        let retry = denied.retry_after().unwrap();
        assert!(!denied.is_allowed() && retry > Duration::from_secs(9 * 86_400), "{retry:?}");
        // A moment has passed since.
        assert!(kept + 60_000 > retry.as_millis() as i64, "{kind:?}: {kept} ms");
    }
}

/// A client that is denied cannot push its quota into debt, nor that of those who share its overflow bucket.
#[tokio::test]
async fn a_denied_request_makes_no_debt() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(quota(10, Period::Day));
        assert_eq!(count_allowed(&limiter, 4, 100).await, 2);
        assert!(limiter.check(&Request::new("").with_cost(0)).await.unwrap().is_allowed());
        limiter.charge(&Request::new("").with_cost(5)).await.unwrap();
        assert!(!limiter.check(&Request::new("").with_cost(0)).await.unwrap().is_allowed(), "a charge does");
        assert_eq!(left(&limiter).await, 0);
        fixture.clock.advance(Duration::from_secs(86_400));
        assert_eq!(left(&limiter).await, 7);
    })
    .await;
}
