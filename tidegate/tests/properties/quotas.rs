//! What a quota guarantees over random histories that cross the ends of periods in several time zones.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate::limits::{Period, Periods};
use tidegate::{Ending, Grant, Limit, Limiter, ManualClock, MemoryStore, Request, Rule, RuleSet, Timestamp};

use super::{Subject, poll_once};

/// 2026-10-24 20:00 UTC: within a few days the clocks change in Berlin, and a month ends.
const START_MICROS: u64 = 1_792_872_000_000_000;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum Event {
    Pass(u64),
    Take(u64),
    Charge(u64),
    /// Of which take, in percent of its cost.
    Settle(usize, u64),
}

pub(super) fn periods() -> impl Strategy<Value = Periods> {
    let period = prop::sample::select(vec![Period::Hour, Period::Day, Period::Week, Period::Month]);
    let zone = prop::sample::select(vec!["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]);
    (period, zone).prop_map(|(period, zone)| Periods::new(period, zone, None).unwrap())
}

/// Calendars of the same period, for one key: in any zones, and with different anchors.
fn calendars() -> impl Strategy<Value = Vec<Periods>> {
    let calendars = [
        (Period::Hour, ["", "", ""]),
        (Period::Day, ["", "", ""]),
        (Period::Week, ["monday", "wednesday", "sunday"]),
        (Period::Month, ["1", "15", "31"]),
    ];
    let zones = ["Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Kiritimati", "Etc/GMT+12"];
    let zone_and_anchor = (prop::sample::select(zones.to_vec()), 0..3usize);
    (prop::sample::select(calendars.to_vec()), prop::collection::vec(zone_and_anchor, 2..4)).prop_map(
        |((period, anchors), chosen)| {
            let anchor = |which: usize| Some(anchors[which]).filter(|text| !text.is_empty());
            let periods = |(zone, which)| Periods::new(period, zone, anchor(which).map(|text| text.parse().unwrap()));
            chosen.into_iter().map(|choice| periods(choice).unwrap()).collect()
        },
    )
}

/// Limiters with quotas of these amounts and periods, which share one key.
fn on_one_key(quotas: impl IntoIterator<Item = (u64, Periods)>) -> (ManualClock, Vec<Limiter<Arc<MemoryStore>>>) {
    let clock = ManualClock::starting_at(Timestamp::from_micros(START_MICROS));
    let store = Arc::new(MemoryStore::new().with_clock(clock.clone()));
    let limiter = |(amount, periods)| {
        let rule = Rule::new("r", Limit::quota(amount, periods).unwrap()).with_denial_cache(false);
        Limiter::new(RuleSet::new([rule]).unwrap(), Arc::clone(&store))
    };
    (clock, quotas.into_iter().map(limiter).collect())
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let hours = prop_oneof![3 => 0..4u64, 2 => 0..40u64, 1 => 0..800u64];
    let event = prop_oneof![
        3 => hours.prop_map(Event::Pass),
        6 => (1..12u64).prop_map(Event::Take),
        1 => (1..60u64).prop_map(Event::Charge),
        2 => (any::<usize>(), 0..300u64).prop_map(|(which, percent)| Event::Settle(which, percent)),
    ];
    prop::collection::vec(event, 1..80)
}

/// A take that was admitted.
struct Taken {
    period: u64,
    cost: u64,
    receipt: Option<Grant>,
}

/// Runs events, and returns the units taken in each period, and those that were charged and given back altogether. With `correct`, takes
/// are charged and settled, too.
fn run(limit: Limit, periods: Periods, events: &[Event], correct: bool) -> (Subject, Vec<Taken>, i64) {
    let subject = Subject::new(limit);
    let (mut now, mut taken, mut corrected) = (START_MICROS, Vec::<Taken>::new(), 0);
    let mut last = periods.bounds_at(Timestamp::from_micros(now)).index;
    subject.set(now);
    for event in events {
        match *event {
            Event::Pass(hours) => {
                now += hours * 3_600_000_000;
                subject.set(now);
                last = periods.bounds_at(Timestamp::from_micros(now)).index;
            }
            Event::Take(cost) => {
                let mut decision = subject.limiter.check_now(&Request::new("").with_cost(cost));
                if decision.is_allowed() {
                    taken.push(Taken { period: last, cost, receipt: Some(decision.take_grant()) });
                }
            }
            Event::Charge(cost) if correct => {
                subject.charge(cost);
                corrected += cost.cast_signed();
            }
            Event::Settle(which, percent) if correct && !taken.is_empty() => {
                let which = which % taken.len();
                let Taken { period, cost, receipt } = &mut taken[which];
                let actual = *cost * percent / 100;
                // What is given back too late is not given back.
                let is_late = *period + 1 < last && actual < *cost;
                if let Some(mut receipt) = receipt.take() {
                    poll_once(subject.limiter.end(&mut receipt, &Ending::Settle(actual.into())));
                    corrected += if is_late { 0 } else { actual.cast_signed() - cost.cast_signed() };
                }
            }
            _ => {}
        }
    }
    (subject, taken, corrected)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// taken(s(k), s(k+1)) ≤ A + G
    #[test]
    fn no_period_of_a_quota_admits_more_than_amount_and_grace(
        amount in 1..20u64,
        grace in 0..5u64,
        periods in periods(),
        events in events(),
        correct in any::<bool>(),
    ) {
        let limit = Limit::quota_with_grace(amount, grace, periods).unwrap();
        // With corrections, what was given back in a period may be taken again.
        let events: Vec<Event> =
            events.into_iter().filter(|event| !matches!(event, Event::Settle(_, percent) if *percent < 100)).collect();
        let (_, taken, _) = run(limit, periods, &events, correct);
        for one in &taken {
            let in_period: u64 = taken.iter().filter(|other| other.period == one.period).map(|other| other.cost).sum();
            prop_assert!(in_period <= amount + grace, "{in_period} in period {}", one.period);
        }
    }

    /// A change of zone or anchor that is rolled out, or one subject under two plans: each request is decided by another calendar.
    #[test]
    fn alternating_calendars_on_one_key_admit_no_more_than_one_in_each_period(
        amount in 1..20u64,
        calendars in calendars(),
        requests in prop::collection::vec((prop_oneof![3 => Just(0), 3 => 0..4u64, 1 => 0..40u64], 1..12u64, 0..3usize), 1..80),
    ) {
        let (clock, limiters) = on_one_key(calendars.iter().map(|periods| (amount, *periods)));
        let (mut now, mut last, mut taken) = (START_MICROS, 0, HashMap::<u64, u64>::new());
        for (hours, cost, which) in requests {
            now += hours * 3_600_000_000;
            clock.set(Timestamp::from_micros(now));
            let which = which % calendars.len();
            if poll_once(limiters[which].check(&Request::new("").with_cost(cost))).is_allowed() {
                last = last.max(calendars[which].bounds_at(Timestamp::from_micros(now)).index);
                let in_period = taken.entry(last).or_default();
                *in_period += cost;
                prop_assert!(*in_period <= amount, "{in_period} in period {last}");
            }
        }
    }

    /// Taken under a larger amount, units are not debt under a smaller one.
    #[test]
    fn a_lowered_amount_denies_until_the_period_ends_and_not_longer(
        before in 1..1000u64,
        after in 1..1000u64,
        taken in 1..1000u64,
        periods in periods(),
    ) {
        prop_assume!(taken <= before);
        let (clock, limiters) = on_one_key([(before, periods), (after, periods)]);
        prop_assert!(poll_once(limiters[0].check(&Request::new("").with_cost(taken))).is_allowed());
        let admits = |cost| poll_once(limiters[1].peek(&Request::new("").with_cost(cost))).is_allowed();
        prop_assert_eq!([admits(0), admits(1), admits(after)], [true, taken < after, false]);
        clock.set(periods.end_after(Timestamp::from_micros(START_MICROS)));
        prop_assert!(admits(after));
    }

    /// A store keeps a state until the debt is paid by the amount of the last write.
    #[test]
    fn a_debt_outlasts_a_lowered_amount(
        before in 1..1000u64,
        after in 1..50u64,
        debt in 1..500u64,
        periods in periods(),
    ) {
        prop_assume!(after <= before);
        let (clock, limiters) = on_one_key([(before, periods), (after, periods)]);
        poll_once(limiters[0].charge(&Request::new("").with_cost(before + debt)));
        let denied = poll_once(limiters[1].check(&Request::new("")));
        let retry = denied.retry_after().unwrap().as_micros() as u64;
        clock.set(Timestamp::from_micros(START_MICROS + retry - 1));
        prop_assert!(!poll_once(limiters[1].peek(&Request::new(""))).is_allowed());
        clock.set(Timestamp::from_micros(START_MICROS + retry));
        prop_assert!(poll_once(limiters[1].peek(&Request::new(""))).is_allowed());
    }

    /// Over n periods, what is taken, charged and not given back is at most n · (A + G) and the debt that is left.
    #[test]
    fn what_a_quota_counts_over_all_periods_is_paid_by_them(
        amount in 1..20u64,
        periods in periods(),
        events in events(),
    ) {
        let limit = Limit::quota(amount, periods).unwrap();
        let (subject, taken, corrected) = run(limit, periods, &events, true);
        let first = periods.bounds_at(Timestamp::from_micros(START_MICROS)).index;
        let now = START_MICROS
            + events.iter().map(|event| if let Event::Pass(hours) = event { *hours } else { 0 }).sum::<u64>() * 3_600_000_000;
        let last = periods.bounds_at(Timestamp::from_micros(now)).index;
        let counted = taken.iter().map(|one| one.cost.cast_signed()).sum::<i64>() + corrected;
        // What is left to pay is what keeps a cost of the whole amount from passing.
        let mut unpaid = 0;
        let mut index = last;
        while !subject.peek(amount).admitted {
            index += 1;
            subject.set(periods.start_of(index));
            unpaid += amount.cast_signed();
        }
        let paid = (last - first).cast_signed() * amount.cast_signed();
        prop_assert!(counted <= paid + unpaid, "{counted} of {paid} and {unpaid}");
    }

    /// While a quota is in debt not even a cost of 0 passes, until `retry_after`, and not a microsecond earlier.
    #[test]
    fn a_quota_in_debt_admits_nothing_until_exactly_its_retry(
        amount in 1..20u64,
        debt in 1..200u64,
        periods in periods(),
    ) {
        let subject = Subject::new(Limit::quota(amount, periods).unwrap());
        subject.set(START_MICROS);
        subject.charge(amount + debt);
        for cost in [0, 1, amount] {
            subject.set(START_MICROS);
            let retry = subject.peek(cost).retry_after.unwrap().as_micros() as u64;
            subject.set(START_MICROS + retry - 1);
            prop_assert!(!subject.peek(cost).admitted);
            subject.set(START_MICROS + retry);
            prop_assert!(subject.peek(cost).admitted);
        }
    }
}
