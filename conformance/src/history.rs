//! Random histories: limits from 1 per year to 10 million per second, costs from 0 to above capacity, time that jumps in
//! both directions, several checks per plan; and their replay on two stores that must agree, step by step.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tidegate::spi::algorithm::Op;
use tidegate::spi::algorithm::penalty::MAX_BLOCK;
use tidegate::spi::{
    Adjustment, Check, Gate, KeyStem, LeaseOwner, MAX_AMOUNT, Plan, PlanMode, Role, Store, Subject, Verdict,
};
use tidegate::{Algorithm, Clock, Limit, ManualClock, Penalty, Rate, Timestamp, Window};

use std::time::Duration;

/// The start of every history: in September 2026.
pub(crate) const START: u64 = 1_790_000_000_123_456;

/// The random history of one subject.
#[derive(Clone, Debug)]
pub struct History {
    limits: Vec<(Limit, Role)>,
    /// The rule of each limit, by number.
    rules: Vec<usize>,
    mode: PlanMode,
    steps: Vec<Step>,
}

/// One step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Move(TimeMove),
    Take(Cost, Option<u64>),
    TakeUpTo(Cost, u64),
    Peek(Cost),
    Charge(Cost),
    /// Of which take; the share of its cost, in quarters; and whether its checks are refunded together.
    Refund(usize, u64, bool),
    /// Of the slots of which take, and what happens to them.
    UpdateSlots(usize, SlotUpdate),
    Forget,
}

/// What happens to held slots.
#[derive(Clone, Copy, Debug)]
enum SlotUpdate {
    Renew,
    RenewOrRetake,
    Release,
}

/// How time moves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeMove {
    Micros(i64),
    /// In eighths of the first limit's window.
    Spans(i64),
    /// By the margin for backward clock steps, plus a few microseconds.
    Margin(i64, bool),
    /// To the retry time of the last denial, plus a few microseconds.
    Retry(i64),
    /// To a calendar boundary, plus a few microseconds.
    Boundary(u64, i64),
}

/// The cost of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u64),
    /// The limit's amount, plus or minus a few units.
    Amount(i64),
}

/// How far time may run backwards in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackwardTime {
    /// Never.
    Never,
    /// Without bound.
    Freely,
    /// At most by the margin within which no store forgets.
    WithinMargin,
}

/// Histories of one check of this kind.
pub fn single_check_histories(algorithm: Algorithm) -> BoxedStrategy<History> {
    let single = limit(algorithm).prop_map(|limit| vec![(limit, Role::Enforced)]);
    (single, prop::collection::vec(step(), 1..60))
        .prop_map(|(limits, steps)| History::new(limits, PlanMode::AllOrNothing, steps))
        .boxed()
}

/// Histories of plans of one to four checks of any kind, role and mode.
pub fn plan_histories() -> BoxedStrategy<History> {
    let mode = prop_oneof![3 => Just(PlanMode::AllOrNothing), 1 => Just(PlanMode::CountEach)];
    let kind = prop::sample::select(ALGORITHMS.to_vec()).prop_flat_map(limit);
    (prop::collection::vec((kind, role()), 1..5), mode, prop::collection::vec(step(), 1..40))
        .prop_map(|(limits, mode, steps)| History::new(limits, mode, steps))
        .boxed()
}

/// Histories of a rule of one or two limits with a penalty, and sometimes of another rule beside it.
pub fn penalty_histories() -> BoxedStrategy<History> {
    let mode = prop_oneof![3 => Just(PlanMode::AllOrNothing), 1 => Just(PlanMode::CountEach)];
    let kind = prop::sample::select(ALGORITHMS.to_vec()).prop_flat_map(limit).boxed();
    let own = prop::collection::vec(kind.clone(), 1..3);
    let other = prop::option::of((kind, role()));
    let role = prop_oneof![4 => Just(Role::Enforced), 1 => Just(Role::Shadow)];
    (own, role, penalty(), other, mode, prop::collection::vec(step(), 1..60))
        .prop_map(|(own, role, penalty, other, mode, steps)| {
            let mut limits: Vec<_> = own.into_iter().chain([penalty]).map(|limit| (limit, role)).collect();
            let mut rules = vec![0; limits.len()];
            if let Some(other) = other {
                rules.push(limits.len());
                limits.push(other);
            }
            History { limits, rules, mode, steps }
        })
        .boxed()
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

/// Every kind of limit.
pub const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::Concurrency,
];

pub(crate) fn limit(algorithm: Algorithm) -> BoxedStrategy<Limit> {
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
        _ => (amount(MAX_AMOUNT), span(), prop::sample::select(vec![1, 2, 3, 5, 6, 12, 60]))
            .prop_map(|(l, slice, s)| Limit::sliding_window(l, slice * s as u32, s).unwrap())
            .boxed(),
    }
}

fn calendar_window() -> impl Strategy<Value = Limit> {
    let window = prop::sample::select(vec![Window::MONTH, Window::YEAR]);
    (amount(MAX_AMOUNT), window).prop_map(|(limit, window)| Limit::fixed_window(limit, window).unwrap())
}

