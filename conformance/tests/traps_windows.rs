//! Traps 13 to 24: errors in windows by which other limiters exceed the limit, consume units for denied requests, or never admit
//! again. Each is tested on every store. (Trap 23 is about reservations.)

#[path = "traps_windows/quotas.rs"]
mod quotas;

use std::time::Duration;

use conformance::suite::{
    START, count_allowed, key_name, left, limits_with_window, on_every_store, one_limit_of_each_kind,
};
use tidegate::limits::Window;
use tidegate::{Limit, Request, Rule, Timestamp};

const WINDOW: Duration = Duration::from_secs(10);

/// Trap 13: a fixed window admits up to twice its limit around a boundary, as its documentation states. Sliding windows and logs
/// do not.
#[tokio::test]
async fn only_a_fixed_window_admits_twice_its_limit_around_a_boundary() {
    on_every_store(async |fixture| {
        let [_, _, fixed, log, sliding] = limits_with_window(10, WINDOW);
        for (limit, after_the_boundary) in [(fixed, 10), (log, 0), (sliding, 0)] {
            fixture.clock.set(START.plus(Duration::from_micros(9_999_999)));
            let limiter = fixture.limiter(limit);
            assert_eq!(count_allowed(&limiter, 1, 20).await, 10, "{limit:?}");
            fixture.clock.advance(Duration::from_micros(1));
            assert_eq!(count_allowed(&limiter, 1, 20).await, after_the_boundary, "{limit:?}");
        }
    })
    .await;
}

/// Trap 14: a request that was too large consumed the remaining units before it was denied.
#[tokio::test]
async fn a_denied_request_consumes_nothing() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, WINDOW) {
            let limiter = fixture.limiter(limit);
            assert_eq!(count_allowed(&limiter, 7, 1).await, 1);
            assert_eq!(count_allowed(&limiter, 5, 10).await, 0, "{limit:?}");
            assert_eq!(left(&limiter).await, 3, "{limit:?}");
            assert_eq!(count_allowed(&limiter, 1, 10).await, 3, "{limit:?}");
        }
    })
    .await;
}

/// Trap 15: rounding made a sliding window with a limit of 1 deny forever.
#[tokio::test]
async fn a_sliding_window_with_a_limit_of_one_admits_one_per_window() {
    on_every_store(async |fixture| {
        for slices in [1, 2, 5, 10] {
            let limiter = fixture.limiter(Limit::sliding_window(1, WINDOW, slices).unwrap());
            let slice = WINDOW / slices as u32;
            for round in 0..5 {
                assert_eq!(count_allowed(&limiter, 1, 5).await, 1, "{slices} slices, round {round}");
                let retry = limiter.check(&Request::new("")).await.unwrap().retry_after().unwrap();
                assert!(WINDOW <= retry + slice && retry <= WINDOW + slice, "{slices} slices: {retry:?}");
                fixture.clock.advance(retry);
            }
        }
    })
    .await;
}

/// Trap 16: a request was admitted if any unit was left, so the limit was exceeded by up to the cost minus one.
#[tokio::test]
async fn a_request_is_admitted_only_if_its_whole_cost_fits() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, WINDOW) {
            let limiter = fixture.limiter(limit);
            let mut admitted = 0;
            for cost in [3, 5, 7, 4, 3, 2, 9, 1, 1] {
                let fits = admitted + cost <= 10;
                assert_eq!(
                    count_allowed(&limiter, cost, 1).await,
                    u64::from(fits),
                    "{limit:?}: {cost} after {admitted}"
                );
                admitted += if fits { cost } else { 0 };
            }
            assert_eq!(admitted, 10);
        }
    })
    .await;
}

