//! The strategies that generate random histories: limits, costs, delays, moves of time, and steps.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::limits::{Algorithm, Penalty, Period, Periods, Window};
use tidegate::spi::algorithm::penalty::MAX_BLOCK;
use tidegate::spi::{MAX_AMOUNT, PlanMode, Role};
use tidegate::{Limit, Rate};

use super::{Cost, History, SlotUpdate, Step, TimeMove};

/// Histories of one check of this kind.
pub fn single_check_histories(algorithm: Algorithm) -> BoxedStrategy<History> {
    let single = limit(algorithm).prop_map(|limit| vec![(limit, Role::Enforced)]);
    (single, prop::collection::vec(step(), 1..60))
        .prop_map(|(limits, steps)| History::new(limits, PlanMode::AllOrNothing, steps))
        .boxed()
}

/// Histories of plans of one to four checks of any kind, role and mode.
pub fn plan_histories() -> BoxedStrategy<History> {
    (prop::collection::vec((any_limit(), role()), 1..5), mode(3), prop::collection::vec(step(), 1..40))
        .prop_map(|(limits, mode, steps)| History::new(limits, mode, steps))
        .boxed()
}

/// Histories of a rule of one or two limits with a penalty, and sometimes of another rule beside it.
pub fn penalty_histories() -> BoxedStrategy<History> {
    let own = prop::collection::vec(any_limit(), 1..3);
    let other = prop::option::of((any_limit(), role()));
    let role = prop_oneof![4 => Just(Role::Enforced), 1 => Just(Role::Shadow)];
    (own, role, penalty(), other, mode(3), prop::collection::vec(step(), 1..60))
        .prop_map(|(own, role, penalty, other, mode, steps)| {
            let mut limits: Vec<_> = own.into_iter().chain([penalty]).map(|limit| (limit, role)).collect();
            let mut rules = vec![0; limits.len()];
            if let Some(other) = other {
                rules.push(limits.len());
                limits.push(other);
            }
            History { rules, ..History::new(limits, mode, steps) }
        })
        .boxed()
}

/// Histories of plans of one to three checks with reservations among other requests. Half of them are of one limit that keeps holds.
pub fn reservation_histories() -> BoxedStrategy<History> {
    let holding =
        ALGORITHMS.into_iter().filter(|kind| !matches!(kind, Algorithm::LeakyBucket | Algorithm::Concurrency));
    let single = prop::sample::select(holding.collect::<Vec<_>>()).prop_flat_map(limit);
    let single = single.prop_map(|limit| vec![(limit, Role::Enforced)]);
    let several = prop::collection::vec((any_limit(), role()), 1..4);
    let steps = prop::collection::vec(reservation_step(), 1..60);
    (prop_oneof![single, several], mode(5), span(), any::<u8>(), steps)
        .prop_map(|(limits, mode, ttl, usage, steps)| History {
            usage,
            reservation_ttl: ttl.as_micros() as u64,
            ..History::new(limits, mode, steps)
        })
        .boxed()
}

/// Histories of a quota whose amount, time zone and anchor change, with reservations among other requests.
pub fn changing_quota_histories() -> BoxedStrategy<History> {
    let plain = prop_oneof![1 => any::<usize>().prop_map(Step::Change), 4 => step()];
    let with_holds = prop_oneof![1 => any::<usize>().prop_map(Step::Change), 4 => reservation_step()];
    let steps = prop_oneof![prop::collection::vec(plain, 1..60), prop::collection::vec(with_holds, 1..60)];
    (limit(Algorithm::Quota), mode(3), span(), prop::collection::vec(any::<u64>(), 1..4), steps)
        .prop_map(|(quota, mode, ttl, changes, steps)| {
            let reservation_ttl = ttl.as_micros() as u64;
            History { reservation_ttl, changes, ..History::new(vec![(quota, Role::Enforced)], mode, steps) }
        })
        .boxed()
}

/// So many histories, beside one other, in which a plan consumes from all of its checks or from none.
pub(crate) fn mode(all_or_nothing: u32) -> impl Strategy<Value = PlanMode> {
    prop_oneof![all_or_nothing => Just(PlanMode::AllOrNothing), 1 => Just(PlanMode::CountEach)]
}

pub(crate) fn any_limit() -> BoxedStrategy<Limit> {
    prop::sample::select(ALGORITHMS.to_vec()).prop_flat_map(limit).boxed()
}

fn reservation_step() -> impl Strategy<Value = Step> {
    let key = prop_oneof![1 => Just(None), 3 => (0..4u8).prop_map(Some)];
    let ending = prop_oneof![3 => cost().prop_map(Some), 1 => Just(None)];
    prop_oneof![
        3 => step(),
        4 => (cost(), key, any::<bool>()).prop_map(|(cost, key, usage_only)| Step::Reserve(cost, key, usage_only)),
        3 => (any::<usize>(), ending).prop_map(|(which, ending)| Step::End(which, ending)),
    ]
}

