//! `ModelStore`: decides plans by definition, on the naive models of their limits.

use std::collections::HashMap;
use std::sync::Mutex;

use tidegate::spi::algorithm::holds::{HoldEnding, HoldStatus, HoldsSummary};
use tidegate::spi::algorithm::{FractionalMicros, HoldOp, Op, TakePosition};
use tidegate::spi::{
    Adjustment, Check, CheckVerdict, HoldRefusal, Key, MAX_AMOUNT, OutstandingHolds, Plan, PlanMode, Role, Store,
    Verdict,
};
use tidegate::{Clock, Limit, ManualClock, Rate, StoreError};

use super::holds::{Holds, Moment};
use super::{Model, ModelRequest, first};
use crate::pure_store::name;

/// A store that decides by the naive model.
#[derive(Debug)]
pub struct ModelStore {
    clock: ManualClock,
    models: Mutex<HashMap<Vec<u8>, Model>>,
    holds: Mutex<HashMap<Vec<u8>, Holds>>,
}

impl ModelStore {
    /// Creates an empty store on `clock`.
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, models: Mutex::default(), holds: Mutex::default() }
    }

    #[allow(clippy::too_many_lines, reason = "the definition of a decision, in one piece")]
    fn run(&self, plan: &Plan<'_>) -> Verdict {
        let consume = !plan.is_peek();
        let now = self.clock.now();
        let mut models = self.models.lock().unwrap();
        let request = |check: &Check<'_>, units: u64| {
            let take = plan.take(check, units);
            ModelRequest {
                now: now.as_micros(),
                cost: take.total(),
                max_delay: take.max_delay().map_or(u64::MAX, |delay| delay.as_micros() as u64),
                owner: take.owner_number(),
            }
        };
        let settled: Vec<(Model, bool)> = plan
            .checks()
            .iter()
            .map(|check| {
                let known = models.get(&name(check.key())).cloned();
                let mut model = known.unwrap_or_else(|| Model::new(check.gate().limit()));
                model.set_limit(check.gate().limit());
                let rebased = model.settle(now.as_micros());
                (model, rebased)
            })
            .collect();
        let mut all_holds = self.holds.lock().unwrap();
        let holds: Vec<Option<Holds>> =
            plan.checks().iter().map(|check| all_holds.get(&name(check.key())).cloned()).collect();
        let moment = |index: usize| {
            let now = now.as_micros();
            Moment { now, window: settled[index].0.window_start(now) }
        };
        let owner = plan.reservation().map_or(0, |terms| terms.owner().number());
        let status =
            |index: usize| holds[index].as_ref().map_or(HoldStatus::Absent, |own| own.status(moment(index), owner));
        let keeps = |index: usize| plan.is_hold(&plan.checks()[index]);
        let mut refusal = None;
        for (index, check) in plan.checks().iter().enumerate().filter(|(index, _)| keeps(*index)) {
            match status(index) {
                _ if check.gate().role() == Role::Shadow => {}
                HoldStatus::Open(units) if units != check.cost() => refusal = refusal.or(Some(HoldRefusal::KeyReused)),
                HoldStatus::Committed(_) | HoldStatus::Released => refusal = Some(HoldRefusal::AlreadyEnded),
                _ => {}
            }
        }
        if let Some(refusal) = refusal {
            return Verdict::refused(now, refusal);
        }
        let is_open = |index: usize| keeps(index) && status(index) == HoldStatus::Open(plan.checks()[index].cost());
        let is_repeat = (0..settled.len()).any(is_open);
        // What has no owner was taken when the reservation was made.
        let has_owner = |index: usize| {
            keeps(index) || matches!(plan.checks()[index].gate().limit(), Limit::Concurrency(_) | Limit::Penalty(_))
        };
        let is_taken_before = |index: usize| is_repeat && !has_owner(index);
        let held = |index: usize| {
            let owner = if keeps(index) { owner } else { 0 };
            holds[index].as_ref().map_or(0, |own| own.held_by_others(moment(index), owner))
        };
        let fits_alone = |index: usize, units: u64| settled[index].0.fits(request(&plan.checks()[index], units));
        let fits = |index: usize, units: u64| {
            let request = request(&plan.checks()[index], units);
            if is_taken_before(index) || is_open(index) {
                return true;
            }
            let beside = ModelRequest { cost: request.cost.saturating_add(held(index)), ..request };
            let has_room = !keeps(index)
                || status(index) == HoldStatus::Absent
                    && holds[index].as_ref().is_none_or(|own| own.has_room(moment(index)));
            fits_alone(index, units) && has_room && (request.cost == 0 || settled[index].0.fits(beside))
        };
        let count_allowed = |units: u64| {
            plan.checks().iter().enumerate().all(|(index, check)| match check.gate().role() {
                Role::Shadow => true,
                Role::AnyOf(_) => (0..settled.len())
                    .filter(|member| plan.checks()[*member].gate().role() == check.gate().role())
                    .any(|member| fits(member, units)),
                _ => fits(index, units),
            })
        };
        let granted = plan.max_units() - first(plan.max_units(), |less| count_allowed(plan.max_units() - less));
        let units = granted.max(1);
        let mut verdicts = Vec::new();
        for (index, check) in plan.checks().iter().enumerate() {
            let (before, rebased) = &settled[index];
            let (request, admitted) = (request(check, units), fits(index, units));
            let is_counted = check.gate().role() != Role::Shadow && !check.gate().limit().has_slots();
            let each = plan.mode() == PlanMode::CountEach && is_counted;
            let consumed = consume && admitted && (request.cost > 0 || keeps(index)) && (granted > 0 || each);
            let consumed = consumed && !is_taken_before(index);
            let is_written = consumed || consume && !admitted;
            if let Some(own) = holds[index].as_ref().filter(|own| is_written && own.is_stale(moment(index))) {
                let mut written = own.clone();
                written.write(moment(index));
                all_holds.insert(name(check.key()), written);
            }
            if keeps(index) || holds[index].is_some() {
                let mut position = TakePosition::default();
                let mut after = before.clone();
                let is_charged =
                    !consumed && consume && !admitted && each && after.charge_denied(request.now, request.cost);
                if consumed && keeps(index) {
                    let terms = plan.reservation().unwrap();
                    position = terms.position();
                    if let limit @ Limit::Quota(_) = check.gate().limit() {
                        let period = outward(limit, before.clone().spend(request.now, 0, 0)).index();
                        position = position.in_period(period);
                    }
                    if !is_open(index) {
                        let own = all_holds.entry(name(check.key())).or_default();
                        own.place(moment(index), owner, request.cost, terms.ttl_micros());
                    }
                } else if consumed {
                    position = outward(check.gate().limit(), after.spend(request.now, request.cost, request.owner));
                }
                let is_rebased = consume && !admitted && *rebased && !fits_alone(index, units);
                let shown = if is_charged { &after } else { before };
                let outcome = shown.outcome_beside_holds(held(index), request, admitted, consumed);
                verdicts.push(CheckVerdict::new(outcome, consumed, position));
                if consumed && !keeps(index) || is_charged || is_rebased {
                    models.insert(name(check.key()), after);
                    if let Some(own) = all_holds.get_mut(&name(check.key())) {
                        own.write(moment(index));
                    }
                }
                continue;
            }
            let mut after = before.clone();
            let mut position = TakePosition::default();
            if consumed {
                position = outward(check.gate().limit(), after.spend(request.now, request.cost, request.owner));
            } else if consume && !admitted && each {
                after.charge_denied(request.now, request.cost);
            }
            verdicts.push(CheckVerdict::new(after.outcome(before, request, admitted), consumed, position));
            if consumed || (consume && !admitted && (each || *rebased)) {
                models.insert(name(check.key()), after);
            }
        }
        for (index, check) in plan.checks().iter().enumerate() {
            // A rule strikes its own penalty, for the same subject.
            let is_sibling = |other: &Check<'_>| {
                let (own, gate) = (check.gate(), other.gate());
                !gate.is_penalty()
                    && (gate.rule(), gate.role()) == (own.rule(), own.role())
                    && other.key().subject() == check.key().subject()
            };
            let denies = |(other, sibling): (usize, &Check<'_>)| is_sibling(sibling) && !fits(other, units);
            let mut after = settled[index].0.clone();
            if consume && plan.checks().iter().enumerate().any(denies) && after.strike(now.as_micros()) {
                let (before, request) = (after.clone(), request(check, 1));
                let outcome = after.outcome(&before, request, after.fits(request));
                verdicts[index] = CheckVerdict::new(outcome, false, TakePosition::default());
                models.insert(name(check.key()), after);
            }
        }
        Verdict::new(now, granted, verdicts).with_repeat(is_repeat)
    }
}

