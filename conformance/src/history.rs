//! Random histories: limits from 1 per year to 10 million per second, costs from 0 to above capacity, time that jumps in
//! both directions, several checks per plan; and their replay on two stores that must agree, step by step.

mod strategies;
mod time_move;

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::rules::UsageKind;
use tidegate::spi::algorithm::{HoldOp, Op};
use tidegate::spi::{
    Adjustment, Check, Gate, KeyStem, LeaseOwner, Plan, PlanMode, ReservationTerms, Role, Store, Subject, Verdict,
};
use tidegate::{Clock, Limit, ManualClock, Rule, StoreError, Timestamp};

use strategies::other_periods;
pub use strategies::{
    ALGORITHMS, calendar_histories, changing_quota_histories, penalty_histories, plan_histories, reservation_histories,
    single_check_histories,
};
pub(crate) use strategies::{any_limit, cost, max_delay, mode, penalty, role, time_move};
pub(crate) use time_move::TimeMove;

/// The start of every history: in September 2026.
pub(crate) const START: u64 = 1_790_000_000_123_456;

#[derive(Clone, Debug)]
pub struct History {
    limits: Vec<(Limit, Role)>,
    /// The rule of each limit, by number.
    rules: Vec<usize>,
    mode: PlanMode,
    /// How long reservations last, in microseconds.
    reservation_ttl: u64,
    /// Which limits are of rules that count tokens, one bit each.
    usage: u8,
    /// What the amounts and calendars of quotas are changed to.
    changes: Vec<u64>,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Move(TimeMove),
    Take(Cost, Option<u64>),
    TakeUpTo(Cost, u64),
    Peek(Cost),
    /// For which take, if it is for an earlier one.
    Charge(Cost, Option<usize>),
    /// Of which take; the share of its cost, in quarters; and whether its checks are refunded together.
    Refund(usize, u64, bool),
    /// Of the slots of which take, and what happens to them.
    UpdateSlots(usize, SlotUpdate),
    /// With one of a few idempotency keys, or with none; and whether only rules that count tokens hold the cost.
    Reserve(Cost, Option<u8>, bool),
    /// Of which reservation, and the cost that is committed, unless it is released.
    End(usize, Option<Cost>),
    /// To other amounts and calendars of the quotas, or to those at the start.
    Change(usize),
    Forget,
}

#[derive(Clone, Copy, Debug)]
enum SlotUpdate {
    Renew,
    RenewOrRetake,
    Release,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u64),
    /// The limit's amount, plus or minus a few units.
    Amount(i64),
}

/// How far time may run backwards in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackwardTime {
    Never,
    Freely,
    /// At most by the margin within which no store forgets.
    WithinMargin,
}

impl History {
    /// A history in which every limit is a rule of its own.
    fn new(limits: Vec<(Limit, Role)>, mode: PlanMode, steps: Vec<Step>) -> Self {
        Self {
            rules: (0..limits.len()).collect(),
            limits,
            mode,
            reservation_ttl: 1,
            usage: 0,
            changes: Vec::new(),
            steps,
        }
    }

    pub fn length(&self) -> u64 {
        self.steps.len() as u64
    }

    /// Whether parts of its plans, decided one after the other, find a reservation that was made before: by the hold of an enforced check.
    fn is_repeatable_in_parts(&self) -> bool {
        let is_enforced_hold = |(limit, role): &(Limit, Role)| limit.keeps_holds() && *role == Role::Enforced;
        self.mode == PlanMode::AllOrNothing && self.limits.iter().any(is_enforced_hold)
    }

    /// The gates, with quotas that are changed to this.
    fn gates(&self, change: Option<u64>) -> Vec<Gate> {
        let gate = |(index, (limit, role)): (usize, &(Limit, Role))| {
            let rule = format!("r{}", self.rules[index]);
            let name = if self.rules[index] == index { String::new() } else { format!("{index}") };
            let limit = change.map_or(*limit, |change| changed_quota(limit, change));
            let stem = KeyStem::for_rule(&rule, &limit, &name);
            let mut rule = Rule::new(rule, limit).with_per(["subject"]);
            rule.usage = (self.usage >> index & 1 == 1).then_some(UsageKind::Total);
            Gate::new(rule, name, limit).with_role(*role).with_stem(stem)
        };
        self.limits.iter().enumerate().map(gate).collect()
    }