/// Trap 17: two operations differed by one at the boundary.
#[tokio::test]
async fn peek_check_and_take_up_to_agree_at_the_boundary() {
    on_every_store(async |fixture| {
        for limit in limits_with_window(10, WINDOW) {
            for used in 0..=10 {
                let limiter = fixture.limiter(limit);
                assert_eq!(count_allowed(&limiter, used, 1).await, 1);
                let request = Request::new("").with_cost(3);
                let peeked = limiter.peek(&request).await.unwrap();
                assert_eq!(peeked.is_allowed(), used <= 7, "{limit:?} with {used} used");
                let taken = limiter.check(&request).await.unwrap();
                assert_eq!(taken.is_allowed(), peeked.is_allowed(), "{limit:?} with {used} used");
                let rest = limiter.take_up_to(&Request::new(""), 20).await.unwrap().granted();
                assert_eq!(used + rest + 3 * taken.granted(), 10, "{limit:?} with {used} used");
            }
        }
    })
    .await;
}

/// Trap 18: log entries were named by their time, so requests at the same instant counted as one.
#[tokio::test]
async fn requests_of_one_microsecond_all_count() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(Limit::sliding_log(10, WINDOW).unwrap());
        assert_eq!(count_allowed(&limiter, 1, 6).await, 6);
        assert_eq!(count_allowed(&limiter, 2, 5).await, 2);
        assert_eq!(left(&limiter).await, 0);
        fixture.clock.advance(Duration::from_micros(9_999_999));
        assert_eq!(count_allowed(&limiter, 1, 1).await, 0);
        fixture.clock.advance(Duration::from_micros(1));
        assert_eq!(count_allowed(&limiter, 1, 20).await, 10);
    })
    .await;
}

/// Traps 19 and 20: a log ignored costs, or computed the reset from the wrong entry. `retry_after` depends on the oldest entries
/// that must expire, `reset_after` on the newest.
#[tokio::test]
async fn retry_after_of_a_log_is_when_enough_entries_expire() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(Limit::sliding_log(10, WINDOW).unwrap());
        for cost in [4, 3, 3] {
            assert_eq!(count_allowed(&limiter, cost, 1).await, 1);
            fixture.clock.advance(Duration::from_secs(1));
        }
        // After three seconds: 4 units expire at 10 seconds, 3 at 11, 3 at 12.
        for (cost, retry) in [(1, 7), (4, 7), (5, 8), (7, 8), (8, 9), (10, 9)] {
            let denied = limiter.check(&Request::new("").with_cost(cost)).await.unwrap();
            assert_eq!(denied.retry_after(), Some(Duration::from_secs(retry)), "cost {cost}");
            assert_eq!(denied.checks()[0].outcome().reset_after, Duration::from_secs(9), "cost {cost}");
        }
        fixture.clock.advance(Duration::from_secs(7));
        assert_eq!(left(&limiter).await, 4);
        fixture.clock.advance(Duration::from_secs(1));
        assert_eq!(left(&limiter).await, 7);
    })
    .await;
}

/// Trap 21: every decision read the whole log. Here it stays on the server: the reply for a long log is as short as for an empty
/// one, and the next decision removes expired entries.
#[tokio::test]
async fn a_long_log_is_not_sent_and_expired_entries_are_dropped() {
    on_every_store(async |fixture| {
        let Some(server) = fixture.server() else { return };
        let mut connection = server.connection();
        let limiter = fixture.limiter(Limit::sliding_log(5_000, WINDOW).unwrap());
        let name = key_name(limiter.plan(&Request::new("")).checks()[0].key());

        let mut sent = async || {
            let before = bytes_sent(&mut connection);
            assert_eq!(count_allowed(&limiter, 1, 1).await, 1);
            bytes_sent(&mut connection) - before
        };
        let for_an_empty_log = sent().await;
        for _ in 0..2_000 {
            fixture.clock.advance(Duration::from_micros(7));
            assert_eq!(count_allowed(&limiter, 1, 1).await, 1);
        }
        let for_a_long_log = sent().await;
        assert!(for_a_long_log.abs_diff(for_an_empty_log) < 500, "{for_an_empty_log} and {for_a_long_log} bytes");

        let length =
            |connection: &mut redis::Connection| -> u64 { redis::cmd("STRLEN").arg(&name).query(connection).unwrap() };
        assert!(length(&mut connection) > 2_000);
        fixture.clock.advance(WINDOW);
        assert_eq!(count_allowed(&limiter, 1, 1).await, 1);
        assert!(length(&mut connection) < 50);
    })
    .await;
}

