//! What refunds and charges do to any limit, for random histories.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::limits::{Period, Periods};
use tidegate::spi::algorithm::{self, Op, State, Take};
use tidegate::{Limit, Rate, Timestamp};

use super::{START_MICROS, Subject, after, limit, requests};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// After a refund at once, every number is as if the request had not been made.
    #[test]
    fn a_refund_undoes_its_request(limit in limit(), requests in requests(), cost in 1..5u64) {
        let (subject, _) = after(limit, &requests);
        let before = [1, 2, 7].map(|cost| subject.peek(cost));
        let receipt = subject.take_for_receipt(cost);
        subject.refund(receipt);
        prop_assert_eq!([1, 2, 7].map(|cost| subject.peek(cost)), before);
    }

    /// A refund of any request leaves a log or a window as if that request had not been made.
    #[test]
    fn a_late_refund_undoes_one_request_among_others(requests in requests(), which in 0..80usize, later in 0..2_000_000u64) {
        let (which, amount, window) = (which % requests.len(), 1000, Duration::from_secs(1));
        for limit in [Limit::sliding_log(amount, window).unwrap(), Limit::fixed_window(amount, window).unwrap()] {
            let (whole, without) = (Subject::new(limit), Subject::new(limit));
            let (mut now, mut receipt) = (START_MICROS, None);
            for (index, (gap, cost)) in requests.iter().enumerate() {
                now += gap;
                whole.set(now);
                without.set(now);
                let taken = whole.take_for_receipt(*cost);
                if index == which {
                    receipt = Some(taken);
                } else {
                    without.take(*cost);
                }
            }
            whole.refund(receipt.unwrap());
            for after in [0, later] {
                whole.set(now + after);
                without.set(now + after);
                prop_assert_eq!(whole.peek(999), without.peek(999));
            }
        }
    }

    /// A charge consumes its cost, or what is left.
    #[test]
    fn a_charge_consumes_at_most_what_is_left(limit in limit(), requests in requests(), cost in 0..25u64) {
        let (subject, _) = after(limit, &requests);
        let left = subject.peek(1).remaining;
        subject.charge(cost);
        prop_assert_eq!(subject.peek(1).remaining, left.saturating_sub(cost));
    }
}

#[test]
fn a_refund_or_charge_of_nothing_writes_nothing() {
    let (rate, window, now) =
        (Rate::per_second(3).unwrap(), Duration::from_secs(60), Timestamp::from_micros(START_MICROS));
    let limits = [
        Limit::token_bucket(10, rate).unwrap(),
        Limit::leaky_bucket(rate, 10).unwrap(),
        Limit::fixed_window(10, window).unwrap(),
        Limit::sliding_log(10, window).unwrap(),
        Limit::sliding_window(10, window, 6).unwrap(),
        Limit::quota(10, Periods::utc(Period::Day)).unwrap(),
    ];
    for limit in limits {
        let position = algorithm::position(None, &limit, now, Take::one(1));
        // Nothing was taken yet, so a refund of one unit gives nothing back either.
        for op in [Op::Refund { cost: 0, position }, Op::Refund { cost: 1, position }, Op::Charge { cost: 0, position }]
        {
            assert!(!algorithm::decide(None, &limit, now, op).changes, "{limit:?} {op:?}");
        }
    }
}

#[test]
fn a_log_without_entries_has_expired() {
    let limit = Limit::sliding_log(10, Duration::from_secs(60)).unwrap();
    let expiry = |summary: String| algorithm::expiry(&State::decode(&limit, summary.as_bytes()).unwrap(), &limit);
    assert_eq!(expiry("0,0,0".to_owned()), 0);
    assert_eq!(expiry(format!("1,{START_MICROS},0")), START_MICROS + 60_000_000);
}

#[test]
fn a_take_of_nothing_waits_for_no_place_in_a_queue() {
    let (limit, now) =
        (Limit::leaky_bucket(Rate::per_second(1).unwrap(), 10).unwrap(), Timestamp::from_micros(START_MICROS));
    let full = State::new(&limit, now, Op::Take(Take::one(5)));
    let admits = |cost| {
        let take = Take::one(cost).with_max_delay(Duration::from_secs(1));
        algorithm::decide(full.as_ref(), &limit, now, Op::Take(take)).admitted
    };
    assert_eq!((admits(0), admits(1)), (true, false));
}
