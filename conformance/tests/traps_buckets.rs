//! Traps 1 to 12: the arithmetic of buckets, where other limiters lost or invented tokens. Each on every store.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use conformance::suite::{START, count_allowed, left, limits_with_window, on_every_store};
use tidegate::spi::MAX_AMOUNT;
use tidegate::{Limit, Rate, Request, Timestamp};

/// Trap 1: a bucket that measured its debt from the wrong floor gave a client who spent one token and idled 8.9 of 10
/// seconds a burst of 17.
#[tokio::test]
async fn after_idling_there_is_never_more_than_a_full_bucket() {
    on_every_store(async |fixture| {
        let one_per_second = Rate::per_second(1).unwrap();
        for limit in [token_bucket(10, one_per_second), Limit::leaky_bucket(one_per_second, 9).unwrap()] {
            for idle_ms in [0, 1, 500, 999, 1_000, 5_000, 8_900, 9_999, 10_000, 12_000, 13_000, 3_600_000] {
                let limiter = fixture.limiter(limit);
                assert_eq!(count_allowed(&limiter, 1, 1).await, 1);
                fixture.clock.advance(Duration::from_millis(idle_ms));
                let refilled = (idle_ms / 1_000).min(1);
                assert_eq!(count_allowed(&limiter, 1, 25).await, 9 + refilled, "{limit:?} after {idle_ms} ms");
            }
        }
    })
    .await;
}

/// Trap 2: tolerance taken for burst let one more cell through once the clock had moved.
#[tokio::test]
async fn a_drained_bucket_gives_what_came_in_and_not_one_more() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(token_bucket(10, Rate::per_second(1).unwrap()));
        let mut admitted = count_allowed(&limiter, 1, 20).await;
        for quarters in 0..40 {
            assert_eq!(admitted, 10 + quarters / 4, "after {quarters} quarters of a second");
            fixture.clock.advance(Duration::from_millis(250));
            admitted += count_allowed(&limiter, 1, 3).await;
        }
    })
    .await;
}

/// Trap 3: a "burst" of 10 that admits 11, and a `per_second(n)` that means one every n seconds.
#[tokio::test]
async fn per_second_and_per_minute_mean_what_they_say() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(token_bucket(10, Rate::per_hour(1).unwrap()));
        assert_eq!(count_allowed(&limiter, 1, 20).await, 10);

        let limiter = fixture.limiter(token_bucket(4_000, Rate::per_second(4_000).unwrap()));
        assert_eq!(count_allowed(&limiter, 4_000, 2).await, 1);
        fixture.clock.advance(Duration::from_micros(250));
        assert_eq!(count_allowed(&limiter, 1, 2).await, 1);
        fixture.clock.advance(Duration::from_secs(1));
        assert_eq!(count_allowed(&limiter, 4_000, 2).await, 1);
    })
    .await;
}

/// Trap 4: the time of one token rounded to 0 above 1,000 per second, and huge parameters that never limited.
#[tokio::test]
async fn slow_fast_and_huge_rates_are_all_exact() {
    let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
    // A rate, and the microsecond at which an empty bucket has its first token.
    let rates = [
        (1, 30 * day, 2_592_000_000_000),
        (1, day, 86_400_000_000),
        (1_000_001, day, 86_400), // 86,399.91
        (7, second, 142_858),     // 142,857.14
        (999_983, second, 2),     // 1.00002
        (1_000_000, second, 1),
        (10_000_000, second, 1), // 0.1
    ];
    on_every_store(async |fixture| {
        for (amount, period, first) in rates {
            let limiter = fixture.limiter(token_bucket(100, Rate::new(amount, period).unwrap()));
            assert_eq!(count_allowed(&limiter, 1, 101).await, 100, "{amount} in {period:?}");
            fixture.clock.advance(Duration::from_micros(first - 1));
            assert_eq!(count_allowed(&limiter, 1, 1).await, 0, "{amount} in {period:?}");
            fixture.clock.advance(Duration::from_micros(1));
            let came = (u128::from(first) * u128::from(amount) / period.as_micros()) as u64;
            assert_eq!(count_allowed(&limiter, 1, 20).await, came, "{amount} in {period:?}");
        }
        for (capacity, rate, wait) in [
            (MAX_AMOUNT, Rate::per_second(10_000_000).unwrap(), Duration::from_micros(1)),
            (MAX_AMOUNT, Rate::new(MAX_AMOUNT, second).unwrap(), Duration::from_micros(1)),
            (1_200, Rate::new(1, 30 * day).unwrap(), 30 * day),
        ] {
            let limiter = fixture.limiter(token_bucket(capacity, rate));
            assert_eq!(count_allowed(&limiter, capacity - 1, 2).await, 1, "{capacity} at {rate}");
            assert_eq!(count_allowed(&limiter, 1, 2).await, 1, "{capacity} at {rate}");
            fixture.clock.advance(wait);
            let came = (wait.as_micros() * u128::from(rate.amount()) / rate.period().as_micros()) as u64;
            assert_eq!(left(&limiter).await, came, "{capacity} at {rate}");
        }
    })
    .await;
}