impl ModelStore {
    /// Commits or releases a hold, or releases a slot.
    fn end_hold(&self, Adjustment { key, limit, op, .. }: &Adjustment<'_>) -> HoldEnding {
        let now = self.clock.now().as_micros();
        let (mut models, mut holds) = (self.models.lock().unwrap(), self.holds.lock().unwrap());
        let model = models.entry(name(key)).or_insert_with(|| Model::new(limit));
        model.set_limit(limit);
        let mut settled = model.clone();
        settled.settle(now);
        let moment = Moment { now, window: settled.window_start(now) };
        let (ended, position, cost) = match *op {
            Op::Hold(HoldOp::Commit { cost, position }) => {
                (HoldStatus::Committed(cost.min(MAX_AMOUNT)), position, Some(cost.min(MAX_AMOUNT)))
            }
            Op::Hold(HoldOp::Release { position }) => (HoldStatus::Released, position, None),
            Op::Refund { cost, position } => {
                let is_held = model.refund(now, cost, inward(limit, position));
                return if is_held { HoldEnding::Ended } else { HoldEnding::NotFound };
            }
            _ => panic!("{op:?} ends nothing"),
        };
        let Some(own) = holds.get_mut(&name(key)) else { return HoldEnding::NotFound };
        let made_at = own.made_at(moment, position.index());
        let ending = own.end(moment, position.index(), ended, position.is_keyed_hold());
        if let (HoldEnding::Ended, Some(cost), Some(made_at)) = (ending, cost, made_at) {
            model.charge_reserved(now, cost, made_at, position.overflow_bucket().is_some());
        }
        ending
    }
}