    /// The terms of a reservation of the step `number`, with an idempotency key or none; and whether only rules that count tokens hold its
    /// cost.
    fn terms(
        &self,
        number: u64,
        key: Option<u8>,
        usage_only: bool,
        backwards: BackwardTime,
    ) -> (ReservationTerms, bool) {
        let in_parts = backwards == BackwardTime::Never;
        let key = key.filter(|_| !in_parts || self.is_repeatable_in_parts());
        let owner = match key.map(u64::from) {
            None => owner(number, backwards),
            // Of no other step.
            Some(key) if in_parts => owner((1 << 50) + key, backwards),
            Some(key) => owner(3 * key, backwards),
        };
        let terms = ReservationTerms::new(owner, Duration::from_micros(self.reservation_ttl), key.is_some());
        // In parts, only without a key: see `ReservationTerms::with_usage_only`.
        let usage_only = usage_only && !(in_parts && key.is_some());
        (if usage_only { terms.with_usage_only() } else { terms }, usage_only)
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each kind of step")]
    /// Replays the history on two stores that run on `clock`; the error describes the first disagreement.
    pub async fn agree(
        &self,
        clock: &ManualClock,
        one: &impl Store,
        other: &impl Store,
        backwards: BackwardTime,
    ) -> Result<(), String> {
        let hash = next_hash();
        // Pairs share a partition, so that in a cluster some keys of a plan share a slot and some do not.
        let subject = |index: usize| Subject::from_hash(hash ^ (index as u128 / 2) << 96);
        let changes = [None].into_iter().chain(self.changes.iter().copied().map(Some));
        let variants: Vec<Vec<Gate>> = changes.map(|change| self.gates(change)).collect();
        let (mut gates, mut highest, mut last_retry) = (&variants[0], START, None);
        let mut receipts: Vec<Vec<Adjustment<'_>>> = Vec::new();
        let mut slots: Vec<Vec<Adjustment<'_>>> = Vec::new();
        let mut reservations: Vec<Vec<Adjustment<'_>>> = Vec::new();
        clock.set(Timestamp::from_micros(START));
        for (number, step) in self.steps.iter().enumerate() {
            let place = || format!("step {number}, {step:?} at {:?}", clock.now());
            let checks = |cost: Cost| {
                let check = |(index, gate)| Check::new(gate, subject(self.rules[index]), cost.of(gate));
                let plan = Plan::new(gates.iter().enumerate().map(check)).unwrap().with_mode(self.mode);
                plan.with_lease_owner(owner(number as u64, backwards))
            };
            match *step {
                Step::Move(by) => {
                    let target = by.from(clock.now().as_micros(), gates[0].limit(), last_retry);
                    let floor = match backwards {
                        BackwardTime::Never => highest,
                        BackwardTime::WithinMargin => highest - 2_000_000,
                        BackwardTime::Freely => START / 2,
                    };
                    let now = target.clamp(floor, Timestamp::MAX.as_micros());
                    highest = highest.max(now);
                    clock.set(Timestamp::from_micros(now));
                }
                Step::Take(cost, _) | Step::TakeUpTo(cost, _) | Step::Peek(cost) | Step::Reserve(cost, ..) => {
                    let mut holds_all = false;
                    let plan = match *step {
                        Step::Take(_, Some(delay)) => checks(cost).with_max_delay(Duration::from_micros(delay)),
                        Step::TakeUpTo(_, most) => checks(cost).with_max_units(most),
                        Step::Peek(_) => checks(cost).with_peek(),
                        Step::Reserve(_, key, usage_only) => {
                            let (terms, usage_only) = self.terms(number as u64, key, usage_only, backwards);
                            holds_all = !usage_only;
                            checks(cost).with_reservation(terms)
                        }
                        _ => checks(cost),
                    };
                    let verdict = same(one.decide(&plan).await, other.decide(&plan).await, place)?;
                    last_retry = longest_retry(&verdict).or(last_retry);
                    let refunds = refunds(&plan, &verdict);
                    if plan.reservation().is_some() {
                        reservations.push(releases(&plan));
                    } else {
                        slots.push(refunds.iter().filter(|refund| refund.limit.has_slots()).copied().collect());
                    }
                    if !holds_all {
                        receipts.push(refunds);
                    }
                }
                Step::Charge(cost, which) => {
                    let plan = checks(cost);
                    let earlier = which.and_then(|which| receipts.get(which.checked_rem(receipts.len())?));
                    let charges = charges(&plan, earlier.map_or(&[], Vec::as_slice));
                    one.apply(&charges).await.outcomes().unwrap();
                    other.apply(&charges).await.outcomes().unwrap();
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
                        one.apply(&receipt).await.outcomes().unwrap();
                        other.apply(&receipt).await.outcomes().unwrap();
                    }
                }
                Step::UpdateSlots(which, update) => {
                    let slots = which.checked_rem(slots.len()).map(|index| &slots[index]);
                    if let Some(slots) = slots.filter(|slots| !slots.is_empty()) {
                        let updates: Vec<_> = slots.iter().map(|slot| update.of(slot)).collect();
                        same(one.apply(&updates).await.outcomes(), other.apply(&updates).await.outcomes(), place)?;
                    }
                }
                Step::End(which, ending) => {
                    let holds = which.checked_rem(reservations.len()).map(|index| &reservations[index]);
                    if let Some(holds) = holds.filter(|holds| !holds.is_empty()) {
                        let endings: Vec<_> = holds.iter().map(|hold| ending_of(hold, ending)).collect();
                        same(one.apply(&endings).await.outcomes(), other.apply(&endings).await.outcomes(), place)?;
                    }
                    // Not every store in between tells them.
                    let plan = checks(Cost::Units(1));
                    if let (Ok(a), Ok(b)) = (one.outstanding(&plan).await, other.outstanding(&plan).await) {
                        same(Ok(a), Ok(b), place)?;
                    }
                }
                Step::Change(which) => gates = &variants[which % variants.len()],
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

/// The hash of another subject than all before. Spread, since the memory store chooses a shard by the highest bits.
pub(crate) fn next_hash() -> u128 {
    static SUBJECTS: AtomicU64 = AtomicU64::new(1);
    let number = u128::from(SUBJECTS.fetch_add(1, Ordering::Relaxed));
    number.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645)
}

/// What two stores agree on.
fn same<T: Debug + PartialEq>(
    one: Result<T, StoreError>,
    other: Result<T, StoreError>,
    place: impl FnOnce() -> String,
) -> Result<T, String> {
    let (one, other) = (one.unwrap(), other.unwrap());
    if one == other { Ok(one) } else { Err(format!("{}:\n{one:#?}\n{other:#?}", place())) }
}

pub(crate) fn longest_retry(verdict: &Verdict) -> Option<Duration> {
    verdict.checks().iter().filter_map(|check| check.outcome.retry_after).max()
}

/// Charges of `plan`, for the takes that `earlier` refunds, if they are of the same keys.
fn charges<'g>(plan: &Plan<'g>, earlier: &[Adjustment<'_>]) -> Vec<Adjustment<'g>> {
    let charge = |check: &Check<'g>| {
        let mut charge = Adjustment::charge(check);
        let taken = earlier.iter().find(|refund| refund.key == charge.key);
        if let (Some(Op::Refund { position: taken, .. }), Op::Charge { position, .. }) =
            (taken.map(|refund| refund.op), &mut charge.op)
        {
            *position = taken;
        }
        charge
    };
    plan.checks().iter().map(charge).collect()
}

fn refunds<'g>(plan: &Plan<'g>, verdict: &Verdict) -> Vec<Adjustment<'g>> {
    let consumed = plan.checks().iter().zip(verdict.checks());
    let consumed = consumed.filter(|(check, verdict)| verdict.consumed && !plan.is_hold(check));
    let refund = |(check, result): (&Check<'g>, &tidegate::spi::CheckVerdict)| {
        let cost = check.cost().saturating_mul(verdict.granted().max(1));
        Adjustment::bundled_refund(check, cost, result.position)
    };
    consumed.map(refund).collect()
}

/// The releases of what `plan` holds, if it was admitted.
fn releases<'g>(plan: &Plan<'g>) -> Vec<Adjustment<'g>> {
    let position = plan.reservation().unwrap().position();
    let release = |check: &Check<'g>| match check.gate().limit() {
        _ if plan.is_hold(check) => Some(Adjustment::new(check, Op::Hold(HoldOp::Release { position }))),
        limit if limit.has_slots() => Some(Adjustment::release(check, plan.lease_owner()?)),
        _ => None,
    };
    plan.checks().iter().filter_map(release).collect()
}

/// The end of the hold that `release` releases.
fn ending_of<'g>(release: &Adjustment<'g>, committed: Option<Cost>) -> Adjustment<'g> {
    let mut ending = *release;
    if let (Some(cost), Op::Hold(HoldOp::Release { position })) = (committed, release.op) {
        ending.op = Op::Hold(HoldOp::Commit { cost: cost.of(release.gate), position });
    }
    ending
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

/// The same quota with another amount, in another time zone, and from another day on. Other limits stay the same.
pub(crate) fn changed_quota(limit: &Limit, change: u64) -> Limit {
    let Limit::Quota(quota) = limit else { return *limit };
    Limit::quota_with_grace(change % 200, change % 7, other_periods(quota.periods(), change)).unwrap()
}
