//! `ModelStore`: decides plans by definition, on the naive models of their limits.

use std::collections::HashMap;
use std::sync::Mutex;

use tidegate::spi::algorithm::{FractionalMicros, Op, TakePosition};
use tidegate::spi::{Adjustment, Check, CheckVerdict, Key, Plan, PlanMode, Role, Store, Verdict};
use tidegate::{Clock, Limit, ManualClock, Rate, StoreError};

use super::{Model, ModelRequest, first};
use crate::pure_store::name;

/// A store that decides by the naive model.
#[derive(Debug)]
pub struct ModelStore {
    clock: ManualClock,
    models: Mutex<HashMap<Vec<u8>, Model>>,
}

impl ModelStore {
    /// Creates an empty store on `clock`.
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, models: Mutex::default() }
    }

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
        let fits = |index: usize, units: u64| settled[index].0.fits(request(&plan.checks()[index], units));
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
            let is_counted = check.gate().role() != Role::Shadow && !check.gate().limit().is_held();
            let each = plan.mode() == PlanMode::CountEach && is_counted;
            let consumed = consume && admitted && request.cost > 0 && (granted > 0 || each);
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
        Verdict::new(now, granted, verdicts)
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
        let mut models = self.models.lock().unwrap();
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
            match op {
                Op::Charge { cost, position } => model.charge(now, *cost, inward(limit, *position)),
                Op::Refund { cost, position } => drop(model.refund(now, *cost, inward(limit, *position))),
                _ => panic!("only charges and refunds are adjustments"),
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

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        for key in keys {
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