pub(crate) fn penalty() -> BoxedStrategy<Limit> {
    let factor = prop_oneof![4 => 1..4u64, 1 => 1..=1_000u64];
    let growth = prop_oneof![2 => 1..4u32, 2 => 1..100u32, 1 => 1..100_000u32];
    (1..5u64, span(), factor, growth)
        .prop_map(|(after, block, factor, growth)| {
            let max = block.saturating_mul(growth).min(MAX_BLOCK);
            Limit::Penalty(Penalty::new(after, block, factor, max).unwrap())
        })
        .boxed()
}

/// Histories of calendar windows, around the boundaries of months and years.
pub fn calendar_histories() -> BoxedStrategy<History> {
    let single = calendar_window().prop_map(|limit| vec![(limit, Role::Enforced)]);
    let day = (-1..=1i64).prop_map(|days| days * 86_400_000_000);
    let little = prop_oneof![4 => -2..=2i64, 1 => -2_000_001..=-1_999_999i64, 1 => day];
    let boundary = (prop::sample::select(CALENDAR_BOUNDARIES.to_vec()), little)
        .prop_map(|(boundary, more)| Step::Move(TimeMove::Boundary(boundary, more)));
    let steps = prop_oneof![1 => boundary, 4 => step()];
    (single, prop::collection::vec(steps, 1..60))
        .prop_map(|(limits, steps)| History::new(limits, PlanMode::AllOrNothing, steps))
        .boxed()
}

/// Calendar boundaries that are easily computed wrong, in seconds.
const CALENDAR_BOUNDARIES: [u64; 12] = [
    951_782_400,   // 2000-02-29, a leap day
    951_868_800,   // 2000-03-01
    1_798_761_600, // 2027-01-01
    1_803_859_200, // 2027-03-01, not after a leap day
    1_830_297_600, // 2028-01-01
    1_835_395_200, // 2028-02-29, a leap day
    1_835_481_600, // 2028-03-01
    1_861_920_000, // 2029-01-01
    4_102_444_800, // 2100-01-01
    4_107_542_400, // 2100-03-01, not after a leap day
    4_133_980_800, // 2101-01-01
    4_481_049_600, // 2112-01-01
];

pub const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::Concurrency,
    Algorithm::Quota,
];

fn limit(algorithm: Algorithm) -> BoxedStrategy<Limit> {
    match algorithm {
        Algorithm::TokenBucket => {
            (amount(MAX_AMOUNT), rate()).prop_filter_map("span", |(c, r)| Limit::token_bucket(c, r).ok()).boxed()
        }
        Algorithm::LeakyBucket => {
            (amount(MAX_AMOUNT), rate()).prop_filter_map("span", |(q, r)| Limit::leaky_bucket(r, q).ok()).boxed()
        }
        Algorithm::FixedWindow => {
            let spans = (amount(MAX_AMOUNT), span()).prop_map(|(l, w)| Limit::fixed_window(l, w).unwrap());
            prop_oneof![4 => spans, 1 => calendar_window()].boxed()
        }
        Algorithm::SlidingLog => (amount(65_535), span()).prop_map(|(l, w)| Limit::sliding_log(l, w).unwrap()).boxed(),
        Algorithm::Concurrency => (amount(65_535), span()).prop_map(|(m, l)| Limit::concurrency(m, l).unwrap()).boxed(),
        Algorithm::Quota => (amount(MAX_AMOUNT), prop_oneof![2 => Just(0), 1 => 1..20u64], periods())
            .prop_map(|(a, g, p)| Limit::quota_with_grace(a, g.min(MAX_AMOUNT - a), p).unwrap())
            .boxed(),
        _ => (amount(MAX_AMOUNT), span(), prop::sample::select(vec![1, 2, 3, 5, 6, 12, 60]))
            .prop_map(|(l, slice, s)| Limit::sliding_window(l, slice * s as u32, s).unwrap())
            .boxed(),
    }
}

/// Periods in zones whose clocks change at different times, or by half an hour, and with anchors that not every month has.
fn periods() -> impl Strategy<Value = Periods> {
    (prop::sample::select(PERIODS.to_vec()), prop::sample::select(ZONES.to_vec())).prop_map(
        |((period, anchor), zone)| {
            let anchor = (!anchor.is_empty()).then(|| anchor.parse().unwrap());
            Periods::new(period, zone, anchor).unwrap()
        },
    )
}