pub(crate) fn amount(max: u64) -> impl Strategy<Value = u64> {
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

/// How time moves between two steps.
pub(crate) fn time_move() -> impl Strategy<Value = TimeMove> {
    let little = -2..=2i64;
    let forward = prop_oneof![0..2000i64, -3..0i64, 0..5_000_000i64];
    prop_oneof![
        4 => forward.prop_map(TimeMove::Micros),
        4 => (-3..12i64).prop_map(TimeMove::Spans),
        1 => (-40..200i64).prop_map(TimeMove::Spans),
        1 => (little.clone(), any::<bool>()).prop_map(|(more, back)| TimeMove::Margin(more, back)),
        3 => little.prop_map(TimeMove::Retry),
    ]
}

/// The cost of a request: often 1, sometimes 0 or about the limit.
pub(crate) fn cost() -> impl Strategy<Value = Cost> {
    let units = prop_oneof![5 => Just(1), 1 => Just(0), 3 => 2..6u64, 1 => any::<u64>()];
    prop_oneof![5 => units.prop_map(Cost::Units), 1 => (-2..=2i64).prop_map(Cost::Amount)]
}

/// The longest delay that a request accepts, in microseconds.
pub(crate) fn max_delay() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![4 => Just(None), 1 => (0..5_000_000u64).prop_map(Some)]
}

/// The role of a check.
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
        1 => cost.prop_map(Step::Charge),
        3 => (any::<usize>(), 1..=4u64, any::<bool>()).prop_map(|(which, part, all)| Step::Refund(which, part, all)),
        4 => (any::<usize>(), slot_update()).prop_map(|(which, update)| Step::UpdateSlots(which, update)),
        1 => Just(Step::Forget),
    ]
}

fn slot_update() -> impl Strategy<Value = SlotUpdate> {
    prop_oneof![2 => Just(SlotUpdate::Renew), 2 => Just(SlotUpdate::RenewOrRetake), 1 => Just(SlotUpdate::Release)]
}

impl History {
    /// A history in which every limit is a rule of its own.
    fn new(limits: Vec<(Limit, Role)>, mode: PlanMode, steps: Vec<Step>) -> Self {
        Self { rules: (0..limits.len()).collect(), limits, mode, steps }
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Replays the history on two stores that run on `clock`; the error describes the first disagreement.
    pub async fn agree(
        &self,
        clock: &ManualClock,
        one: &impl Store,
        other: &impl Store,
        backwards: BackwardTime,
    ) -> Result<(), String> {
        static SUBJECTS: AtomicU64 = AtomicU64::new(1);
        // Spread like a hash, since the memory store chooses a shard by the highest bits.
        let number = u128::from(SUBJECTS.fetch_add(1, Ordering::Relaxed));
        let hash = number.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645);
        // Pairs share a partition, so that in a cluster some keys of a plan share a slot and some do not.
        let subject = |index: usize| Subject::from_hash(hash ^ (index as u128 / 2) << 96);
        let gates: Vec<Gate> = self
            .limits
            .iter()
            .enumerate()
            .map(|(index, (limit, role))| {
                let rule = format!("r{}", self.rules[index]);
                let name = if self.rules[index] == index { String::new() } else { format!("{index}") };
                let stem = KeyStem::for_rule(&rule, limit, &name);
                Gate::new(rule, name, *limit, *role, stem)
            })
            .collect();
        let mut highest = START;
        let mut last_retry = None;
        let mut receipts: Vec<Vec<Adjustment<'_>>> = Vec::new();
        let mut slots: Vec<Vec<Adjustment<'_>>> = Vec::new();
        clock.set(Timestamp::from_micros(START));
        for (number, step) in self.steps.iter().enumerate() {
            let checks = |cost: Cost| {
                let check = |(index, gate)| Check::new(gate, subject(self.rules[index]), cost.of(gate));
                let plan = Plan::new(gates.iter().enumerate().map(check)).unwrap().with_mode(self.mode);
                plan.with_lease_owner(owner(number as u64, backwards))
            };
            let differ =
                |a: &Verdict, b: &Verdict| format!("step {number}, {step:?} at {:?}:\n{a:#?}\n{b:#?}", clock.now());
            match *step {
                Step::Move(by) => {
                    let target = by.from(clock.now().as_micros(), &self.limits[0].0, last_retry);
                    let floor = match backwards {
                        BackwardTime::Never => highest,
                        BackwardTime::WithinMargin => highest - 2_000_000,
                        BackwardTime::Freely => START / 2,
                    };
                    let now = target.clamp(floor, Timestamp::MAX.as_micros());
                    highest = highest.max(now);
                    clock.set(Timestamp::from_micros(now));
                }
                Step::Take(..) | Step::TakeUpTo(..) | Step::Peek(_) => {
                    let plan = match *step {
                        Step::Take(cost, Some(delay)) => checks(cost).with_max_delay(Duration::from_micros(delay)),
                        Step::TakeUpTo(cost, most) => checks(cost).with_max_units(most),
                        Step::Take(cost, None) => checks(cost),
                        Step::Peek(cost) => checks(cost).with_peek(),
                        _ => continue,
                    };
                    let (a, b) = (one.decide(&plan).await.unwrap(), other.decide(&plan).await.unwrap());
                    if a != b {
                        return Err(differ(&a, &b));
                    }
                    last_retry = a.checks().iter().filter_map(|check| check.outcome.retry_after).max().or(last_retry);
                    receipts.push(refunds(&plan, &a));
                    let is_slot = |refund: &&Adjustment<'_>| refund.limit.is_held();
                    slots.push(receipts.last().unwrap().iter().filter(is_slot).copied().collect());
                }
                Step::Charge(cost) => {
                    let plan = checks(cost);
                    let charges: Vec<_> = plan.checks().iter().map(Adjustment::charge).collect();
                    one.adjust(&charges).await.unwrap();
                    other.adjust(&charges).await.unwrap();
                }
                Step::Refund(which, quarters, bundled) => {
                    if let Some(index) = which.checked_rem(receipts.len()) {
                        let mut receipt = receipts.swap_remove(index);
                        for refund in &mut receipt {
                            if let Op::Refund { cost, .. } = &mut refund.op {
                                *cost = (u128::from(*cost) * u128::from(quarters)).div_ceil(4) as u64;
                            }
                            refund.bundled &= bundled;
                        }
                        one.adjust(&receipt).await.unwrap();
                        other.adjust(&receipt).await.unwrap();
                    }
                }
                Step::UpdateSlots(which, update) => {
                    let slots = which.checked_rem(slots.len()).map(|index| &slots[index]);
                    if let Some(slots) = slots.filter(|slots| !slots.is_empty()) {
                        let updates: Vec<_> = slots.iter().map(|slot| update.of(slot)).collect();
                        let (a, b) =
                            (one.update_slots(&updates).await.unwrap(), other.update_slots(&updates).await.unwrap());
                        if a != b {
                            return Err(format!("step {number}, {step:?} at {:?}: held {a:?}, {b:?}", clock.now()));
                        }
                    }
                }
                Step::Forget => {
                    let keys: Vec<_> = checks(Cost::Units(1)).checks().iter().map(|check| *check.key()).collect();
                    one.forget(&keys).await.unwrap();
                    other.forget(&keys).await.unwrap();
                }
            }
        }
        Ok(())
    }
}