/// Trap 5: times in floating point lose their microseconds in 2048, or whenever the numbers grow.
#[tokio::test]
async fn the_year_does_not_change_an_answer() {
    on_every_store(async |fixture| {
        let mut told: Vec<Vec<_>> = Vec::new();
        for year in [1970, 2001, 2026, 2048, 2100, 2112] {
            fixture.clock.set(Timestamp::from_micros((year - 1970) * 31_557_600_000_000));
            let limiter = fixture.limiter(token_bucket(3, Rate::per_second(7).unwrap()));
            let mut answers = Vec::new();
            for step in 0..12 {
                let decision = limiter.check(&Request::new("")).await.unwrap();
                let outcome = *decision.checks()[0].outcome();
                answers.push(outcome);
                fixture.clock.advance(Duration::from_micros(step * 11_113));
            }
            told.push(answers);
        }
        assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "{told:#?}");
    })
    .await;
}

/// Trap 6: "as many as there are" took 2.5 tokens and granted 2: half a token was lost each time.
#[tokio::test]
async fn take_up_to_keeps_the_fraction_of_a_token() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(token_bucket(10, Rate::per_second(2).unwrap()));
        assert_eq!(count_allowed(&limiter, 10, 1).await, 1);
        fixture.clock.advance(Duration::from_millis(1_250));
        assert_eq!(limiter.take_up_to(&Request::new(""), 5).await.unwrap().granted(), 2);
        assert_eq!(count_allowed(&limiter, 1, 1).await, 0);
        fixture.clock.advance(Duration::from_millis(250));
        assert_eq!(count_allowed(&limiter, 1, 2).await, 1);
    })
    .await;
}

/// Trap 7: each look at the bucket set "last refill" to now and threw away the part of a token that had come so far.
#[tokio::test]
async fn asking_often_loses_no_fraction_of_a_token() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(token_bucket(2, Rate::per_second(7).unwrap()));
        let (mut admitted, mut elapsed) = (0, 0);
        while elapsed < 3_000_000 {
            admitted += count_allowed(&limiter, 1, 3).await;
            assert_eq!(admitted, 2 + elapsed * 7 / 1_000_000, "after {elapsed} µs");
            fixture.clock.advance(Duration::from_micros(20_011));
            elapsed += 20_011;
        }
    })
    .await;
}

/// Trap 8: after a long idle time the refill overflowed into a negative number of tokens.
#[tokio::test]
async fn a_bucket_that_idled_for_eighty_years_is_full() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, Duration::from_secs(1)) {
            fixture.clock.set(START);
            let limiter = fixture.limiter(limit);
            assert_eq!(count_allowed(&limiter, 10, 1).await, 1);
            fixture.clock.advance(Duration::from_secs(80 * 31_557_600));
            assert_eq!(left(&limiter).await, 10, "{limit:?}");
            assert_eq!(count_allowed(&limiter, 1, 20).await, 10, "{limit:?}");
        }
    })
    .await;
}

/// Trap 9: more remaining than the limit, a bucket that did not leak while it was hit, one that was refilled whole.
#[tokio::test]
async fn a_bucket_under_constant_load_refills_at_its_rate() {
    on_every_store(async |fixture| {
        for limit in &limits_with_window(10, Duration::from_secs(10))[..2] {
            let limiter = fixture.limiter(*limit);
            assert_eq!(count_allowed(&limiter, 10, 1).await, 1);
            for tenth in 1..=150 {
                fixture.clock.advance(Duration::from_millis(100));
                let decision = limiter.check(&Request::new("")).await.unwrap();
                assert_eq!(decision.is_allowed(), tenth % 10 == 0, "{limit:?} after {tenth} tenths");
                assert_eq!(decision.remaining(), Some(0), "{limit:?} after {tenth} tenths");
            }
            fixture.clock.advance(Duration::from_secs(60));
            assert_eq!(left(&limiter).await, 10, "never more than the limit: {limit:?}");
        }
    })
    .await;
}

