//! Each limit satisfies the formula in its documentation, for random histories.

#[path = "properties/corrections.rs"]
mod corrections;
#[path = "properties/quotas.rs"]
mod quotas;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::limits::Window;
use tidegate::spi::Outcome;
use tidegate::{Ending, Grant, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, Timestamp};

/// Two seconds before the year 2028, so that histories cross the turn of a month and a year.
const START_MICROS: u64 = 1_830_297_598_000_000;

/// One subject of one limit, on a clock of its own.
struct Subject {
    limiter: Limiter<MemoryStore>,
    clock: ManualClock,
}

/// An admitted request: its time, the cost that was not given back, and its delay.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    at: u64,
    cost: u64,
    delay: u64,
}

impl Subject {
    fn new(limit: Limit) -> Self {
        let clock = ManualClock::starting_at(Timestamp::from_micros(START_MICROS));
        let store = MemoryStore::new().with_clock(clock.clone());
        Self { limiter: Limiter::new(RuleSet::new([Rule::new("r", limit)]).unwrap(), store), clock }
    }

    fn set(&self, now: u64) {
        self.clock.set(Timestamp::from_micros(now));
    }

    fn take(&self, cost: u64) -> Outcome {
        *self.limiter.check_now(&Request::new("").with_cost(cost)).checks()[0].outcome()
    }

    /// Takes `cost`; the receipt is empty if that was denied.
    fn take_for_receipt(&self, cost: u64) -> Grant {
        self.limiter.check_now(&Request::new("").with_cost(cost)).take_grant()
    }

    fn refund(&self, mut receipt: Grant) {
        poll_once(self.limiter.end(&mut receipt, &Ending::Refund));
    }

    fn charge(&self, cost: u64) {
        poll_once(self.limiter.charge(&Request::new("").with_cost(cost)));
    }

    fn peek(&self, cost: u64) -> Outcome {
        let plan = self.limiter.plan(&Request::new("").with_cost(cost));
        self.limiter.store().decide_now(&plan.with_peek()).checks()[0].outcome
    }
}

/// The output of a future that does not wait.
fn poll_once<T, E: std::fmt::Debug>(future: impl Future<Output = Result<T, E>>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output.unwrap(),
        Poll::Pending => panic!("the memory store never waits"),
    }
}

/// Requests as (microseconds since the one before, cost).
fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![3 => Just(0), 3 => 0..300_000u64, 1 => 0..5_000_000u64];
    prop::collection::vec((gap, 1..5u64), 1..80)
}

/// Refunds as (the request after which it happens, the request that is given back).
fn refunds() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((0..80usize, 0..80usize), 0..60)
}

/// A subject that has made these requests, and the time of the last.
fn after(limit: Limit, requests: &[(u64, u64)]) -> (Subject, u64) {
    let subject = Subject::new(limit);
    let mut now = START_MICROS;
    for (gap, cost) in requests {
        now += gap;
        subject.set(now);
        subject.take(*cost);
    }
    (subject, now)
}

/// What is admitted and not given back.
fn run(limit: Limit, requests: &[(u64, u64)], refunds: &[(usize, usize)]) -> Vec<Admitted> {
    let subject = Subject::new(limit);
    let mut now = START_MICROS;
    let mut taken: Vec<(Option<Grant>, Admitted)> = Vec::new();
    for (number, (gap, cost)) in requests.iter().enumerate() {
        now += gap;
        subject.set(now);
        let mut decision = subject.limiter.check_now(&Request::new("").with_cost(*cost));
        let outcome = *decision.checks()[0].outcome();
        assert!(outcome.remaining <= outcome.limit);
        let cost = if outcome.admitted { *cost } else { 0 };
        let admitted = Admitted { at: now, cost, delay: outcome.delay.as_micros() as u64 };
        taken.push((Some(decision.take_grant()), admitted));
        for (_, which) in refunds.iter().filter(|(after, which)| *after == number && *which <= number) {
            if let Some(receipt) = taken[*which].0.take() {
                subject.refund(receipt);
                taken[*which].1.cost = 0;
            }
        }
    }
    taken.into_iter().map(|(_, admitted)| admitted).filter(|admitted| admitted.cost > 0).collect()
}

/// What was admitted after `from` and up to `to`.
fn units(admitted: &[Admitted], from: u64, to: u64) -> u64 {
    admitted.iter().filter(|one| from < one.at && one.at <= to).map(|one| one.cost).sum()
}

fn rate() -> impl Strategy<Value = Rate> {
    (1..50u64, prop::sample::select(vec![1_000_000, 700_000, 1_234_567]))
        .prop_map(|(amount, period)| Rate::new(amount, Duration::from_micros(period)).unwrap())
}

fn calendar() -> impl Strategy<Value = Window> {
    prop::sample::select(vec![Window::MONTH, Window::YEAR])
}