/// The same periods in another zone, and from another day on.
pub(super) fn other_periods(periods: Periods, choice: u64) -> Periods {
    let same = PERIODS.iter().filter(|(period, _)| *period == periods.period());
    let anchors: Vec<&str> = same.map(|(_, anchor)| *anchor).collect();
    let anchor = anchors[choice as usize % anchors.len()];
    let anchor = (!anchor.is_empty()).then(|| anchor.parse().unwrap());
    Periods::new(periods.period(), ZONES[choice as usize / 7 % ZONES.len()], anchor).unwrap()
}

const PERIODS: [(Period, &str); 9] = [
    (Period::Hour, ""),
    (Period::Day, ""),
    (Period::Week, ""),
    (Period::Week, "saturday"),
    (Period::Month, ""),
    (Period::Month, "15"),
    (Period::Month, "31"),
    (Period::Year, ""),
    (Period::Year, "02-29"),
];

const ZONES: [&str; 7] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Pacific/Apia",
];

fn calendar_window() -> impl Strategy<Value = Limit> {
    let window = prop::sample::select(vec![Window::MONTH, Window::YEAR]);
    (amount(MAX_AMOUNT), window).prop_map(|(limit, window)| Limit::fixed_window(limit, window).unwrap())
}

fn amount(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![1 => 0..2u64, 4 => 1..6u64, 3 => 1..200u64, 1 => 1..=max.min(20_000_000), 1 => max - 3..=max]
}

fn rate() -> impl Strategy<Value = Rate> {
    let amount = prop_oneof![3 => Just(1), 3 => 1..20u64, 2 => 1..=10_000_000u64, 1 => Just(10_000_000)];
    (amount, span()).prop_map(|(amount, period)| Rate::new(amount, period).unwrap())
}

fn span() -> impl Strategy<Value = Duration> {
    let usual = [1_000, 100_000, 1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 2_592_000_000_000];
    prop_oneof![4 => prop::sample::select(usual.to_vec()), 1 => 1..100u64, 2 => 1..10_000_000_000u64]
        .prop_map(Duration::from_micros)
}

pub(crate) fn time_move() -> impl Strategy<Value = TimeMove> {
    let little = -2..=2i64;
    let forward = prop_oneof![0..2000i64, -3..0i64, 0..5_000_000i64];
    prop_oneof![
        4 => forward.prop_map(TimeMove::Micros),
        4 => (-3..12i64).prop_map(TimeMove::Spans),
        1 => (-40..200i64).prop_map(TimeMove::Spans),
        1 => (-2..4i64, little.clone()).prop_map(|(periods, more)| TimeMove::Period(periods, more)),
        1 => (little.clone(), any::<bool>()).prop_map(|(more, back)| TimeMove::Margin(more, back)),
        3 => little.prop_map(TimeMove::Retry),
    ]
}

/// The cost of a request: often 1, sometimes 0 or about the limit.
pub(crate) fn cost() -> impl Strategy<Value = Cost> {
    let units = prop_oneof![5 => Just(1), 1 => Just(0), 3 => 2..6u64, 1 => any::<u64>()];
    prop_oneof![5 => units.prop_map(Cost::Units), 1 => (-2..=2i64).prop_map(Cost::Amount)]
}

pub(crate) fn max_delay() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![4 => Just(None), 1 => (0..5_000_000u64).prop_map(Some)]
}

pub(crate) fn role() -> impl Strategy<Value = Role> {
    prop_oneof![3 => Just(Role::Enforced), 1 => Just(Role::Shadow), 1 => (0..2u8).prop_map(Role::AnyOf)]
}

fn step() -> impl Strategy<Value = Step> {
    let cost = cost().boxed();
    prop_oneof![
        6 => time_move().prop_map(Step::Move),
        9 => (cost.clone(), max_delay()).prop_map(|(cost, delay)| Step::Take(cost, delay)),
        2 => (cost.clone(), prop_oneof![1..10u64, any::<u64>()]).prop_map(|(cost, most)| Step::TakeUpTo(cost, most)),
        1 => cost.clone().prop_map(Step::Peek),
        1 => (cost, prop::option::of(any::<usize>())).prop_map(|(cost, which)| Step::Charge(cost, which)),
        3 => (any::<usize>(), 1..=4u64, any::<bool>()).prop_map(|(which, part, all)| Step::Refund(which, part, all)),
        4 => (any::<usize>(), slot_update()).prop_map(|(which, update)| Step::UpdateSlots(which, update)),
        1 => Just(Step::Forget),
    ]
}

fn slot_update() -> impl Strategy<Value = SlotUpdate> {
    prop_oneof![2 => Just(SlotUpdate::Renew), 2 => Just(SlotUpdate::RenewOrRetake), 1 => Just(SlotUpdate::Release)]
}