/// Trap 22: a month had 30 days and a year 365, so they did not end with the calendar, and some years had 13 months.
#[tokio::test]
async fn calendar_windows_end_with_the_month_or_year() {
    // The last second of a month, the days of the next month, the days from then to the end of the year.
    let ends = [
        (1_830_297_599, 31, 366), // December 2027; 2028 is a leap year
        (1_832_975_999, 29, 335), // January 2028
        (1_835_481_599, 31, 306), // February 2028, on the 29th
        (4_105_123_199, 28, 334), // January 2100; 2100 is not a leap year
        (4_107_542_399, 31, 306), // February 2100, on the 28th
    ];
    on_every_store(async |fixture| {
        for (second, of_month, of_year) in ends {
            let days = |days: u64| Duration::from_secs(days * 86_400);
            for (window, span) in [(Window::MONTH, of_month), (Window::YEAR, of_year)] {
                let limiter = fixture.limiter(Limit::fixed_window(10, window).unwrap());
                fixture.clock.set(Timestamp::from_micros(second * 1_000_000 + 999_999));
                assert_eq!(count_allowed(&limiter, 1, 20).await, 10);
                let last = limiter.check(&Request::new("")).await.unwrap();
                fixture.clock.advance(Duration::from_micros(1));
                let over = window == Window::MONTH || of_year == 366;
                assert_eq!(last.retry_after() == Some(Duration::from_micros(1)), over, "{window:?} after {second}");
                assert_eq!(
                    count_allowed(&limiter, 1, 20).await,
                    if over { 10 } else { 0 },
                    "{window:?} after {second}"
                );
                let first = limiter.check(&Request::new("")).await.unwrap();
                assert_eq!(first.retry_after(), Some(days(span)), "{window:?} after {second}");
            }
        }
    })
    .await;
}

/// Trap 22: the key expired before its month ended, so the month started again.
#[tokio::test]
async fn a_key_lives_until_its_calendar_window_ends() {
    on_every_store(async |fixture| {
        let Some(server) = fixture.server() else { return };
        let mut connection = server.connection();
        fixture.clock.set(Timestamp::from_micros(1_835_481_600_000_000)); // 2028-03-01
        for (window, days) in [(Window::MONTH, 31), (Window::YEAR, 306)] {
            let limiter = fixture.limiter(Limit::fixed_window(10, window).unwrap());
            assert_eq!(count_allowed(&limiter, 1, 1).await, 1);
            let name = key_name(limiter.plan(&Request::new("")).checks()[0].key());
            let left: u64 = redis::cmd("PTTL").arg(&name).query(&mut connection).unwrap();
            assert_eq!(left / 86_400_000, days, "{window:?}");
        }
    })
    .await;
}

/// Trap 24: a lowered limit went below zero or panicked; a raised limit had an effect only after the window.
#[tokio::test]
async fn changing_the_amount_keeps_the_consumption() {
    on_every_store(async |fixture| {
        for kind in 0..5 {
            let with_amount = |amount| fixture.limiter_of([Rule::new("api", one_limit_of_each_kind(amount)[kind])]);
            assert_eq!(count_allowed(&with_amount(10), 8, 1).await, 1);

            assert_eq!(
                left(&with_amount(20)).await,
                12,
                "a raised limit applies at once: {:?}",
                one_limit_of_each_kind(20)[kind]
            );
            assert_eq!(left(&with_amount(5)).await, 0, "{:?}", one_limit_of_each_kind(5)[kind]);
            assert_eq!(count_allowed(&with_amount(5), 1, 3).await, 0, "{:?}", one_limit_of_each_kind(5)[kind]);
            let back = left(&with_amount(10)).await;
            assert!((2..=5).contains(&back), "{back} of {:?}", one_limit_of_each_kind(10)[kind]);
        }
    })
    .await;
}

fn bytes_sent(connection: &mut redis::Connection) -> u64 {
    let info: String = redis::cmd("INFO").arg("stats").query(connection).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    line.unwrap().trim().parse().unwrap()
}
