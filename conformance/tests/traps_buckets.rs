//! Traps 1 to 12: errors in the arithmetic of buckets by which other limiters lose or invent tokens. Each is tested on every store.

use std::time::Duration;

use conformance::suite::{START, count_allowed, left, limits_with_window, on_every_store};
use tidegate::spi::MAX_AMOUNT;
use tidegate::{Limit, Rate, Request, Timestamp};

/// Trap 1: a bucket computed its refill from the wrong base: after one token and 8.9 of 10 seconds idle, a client got a burst
/// of 17.
#[tokio::test]
async fn an_idle_bucket_never_exceeds_its_capacity() {
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

/// Trap 2: GCRA with the burst as tolerance admitted one request more as soon as the clock had moved.
#[tokio::test]
async fn a_drained_bucket_grants_only_refilled_tokens() {
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
async fn a_rate_per_second_or_minute_refills_that_many_tokens() {
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

/// Trap 5: times in floating point lose their microseconds when the numbers grow, for example in 2048.
#[tokio::test]
async fn decisions_are_the_same_in_every_year() {
    on_every_store(async |fixture| {
        let mut answers_by_year: Vec<Vec<_>> = Vec::new();
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
            answers_by_year.push(answers);
        }
        assert!(answers_by_year.windows(2).all(|pair| pair[0] == pair[1]), "{answers_by_year:#?}");
    })
    .await;
}

/// Trap 6: `take_up_to` took 2.5 tokens and granted 2, so half a token was lost each time.
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

/// Trap 7: each request set the time of the last refill to now and discarded the fraction of a token refilled so far.
#[tokio::test]
async fn frequent_requests_lose_no_fraction_of_a_token() {
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

/// Trap 9: `remaining` above the limit, a bucket that did not refill under load, a bucket that was refilled completely.
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

/// Trap 10: `retry_after` ignored the fraction of a token already there, or was 0 for a denied request.
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
                let denied_at = denied.decided_at();
                for earlier in [retry / 3, retry / 2, retry.saturating_sub(Duration::from_micros(1))] {
                    fixture.clock.set(denied_at.plus(earlier));
                    let decision = limiter.check(&request).await.unwrap();
                    assert!(!decision.is_allowed(), "{limit:?} {cost}: passed after {earlier:?} of {retry:?}");
                }
                fixture.clock.set(denied_at.plus(retry));
                let decision = limiter.check(&request).await.unwrap();
                assert!(decision.is_allowed(), "{limit:?} {cost}: refused after {retry:?}");
            }
        }
    })
    .await;
}

/// Trap 11: a cost above the capacity got a `retry_after`, or consumed the remaining tokens; a cost of 0 created state.
/// (Costs are unsigned.)
#[tokio::test]
async fn a_cost_above_capacity_is_denied_permanently_and_a_cost_of_zero_creates_no_state() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, Duration::from_secs(10)) {
            let limiter = fixture.limiter(limit);
            let keys = fixture.keys();
            let denied = limiter.check(&Request::new("").with_cost(11)).await.unwrap();
            assert!(denied.is_permanent() && denied.retry_after().is_none(), "{limit:?}: {denied:?}");
            assert_eq!(count_allowed(&limiter, 0, 3).await, 3, "{limit:?}");
            assert_eq!(fixture.keys(), keys, "{limit:?}");

            assert_eq!(count_allowed(&limiter, 10, 1).await, 1, "nothing was consumed: {limit:?}");
            fixture.clock.advance(Duration::from_millis(1));
            let before = limiter.peek(&Request::new("")).await.unwrap();
            assert_eq!(count_allowed(&limiter, 0, 1).await, 1, "{limit:?}");
            let after = limiter.peek(&Request::new("")).await.unwrap();
            assert_eq!(before.checks()[0].outcome(), after.checks()[0].outcome(), "{limit:?}");
        }
    })
    .await;
}

/// Trap 12: `retry_after` was a second too long, for safety. Here it is rounded up to the next microsecond.
#[tokio::test]
async fn waits_are_rounded_up_to_the_next_microsecond() {
    on_every_store(async |fixture| {
        // Tokens per second; microseconds until one token and until three tokens are refilled.
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
