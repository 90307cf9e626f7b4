//! Invalid costs, limits and rates, and the bounds that refuse them, on every store. (`bad_server.rs` has bad servers.)

use std::time::Duration;

use conformance::suite::{count_allowed, left, limits_with_window, on_every_store, one_limit_of_each_kind};
use tidegate::limits::LimitError;
use tidegate::rules::RuleError;
use tidegate::spi::{MAX_AMOUNT, MAX_CHECKS, MAX_LOG_LIMIT, MAX_SLICES};
use tidegate::{Ending, Limit, Rate, Request, Rule, RuleMode, RuleSet};

const SECOND: Duration = Duration::from_secs(1);

/// Trap 11: with a `retry_after`, such a request would be retried for ever.
#[tokio::test]
async fn a_cost_above_the_limit_is_denied_permanently_and_consumes_nothing() {
    on_every_store(async |fixture| {
        for limit in one_limit_of_each_kind(10) {
            let limiter = fixture.limiter(limit);
            for cost in [11, 12, 1_000_000, MAX_AMOUNT - 1, MAX_AMOUNT, MAX_AMOUNT + 1, u64::MAX] {
                let mut denied = limiter.check(&Request::new("").with_cost(cost)).await.unwrap();
                assert!(!denied.is_allowed() && denied.is_permanent(), "{limit:?} {cost}");
                assert_eq!((denied.retry_after(), denied.remaining()), (None, Some(10)), "{limit:?} {cost}");
                assert!(denied.take_grant().is_empty(), "{limit:?} {cost}");
            }
            assert_eq!(fixture.keys(), 0, "{limit:?}");
            assert_eq!(count_allowed(&limiter, 10, 1).await, 1, "{limit:?}");
            limiter.forget(&Request::new("")).await.unwrap();
        }
    })
    .await;
}

/// The largest limit admits the largest amount; a larger cost is refused like any cost above its limit.
#[tokio::test]
async fn the_largest_limit_refuses_a_cost_above_it() {
    on_every_store(async |fixture| {
        for limit in [
            Limit::token_bucket(MAX_AMOUNT, Rate::per_second(10_000_000).unwrap()).unwrap(),
            Limit::leaky_bucket(Rate::per_second(10_000_000).unwrap(), MAX_AMOUNT - 1).unwrap(),
            Limit::fixed_window(MAX_AMOUNT, SECOND).unwrap(),
            Limit::sliding_window(MAX_AMOUNT, SECOND, 10).unwrap(),
        ] {
            let limiter = fixture.limiter(limit);
            for cost in [MAX_AMOUNT + 1, u64::MAX] {
                let denied = limiter.check(&Request::new("").with_cost(cost)).await.unwrap();
                assert!(denied.is_permanent(), "{limit:?} {cost}: {denied:?}");
            }
            assert_eq!(count_allowed(&limiter, MAX_AMOUNT, 2).await, 1, "{limit:?}");
            assert_eq!(left(&limiter).await, 0, "{limit:?}");
        }
    })
    .await;
}

/// A request of cost 0 is allowed on a full or empty limit, and writes nothing.
#[tokio::test]
async fn a_cost_of_zero_consumes_and_creates_nothing() {
    on_every_store(async |fixture| {
        for limit in one_limit_of_each_kind(10) {
            let limiter = fixture.limiter(limit);
            let free = Request::new("").with_cost(0);
            let mut decision = limiter.check(&free).await.unwrap();
            assert_eq!((decision.is_allowed(), decision.remaining()), (true, Some(10)), "{limit:?}");
            assert_eq!(decision.delay(), Duration::ZERO, "{limit:?}");
            assert_eq!(limiter.take_up_to(&free, 7).await.unwrap().granted(), 7, "{limit:?}");
            limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
            limiter.charge(&free).await.unwrap();
            assert_eq!(fixture.keys(), 0, "{limit:?}");

            assert_eq!(count_allowed(&limiter, 10, 1).await, 1, "{limit:?}");
            let decision = limiter.check(&free).await.unwrap();
            assert_eq!((decision.is_allowed(), decision.remaining()), (true, Some(0)), "{limit:?}");
            assert_eq!(decision.delay(), Duration::ZERO, "{limit:?}");
            limiter.forget(&Request::new("")).await.unwrap();
            assert_eq!(fixture.keys(), 0, "{limit:?}");
        }
    })
    .await;
}