/// Trap 10: a wait that ignored the part of a token already there, or was 0 for a request that was refused.
#[tokio::test]
async fn a_request_passes_at_its_retry_and_not_a_microsecond_earlier() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, Duration::from_secs(3)) {
            for cost in 1..=10 {
                fixture.clock.set(START);
                let limiter = fixture.limiter(limit);
                for early in [3, 4, 3] {
                    assert_eq!(count_allowed(&limiter, early, 1).await, 1);
                    fixture.clock.advance(Duration::from_micros(123_457));
                }
                let request = Request::new("").with_cost(cost);
                let denied = limiter.check(&request).await.unwrap();
                let Some(retry) = denied.retry_after() else {
                    assert!(denied.is_allowed(), "{limit:?} {cost}: {denied:?}");
                    continue;
                };
                assert!(retry > Duration::ZERO);
                let asked = denied.decided_at();
                for earlier in [retry / 3, retry / 2, retry.saturating_sub(Duration::from_micros(1))] {
                    fixture.clock.set(asked.plus(earlier));
                    let decision = limiter.check(&request).await.unwrap();
                    assert!(!decision.is_allowed(), "{limit:?} {cost}: passed after {earlier:?} of {retry:?}");
                }
                fixture.clock.set(asked.plus(retry));
                let decision = limiter.check(&request).await.unwrap();
                assert!(decision.is_allowed(), "{limit:?} {cost}: refused after {retry:?}");
            }
        }
    })
    .await;
}

/// Trap 11: a cost above the capacity was told to come back later, or took what was left; a cost of 0 created state.
/// (A negative cost cannot be written down.)
#[tokio::test]
async fn an_impossible_cost_is_refused_for_good_and_a_cost_of_zero_leaves_no_trace() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, Duration::from_secs(10)) {
            let limiter = fixture.limiter(limit);
            let keys = fixture.keys();
            let denied = limiter.check(&Request::new("").with_cost(11)).await.unwrap();
            assert!(denied.is_permanent() && denied.retry_after().is_none(), "{limit:?}: {denied:?}");
            assert_eq!(count_allowed(&limiter, 0, 3).await, 3, "{limit:?}");
            assert_eq!(fixture.keys(), keys, "{limit:?}");

            assert_eq!(count_allowed(&limiter, 10, 1).await, 1, "nothing was taken: {limit:?}");
            fixture.clock.advance(Duration::from_millis(1));
            let before = limiter.peek(&Request::new("")).await.unwrap();
            assert_eq!(count_allowed(&limiter, 0, 1).await, 1, "{limit:?}");
            let after = limiter.peek(&Request::new("")).await.unwrap();
            assert_eq!(before.checks()[0].outcome(), after.checks()[0].outcome(), "{limit:?}");
        }
    })
    .await;
}

/// Trap 12: a second was added to be safe. Rounding is up, to the microsecond, and only where there is a fraction.
#[tokio::test]
async fn waits_are_rounded_up_and_not_one_further() {
    on_every_store(async |fixture| {
        // Tokens a second; microseconds until one comes, and until three have come.
        for (rate, retry, reset) in [(1, 1_000_000, 3_000_000), (2, 500_000, 1_500_000), (7, 142_858, 428_572)] {
            let limiter = fixture.limiter(token_bucket(3, Rate::per_second(rate).unwrap()));
            assert_eq!(count_allowed(&limiter, 1, 3).await, 3);
            let denied = limiter.check(&Request::new("")).await.unwrap();
            assert_eq!(denied.retry_after(), Some(Duration::from_micros(retry)), "{rate}/s");
            assert_eq!(denied.checks()[0].outcome().reset_after, Duration::from_micros(reset), "{rate}/s");
        }
    })
    .await;
}

fn token_bucket(capacity: u64, refill: Rate) -> Limit {
    Limit::token_bucket(capacity, refill).unwrap()
}
