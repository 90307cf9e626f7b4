//! Changed limits: changing an amount keeps the state, changing the shape starts afresh.

use std::sync::Arc;
use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::long_timeout_options;
use tidegate::limits::{Period, Periods, Window};
use tidegate::spi::Store;
use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, Timestamp};

const HOUR: Duration = Duration::from_secs(3600);

/// Consumes `cost` under the first limit and returns what remains under the second.
async fn remaining_after_change(
    store: &(impl Store + Clone),
    user: &str,
    before: Limit,
    cost: u64,
    after: Limit,
) -> u64 {
    let limiter =
        |limit| Limiter::new(RuleSet::new([Rule::new("r", limit).with_per(["user"])]).unwrap(), store.clone());
    let request = Request::new("").with_attribute("user", user);
    assert!(limiter(before).check(&request.clone().with_cost(cost)).await.unwrap().is_allowed());
    limiter(after).peek(&request).await.unwrap().remaining().unwrap()
}

/// (description, limit before, consumed, limit after, remaining)
fn changes() -> Vec<(&'static str, Limit, u64, Limit, u64)> {
    let bucket = |capacity, per_hour| Limit::token_bucket(capacity, Rate::per_hour(per_hour).unwrap()).unwrap();
    let queue = |queue| Limit::leaky_bucket(Rate::per_hour(1).unwrap(), queue).unwrap();
    let fixed = |limit| Limit::fixed_window(limit, HOUR).unwrap();
    let month = |limit| Limit::fixed_window(limit, Window::MONTH).unwrap();
    let quota = |amount, period, zone| Limit::quota(amount, Periods::new(period, zone, None).unwrap()).unwrap();
    let log = |limit| Limit::sliding_log(limit, HOUR).unwrap();
    let sliding = |limit| Limit::sliding_window(limit, HOUR, 6).unwrap();
    vec![
        ("a larger bucket helps at once", bucket(10, 1), 10, bucket(25, 1), 15),
        ("a smaller bucket is never below empty", bucket(10, 1), 8, bucket(5, 1), 0),
        ("a smaller bucket keeps what was spent", bucket(10, 1), 2, bucket(5, 1), 3),
        ("a faster refill brings the debt back sooner", bucket(10, 1), 5, bucket(10, 10), 0),
        ("a longer queue helps at once", queue(2), 3, queue(7), 5),
        ("a larger window limit helps at once", fixed(10), 10, fixed(12), 2),
        ("a smaller window limit is never below zero", fixed(10), 10, fixed(3), 0),
        ("a larger log helps at once", log(10), 10, log(12), 2),
        ("a smaller log is never below zero", log(10), 10, log(3), 0),
        ("a larger sliding limit helps at once", sliding(10), 10, sliding(12), 2),
        ("a smaller sliding limit is never below zero", sliding(10), 10, sliding(3), 0),
        ("another window starts afresh", fixed(10), 10, Limit::fixed_window(10, HOUR * 2).unwrap(), 10),
        ("a month does not share with thirty days", Limit::fixed_window(10, HOUR * 720).unwrap(), 10, month(10), 10),
        ("a month does not share with a year", month(10), 10, Limit::fixed_window(10, Window::YEAR).unwrap(), 10),
        ("a larger limit of a month helps at once", month(10), 10, month(12), 2),
        ("a larger quota helps at once", quota(10, Period::Month, "UTC"), 10, quota(12, Period::Month, "UTC"), 2),
        ("a smaller quota is never below zero", quota(10, Period::Day, "UTC"), 10, quota(3, Period::Day, "UTC"), 0),
        ("another zone keeps the month", quota(10, Period::Month, "UTC"), 4, quota(10, Period::Month, "Asia/Tokyo"), 6),
        ("other periods start afresh", quota(10, Period::Month, "UTC"), 10, quota(10, Period::Year, "UTC"), 10),
        ("a quota does not share with a month", month(10), 10, quota(10, Period::Month, "UTC"), 10),
        ("other slices start afresh", sliding(10), 10, Limit::sliding_window(10, HOUR, 3).unwrap(), 10),
        ("another kind starts afresh", fixed(10), 10, log(10), 10),
    ]
}

async fn amounts_keep_the_state_and_the_shape_starts_afresh(store: impl Store + Clone) {
    for (what, before, spent, after, remaining) in changes() {
        assert_eq!(remaining_after_change(&store, what, before, spent, after).await, remaining, "{what}");
    }
}

/// The larger limit is used up; the smaller one, which some instances still have, denies; what the larger one has left then.
async fn a_smaller_bucket_leaves_a_larger_one_the_difference_and_a_window_nothing(store: impl Store + Clone) {
    let hourly = Rate::per_hour(1).unwrap();
    let limits = |amount: u64| {
        [
            (Limit::token_bucket(amount, hourly).unwrap(), 10),
            (Limit::fixed_window(amount, HOUR).unwrap(), 0),
            (Limit::sliding_log(amount, HOUR).unwrap(), 0),
            (Limit::sliding_window(amount, HOUR, 6).unwrap(), 0),
        ]
    };
    for ((smaller, _), (larger, left)) in limits(10).into_iter().zip(limits(20)) {
        let limiter = |limit| Limiter::new(RuleSet::new([Rule::new("rolling", limit)]).unwrap(), store.clone());
        let (smaller, larger) = (limiter(smaller), limiter(larger));
        assert!(larger.check(&Request::new("").with_cost(20)).await.unwrap().is_allowed());
        assert!(!smaller.check(&Request::new("")).await.unwrap().is_allowed());
        assert_eq!(larger.peek(&Request::new("")).await.unwrap().remaining(), Some(left));
    }
}

#[tokio::test]
async fn changed_amounts_keep_the_state_in_memory() {
    let clock = ManualClock::starting_at(Timestamp::from_micros(1_800_000_000_000_000));
    let store = Arc::new(MemoryStore::new().with_clock(clock));
    amounts_keep_the_state_and_the_shape_starts_afresh(Arc::clone(&store)).await;
    a_smaller_bucket_leaves_a_larger_one_the_difference_and_a_window_nothing(store).await;
}

#[tokio::test]
async fn changed_amounts_keep_the_state_in_redis() {
    for kind in KINDS {
        let server = Server::start(kind);
        let clock = ManualClock::starting_at(Timestamp::from_micros(1_800_000_000_000_000));
        let store = server.store_with(long_timeout_options().with_clock(clock)).await;
        amounts_keep_the_state_and_the_shape_starts_afresh(store.clone()).await;
        a_smaller_bucket_leaves_a_larger_one_the_difference_and_a_window_nothing(store).await;
    }
}

/// Rates with different remainders: a state written under one rate is rounded up under the other.
#[tokio::test]
async fn a_changed_rate_refunds_nothing_by_rounding() {
    let clock = ManualClock::starting_at(Timestamp::from_micros(1_800_000_000_000_000));
    let store = Arc::new(MemoryStore::new().with_clock(clock.clone()));
    let bucket = |amount| Limit::token_bucket(10, Rate::per_second(amount).unwrap()).unwrap();
    let left = remaining_after_change(&store, "ann", bucket(7), 9, bucket(3)).await;
    // 9/7 s of debt are 27/7 tokens at 3 a second: 6 are left, and a seventh was never refilled.
    assert_eq!(left, 6);
}