/// A loop whose last round takes up to 0 must not pay for one unit too many.
#[tokio::test]
async fn take_up_to_zero_takes_nothing() {
    on_every_store(async |fixture| {
        for limit in one_limit_of_each_kind(10) {
            let limiter = fixture.limiter(limit);
            let none = limiter.take_up_to(&Request::new(""), 0).await.unwrap();
            assert_eq!(none.granted(), 0, "{limit:?}");
            assert_eq!(fixture.keys(), 0, "{limit:?}");
        }
    })
    .await;
}

/// A limit of 0 permanently denies every cost above 0.
#[tokio::test]
async fn a_limit_of_zero_denies_every_request() {
    on_every_store(async |fixture| {
        for limit in [
            Limit::token_bucket(0, Rate::per_second(10).unwrap()).unwrap(),
            Limit::fixed_window(0, SECOND).unwrap(),
            Limit::sliding_log(0, SECOND).unwrap(),
            Limit::sliding_window(0, SECOND, 10).unwrap(),
        ] {
            let limiter = fixture.limiter(limit);
            for time in 0..3 {
                let denied = limiter.check(&Request::new("")).await.unwrap();
                assert!(denied.is_permanent(), "{limit:?} at {time}: {denied:?}");
                assert_eq!((denied.remaining(), denied.retry_after()), (Some(0), None), "{limit:?}");
                fixture.clock.advance(SECOND);
            }
            assert_eq!(limiter.take_up_to(&Request::new(""), 5).await.unwrap().granted(), 0, "{limit:?}");
            limiter.charge(&Request::new("")).await.unwrap();
            assert_eq!(count_allowed(&limiter, 0, 1).await, 1, "{limit:?}");
            assert_eq!(fixture.keys(), 0, "{limit:?}");
        }
    })
    .await;
}

/// Products above 2^64 neither overflow nor give a wrong decision.
#[tokio::test]
async fn huge_unit_counts_and_costs_do_not_overflow() {
    on_every_store(async |fixture| {
        let huge = Limit::fixed_window(MAX_AMOUNT, SECOND).unwrap();
        for limit in limits_with_window(10, SECOND) {
            // The first rule admits a huge number of units; a second check doubles the cost.
            let limiter = fixture.limiter_of([
                Rule::new("wide", huge).with_cost(1),
                Rule::new("beside", limit).with_mode(RuleMode::Shadow),
                Rule::new("small", limit).with_cost(1).with_mode(RuleMode::Shadow),
            ]);
            let decision = limiter.check(&Request::new("")).await.unwrap();
            assert!(decision.is_allowed() && decision.shadow_would_reject().next().is_none(), "{limit:?}");
            let absurd = Request::new("").with_cost(u64::MAX);
            let mut decision = limiter.take_up_to(&absurd, u64::MAX).await.unwrap();
            assert_eq!(decision.granted(), MAX_AMOUNT - 1, "{limit:?}");
            let rejecting: Vec<_> = decision.shadow_would_reject().collect();
            assert_eq!(rejecting, ["beside", "small"], "{limit:?}");
            limiter.charge(&absurd).await.unwrap();
            limiter.end(&mut decision.take_grant(), &Ending::Refund).await.unwrap();
            limiter.forget(&absurd).await.unwrap();
        }
    })
    .await;
}

