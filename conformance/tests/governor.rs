//! The crate `governor` is an independent implementation of the token bucket. Where its whole nanoseconds are exact, both admit the same.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use proptest::prelude::*;
use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_token_bucket_admits_what_governor_admits(
        capacity in 1_u32..50,
        // A token takes a whole number of microseconds.
        rate in prop::sample::select(vec![1_u32, 2, 4, 5, 8, 10, 100, 1_000]),
        requests in prop::collection::vec((0_u64..2_000_000, 1_u32..4), 1..100),
    ) {
        let quota = Quota::per_second(NonZeroU32::new(rate).unwrap()).allow_burst(NonZeroU32::new(capacity).unwrap());
        let their_clock = FakeRelativeClock::default();
        let theirs = RateLimiter::direct_with_clock(quota, their_clock.clone());
        let our_clock = ManualClock::default();
        let limit = Limit::token_bucket(capacity.into(), Rate::per_second(rate.into()).unwrap()).unwrap();
        let rules = RuleSet::new([Rule::new("api", limit)]).unwrap();
        let ours = Limiter::new(rules, MemoryStore::new().with_clock(our_clock.clone()));
        for (micros, cost) in requests {
            their_clock.advance(Duration::from_micros(micros));
            our_clock.advance(Duration::from_micros(micros));
            let admitted = ours.check_now(&Request::new("").with_cost(cost.into())).is_allowed();
            // Its outer error means that the cost is above the capacity.
            let expected = theirs.check_n(NonZeroU32::new(cost).unwrap()).is_ok_and(|admitted| admitted.is_ok());
            prop_assert_eq!(admitted, expected, "after {} µs, {} units", micros, cost);
        }
    }
}