impl Store for ModelStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        Ok(self.run(plan))
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        self.adjust_soon(adjustments);
        Ok(())
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        let now = self.clock.now().as_micros();
        let (mut models, mut holds) = (self.models.lock().unwrap(), self.holds.lock().unwrap());
        let is_stuck = |adjustment: &Adjustment<'_>| match adjustment.op {
            Op::Refund { position, .. } if adjustment.bundled => models
                .get(&name(&adjustment.key))
                .is_some_and(|model| model.is_stuck(now, inward(adjustment.limit, position))),
            _ => false,
        };
        let stays_taken = adjustments.iter().any(is_stuck);
        let applied = adjustments.iter().filter(|adjustment| !(adjustment.bundled && stays_taken));
        for Adjustment { key, limit, op, .. } in applied {
            let model = models.entry(name(key)).or_insert_with(|| Model::new(limit));
            model.set_limit(limit);
            let is_changed = match op {
                Op::Charge { cost, position } => model.charge(now, *cost, inward(limit, *position)),
                Op::Refund { cost, position } => model.refund(now, *cost, inward(limit, *position)),
                _ => panic!("only charges and refunds are adjustments"),
            };
            if let Some(own) = holds.get_mut(&name(key)).filter(|_| is_changed) {
                let mut settled = model.clone();
                settled.settle(now);
                own.write(Moment { now, window: settled.window_start(now) });
            }
        }
    }

    async fn update_slots(&self, updates: &[Adjustment<'_>]) -> Result<Vec<bool>, StoreError> {
        let (now, mut models) = (self.clock.now().as_micros(), self.models.lock().unwrap());
        let update = |Adjustment { key, limit, op, .. }: &Adjustment<'_>| {
            let model = models.entry(name(key)).or_insert_with(|| Model::new(limit));
            model.set_limit(limit);
            match op {
                Op::Renew { position, weight } => model.renew(now, inward(limit, *position), *weight),
                Op::Refund { cost, position } => model.refund(now, *cost, inward(limit, *position)),
                _ => panic!("only renewals and releases update slots"),
            }
        };
        Ok(updates.iter().map(update).collect())
    }

    async fn end_holds(&self, endings: &[Adjustment<'_>]) -> Result<Vec<HoldEnding>, StoreError> {
        let mut results = Vec::new();
        for ending in endings {
            results.push(self.end_hold(ending));
        }
        Ok(results)
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        let (holds, now) = (self.holds.lock().unwrap(), self.clock.now());
        let summary = |check: &Check<'_>| {
            holds.get(&name(check.key())).map_or_else(HoldsSummary::default, |own| own.summary(now.as_micros()))
        };
        Ok(OutstandingHolds { now, checks: plan.checks().iter().map(summary).collect() })
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        for key in keys {
            self.holds.lock().unwrap().remove(&name(key));
            self.models.lock().unwrap().remove(&name(key));
        }
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn outward(limit: &Limit, place: super::Place) -> TakePosition {
    let micros = |shares: u128, rate: Rate| {
        let rate = u128::from(rate.amount());
        FractionalMicros { micros: (shares / rate) as u64, part: (shares % rate) as u64 }
    };
    match limit {
        Limit::TokenBucket(limit) => {
            let [alone, full] = [place.at, place.full].map(|shares| micros(shares, limit.refill()));
            TakePosition::from_bucket(alone, full, place.returned)
        }
        Limit::LeakyBucket(limit) => TakePosition::from_slot(micros(place.at, limit.drain())),
        _ => TakePosition::from_index(place.at as u64),
    }
}

fn inward(limit: &Limit, position: TakePosition) -> super::Place {
    let rate = match limit {
        Limit::TokenBucket(limit) => limit.refill().amount(),
        Limit::LeakyBucket(limit) => limit.drain().amount(),
        _ => 1,
    };
    let [at, full] = [position.slot(), position.full()]
        .map(|moment| u128::from(moment.micros) * u128::from(rate) + u128::from(moment.part));
    super::Place { at, full, returned: position.returned() }
}