/// The error names the field and the bound.
#[test]
fn the_error_of_an_invalid_limit_names_the_field_and_its_bound() {
    let rate = Rate::per_second(1).unwrap();
    let years = |years: u64| Duration::from_secs(years * 31_557_600);
    let half = Duration::from_nanos(1_500);
    let too_much = MAX_AMOUNT + 1;
    // The field, a text that the message must contain, and the attempt.
    let limits: [(&str, &str, Result<Limit, LimitError>); 15] = [
        (
            "token_bucket.capacity",
            "4503599627370495",
            Limit::token_bucket(too_much, Rate::per_second(10_000_000).unwrap()),
        ),
        ("token_bucket.capacity", "100 years", Limit::token_bucket(MAX_AMOUNT, rate)),
        ("token_bucket.capacity", "876600", Limit::token_bucket(876_601, Rate::per_hour(1).unwrap())),
        ("leaky_bucket.queue", "4503599627370494", Limit::leaky_bucket(rate, MAX_AMOUNT)),
        ("leaky_bucket.queue", "4503599627370494", Limit::leaky_bucket(rate, u64::MAX)),
        ("fixed_window.limit", "4503599627370495", Limit::fixed_window(too_much, SECOND)),
        ("fixed_window.window", "at least 1", Limit::fixed_window(1, Duration::ZERO)),
        ("fixed_window.window", "whole number of microseconds", Limit::fixed_window(1, half)),
        ("fixed_window.window", "100 years", Limit::fixed_window(1, years(101))),
        ("sliding_log.limit", "65535", Limit::sliding_log(MAX_LOG_LIMIT + 1, SECOND)),
        ("sliding_log.window", "100 years", Limit::sliding_log(1, Duration::from_secs(u64::MAX))),
        ("sliding_window.limit", "4503599627370495", Limit::sliding_window(u64::MAX, SECOND, 1)),
        ("sliding_window.slices", "smallest value, 1", Limit::sliding_window(1, SECOND, 0)),
        ("sliding_window.slices", "120", Limit::sliding_window(1, SECOND, MAX_SLICES + 1)),
        ("sliding_window.slices", "7 slices", Limit::sliding_window(1, SECOND, 7)),
    ];
    for (field, bound, limit) in limits {
        let error = limit.unwrap_err();
        assert_eq!(error.field(), field);
        let message = error.to_string();
        assert!(message.starts_with(field) && message.contains(bound), "{message}");
    }
    let rates = [
        ("rate.amount", "smallest value, 1", Rate::per_second(0)),
        ("rate.amount", "4503599627370495", Rate::per_second(too_much)),
        ("rate.period", "at least 1", Rate::new(1, Duration::ZERO)),
        ("rate.period", "100 years", Rate::new(1, years(101))),
    ];
    for (field, bound, rate) in rates {
        let message = rate.unwrap_err().to_string();
        assert!(message.starts_with(field) && message.contains(bound), "{message}");
    }
}

/// Values at the bounds are accepted: rates from one in 30 days to ten million per second, and the maximum of each field.
#[test]
fn values_at_the_bounds_are_accepted() {
    let (slowest, fastest) = (Rate::new(1, 30 * 86_400 * SECOND).unwrap(), Rate::per_second(10_000_000).unwrap());
    let century = Duration::from_secs(100 * 31_557_600);
    let limits = [
        Limit::token_bucket(1_000, slowest),
        Limit::token_bucket(MAX_AMOUNT, fastest),
        Limit::token_bucket(876_600, Rate::per_hour(1).unwrap()),
        Limit::leaky_bucket(fastest, 0),
        Limit::leaky_bucket(fastest, MAX_AMOUNT - 1),
        Limit::fixed_window(MAX_AMOUNT, century),
        Limit::fixed_window(1, Duration::from_micros(1)),
        Limit::sliding_log(MAX_LOG_LIMIT, century),
        Limit::sliding_window(MAX_AMOUNT, century, 1),
        Limit::sliding_window(MAX_AMOUNT, SECOND, 100),
    ];
    for limit in limits {
        assert!(limit.is_ok(), "{limit:?}");
    }
    assert!(Rate::new(MAX_AMOUNT, Duration::from_micros(1)).is_ok());
}

/// The same for rules that conflict.
#[test]
fn the_error_of_an_invalid_rule_names_the_rule_and_the_fix() {
    let limit = one_limit_of_each_kind(5)[0];
    let other = one_limit_of_each_kind(6)[0];
    let many = (0..=MAX_CHECKS).map(|number| Rule::new(format!("r{number}"), limit)).collect();
    let long = "x".repeat(65);
    let cases: [(&str, &str, Vec<Rule>); 7] = [
        ("", "1 to 64", vec![Rule::new("", limit)]),
        (&long, "1 to 64", vec![Rule::new(long.as_str(), limit)]),
        ("a", "taken", vec![Rule::new("a", limit), Rule::new("a", limit).with_action("x")]),
        ("a", "\"day\"", vec![Rule::new("a", limit).with_limit("day", limit).with_limit("day", limit)]),
        ("a", "4503599627370495", vec![Rule::new("a", limit).with_cost(u64::MAX)]),
        (
            "b",
            "\"shared\"",
            vec![Rule::new("a", limit).with_budget("shared"), Rule::new("b", other).with_budget("shared")],
        ),
        ("r32", "at most 32", many),
    ];
    for (rule, words, rules) in cases {
        let error: RuleError = RuleSet::new(rules).unwrap_err();
        assert_eq!(error.rule(), rule);
        assert!(error.to_string().contains(words), "{error}");
    }
}