fn refunds<'g>(plan: &Plan<'g>, verdict: &Verdict) -> Vec<Adjustment<'g>> {
    let consumed = plan.checks().iter().zip(verdict.checks()).filter(|(_, verdict)| verdict.consumed);
    let refund = |(check, result): (&Check<'g>, &tidegate::spi::CheckVerdict)| {
        let cost = check.cost().saturating_mul(verdict.granted().max(1));
        Adjustment::bundled_refund(check, cost, result.position)
    };
    consumed.map(refund).collect()
}

impl SlotUpdate {
    /// The update of the slot that `refund` releases.
    fn of<'g>(self, refund: &Adjustment<'g>) -> Adjustment<'g> {
        let mut update = *refund;
        update.op = match (self, refund.op) {
            (Self::Renew, Op::Refund { position, .. }) => Op::Renew { position, weight: 0 },
            (Self::RenewOrRetake, Op::Refund { cost, position }) => Op::Renew { position, weight: cost },
            (_, release) => release,
        };
        update
    }
}

/// The owner of the slots of a step. Some owners occur twice, except where a denied plan releases what an earlier one took; and the
/// bytes of many contain those of others.
fn owner(step: u64, backwards: BackwardTime) -> LeaseOwner {
    let number = match (backwards, step % 3) {
        (BackwardTime::Never, _) => step + 1,
        (_, 0) => 1 << (step % 7 * 8),
        (_, 1) => 0x01_0101_0101_0101 * (step % 31 + 1),
        _ => (1 << 53) - 1 - step,
    };
    LeaseOwner::from_number(number).unwrap()
}

impl Cost {
    pub(crate) fn of(self, gate: &Gate) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Amount(more) => gate.limit().amount().saturating_add_signed(more),
        }
    }
}

impl TimeMove {
    pub(crate) fn from(self, now: u64, limit: &Limit, last_retry: Option<Duration>) -> u64 {
        if let Self::Boundary(seconds, more) = self {
            return (seconds * 1_000_000).saturating_add_signed(more);
        }
        let micros = |span: Duration| span.as_micros() as i64;
        let by = match self {
            Self::Micros(by) => by,
            Self::Spans(eighths) => {
                (i128::from(span_of(limit)) * i128::from(eighths) / 8).clamp(-1 << 52, 1 << 52) as i64
            }
            Self::Margin(more, back) => (2_000_000 + more) * if back { -1 } else { 1 },
            Self::Retry(more) => last_retry.map_or(0, micros) + more,
            Self::Boundary(..) => 0,
        };
        now.saturating_add_signed(by)
    }
}

/// The window of a limit, in microseconds.
fn span_of(limit: &Limit) -> u64 {
    match limit {
        Limit::TokenBucket(limit) => limit.burst().micros,
        Limit::LeakyBucket(limit) => limit.bucket().burst().micros,
        limit => limit.max_window().as_micros() as u64,
    }
}