/// A limit of any kind, with windows of a second or two, or of the calendar.
fn limit() -> impl Strategy<Value = Limit> {
    let window = prop::sample::select(vec![600_000u64, 1_200_000, 6_000_000]).prop_map(Duration::from_micros);
    let slices = prop::sample::select(vec![1u64, 2, 6, 12]);
    prop_oneof![
        (1..20u64, rate()).prop_map(|(capacity, rate)| Limit::token_bucket(capacity, rate).unwrap()),
        (0..20u64, rate()).prop_map(|(queue, rate)| Limit::leaky_bucket(rate, queue).unwrap()),
        (1..20u64, window.clone()).prop_map(|(limit, window)| Limit::fixed_window(limit, window).unwrap()),
        (1..20u64, calendar()).prop_map(|(limit, window)| Limit::fixed_window(limit, window).unwrap()),
        (1..20u64, window.clone()).prop_map(|(limit, window)| Limit::sliding_log(limit, window).unwrap()),
        (1..20u64, window, slices)
            .prop_map(|(limit, window, slices)| { Limit::sliding_window(limit, window, slices).unwrap() }),
        (1..20u64, quotas::periods()).prop_map(|(amount, periods)| Limit::quota(amount, periods).unwrap()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// admitted(s, t) ≤ C + (t − s)·r/p
    #[test]
    fn a_token_bucket_admits_its_capacity_plus_the_refill(
        capacity in 1..20u64,
        rate in rate(),
        requests in requests(),
        refunds in refunds(),
    ) {
        let admitted = run(Limit::token_bucket(capacity, rate).unwrap(), &requests, &refunds);
        for first in &admitted {
            for last in &admitted {
                let shares = u128::from(units(&admitted, first.at - 1, last.at)) * rate.period().as_micros();
                let passed = u128::from(last.at.saturating_sub(first.at)) * u128::from(rate.amount());
                prop_assert!(shares <= u128::from(capacity) * rate.period().as_micros() + passed);
            }
        }
    }

    /// The output rate and the length of the queue.
    #[test]
    fn a_leaky_bucket_never_exceeds_its_output_rate(
        queue in 0..20u64,
        rate in rate(),
        requests in requests(),
        refunds in refunds(),
    ) {
        let admitted = run(Limit::leaky_bucket(rate, queue).unwrap(), &requests, &refunds);
        for pair in admitted.windows(2) {
            let (before, after) = (pair[0].at + pair[0].delay, pair[1].at + pair[1].delay);
            let distance = u128::from(pair[0].cost) * rate.period().as_micros();
            // Delays are rounded up to whole microseconds, so at most one is lost.
            prop_assert!(u128::from(after + 1 - before) * u128::from(rate.amount()) >= distance);
        }
        for one in &admitted {
            let waiting = u128::from(one.delay.saturating_sub(1)) * u128::from(rate.amount());
            let ahead = u128::from(queue + 1 - one.cost) * rate.period().as_micros();
            prop_assert!(waiting <= ahead);
        }
    }

    /// admitted(kW, (k+1)W) ≤ L
    #[test]
    fn a_fixed_window_admits_its_limit(limit in 1..20u64, requests in requests(), refunds in refunds()) {
        let admitted = run(Limit::fixed_window(limit, Duration::from_secs(1)).unwrap(), &requests, &refunds);
        for one in &admitted {
            let start = one.at / 1_000_000 * 1_000_000;
            prop_assert!(units(&admitted, start - 1, start + 999_999) <= limit);
        }
    }

    /// admitted(s(k), s(k+1)) ≤ L across the end of a month and a year; afterwards the whole limit is available again.
    #[test]
    fn a_calendar_window_admits_its_limit(limit in 1..20u64, window in calendar(), requests in requests()) {
        let limit = Limit::fixed_window(limit, window).unwrap();
        let admitted = run(limit, &requests, &[]);
        let (before, turn) = (START_MICROS - 1, START_MICROS + 2_000_000);
        prop_assert!(units(&admitted, before, turn - 1) <= limit.amount());
        prop_assert!(units(&admitted, turn - 1, u64::MAX) <= limit.amount());
        let (subject, _) = after(limit, &requests);
        // In the new year the limit of a month is available again, and that of a year once it is over.
        let later = if window == Window::MONTH { 31 } else { 366 };
        subject.set(turn + later * 86_400_000_000);
        prop_assert_eq!(subject.peek(1).remaining, limit.amount());
    }

    /// admitted(t − W, t] ≤ L
    #[test]
    fn a_sliding_log_admits_its_limit_in_any_window(
        limit in 1..20u64,
        requests in requests(),
        refunds in refunds(),
    ) {
        let admitted = run(Limit::sliding_log(limit, Duration::from_secs(1)).unwrap(), &requests, &refunds);
        for one in &admitted {
            prop_assert!(units(&admitted, one.at - 1_000_000, one.at) <= limit);
        }
    }

    /// N(W − W/S) ≤ estimate ≤ N(W + W/S), where the estimate is what does not remain.
    #[test]
    fn a_sliding_window_is_exact_to_one_slice(
        limit in 1..20u64,
        slices in prop::sample::select(vec![1u64, 2, 6, 12]),
        requests in requests(),
    ) {
        let (window, slice) = (1_200_000, 1_200_000 / slices);
        let subject = Subject::new(Limit::sliding_window(limit, Duration::from_micros(window), slices).unwrap());
        let (mut now, mut admitted) = (START_MICROS, Vec::new());
        for (gap, cost) in &requests {
            now += gap;
            subject.set(now);
            let estimate = limit - subject.peek(1).remaining;
            prop_assert!(units(&admitted, now - (window - slice), now) <= estimate);
            prop_assert!(estimate <= units(&admitted, now - (window + slice), now));
            if subject.take(*cost).admitted {
                admitted.push(Admitted { at: now, cost: *cost, delay: 0 });
                prop_assert!(units(&admitted, now - (window - slice), now) <= limit);
            }
        }
    }

    /// A retry at the reported time succeeds, and one microsecond earlier it fails.
    #[test]
    fn retry_after_is_exact(limit in limit(), requests in requests(), cost in 1..25u64) {
        let (subject, now) = after(limit, &requests);
        let outcome = subject.peek(cost);
        match outcome.retry_after {
            None => prop_assert_eq!(outcome.admitted, cost <= limit.amount()),
            Some(retry) => {
                let retry = retry.as_micros() as u64;
                prop_assert!(retry > 0);
                subject.set(now + retry - 1);
                prop_assert!(!subject.peek(cost).admitted);
                subject.set(now + retry);
                prop_assert!(subject.take(cost).admitted);
            }
        }
    }

    /// `remaining` is the largest cost that passes right afterwards; one more does not.
    #[test]
    fn remaining_is_the_largest_cost_that_passes(limit in limit(), requests in requests()) {
        let subject = Subject::new(limit);
        let mut now = START_MICROS;
        for (gap, cost) in &requests {
            now += gap;
            subject.set(now);
            let remaining = subject.take(*cost).remaining;
            prop_assert!(subject.peek(remaining).admitted);
            prop_assert!(!subject.peek(remaining + 1).admitted);
        }
    }

    /// After `reset_after` the subject is equivalent to a new one, and just before it is not.
    #[test]
    fn after_reset_after_the_state_equals_a_fresh_one(limit in limit(), requests in requests()) {
        let (subject, now) = after(limit, &requests);
        let reset = subject.peek(1).reset_after.as_micros() as u64;
        subject.set(now + reset);
        let whole = subject.peek(limit.amount());
        prop_assert_eq!((whole.remaining, whole.reset_after), (limit.amount(), Duration::ZERO));
        if reset > 0 {
            subject.set(now + reset - 1);
            prop_assert!(subject.peek(1).remaining < limit.amount());
        }
    }

    /// Whatever the step, no more remains than before.
    #[test]
    fn a_clock_that_steps_back_refunds_nothing(limit in limit(), requests in requests(), back in 0..20_000_000u64) {
        let (subject, now) = after(limit, &requests);
        let before = subject.peek(1).remaining;
        subject.set(now - back);
        prop_assert!(subject.peek(1).remaining <= before);
        // A subject is not locked out for longer than a complete refill.
        subject.take(limit.amount());
        let reset = subject.peek(1).reset_after;
        // 20 units, the slowest at one in 1.23 s, and the margin; or the longest month or year, and the margin. A quota counts the
        // period that had begun, which ends that much later.
        let later = if let Limit::Quota(_) = limit { Duration::from_micros(back) } else { Duration::ZERO };
        let widest = Duration::from_secs(27).max(limit.max_window() + Duration::from_secs(2).max(later));
        prop_assert!(reset <= widest, "{:?} is a lock-out", reset);
    }

    /// A request that a clock slightly behind has admitted does not end the windows of earlier ones sooner.
    #[test]
    fn a_small_step_back_does_not_shorten_a_window(back in 1..=2_000_000u64, cost in 1..5u64) {
        let window = 5_000_000;
        for limit in [
            Limit::sliding_log(20, Duration::from_micros(window)).unwrap(),
            Limit::sliding_window(20, Duration::from_micros(window), 5).unwrap(),
            Limit::fixed_window(20, Duration::from_micros(window)).unwrap(),
        ] {
            // The start of a window and of a slice.
            let start = START_MICROS.next_multiple_of(window);
            let subject = Subject::new(limit);
            subject.set(start);
            subject.take(cost);
            subject.set(start - back);
            subject.take(1);
            subject.set(start + window - 1);
            prop_assert!(subject.peek(1).remaining <= 20 - cost, "{:?}", limit);
        }
    }
}
