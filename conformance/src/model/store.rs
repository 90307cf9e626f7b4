//! `ModelStore`: decides plans by definition, on the naive models of their limits.

use std::collections::HashMap;
use std::sync::Mutex;

use tidegate::spi::algorithm::holds::{HoldStatus, HoldsSummary};
use tidegate::spi::algorithm::{AdjustmentOutcome, FractionalMicros, HoldOp, Op, TakePosition};
use tidegate::spi::{
    Adjustment, AdjustmentResults, Check, CheckVerdict, HoldRefusal, Key, MAX_AMOUNT, OutstandingHolds, Plan, PlanMode,
    Role, Store, Verdict,
};
use tidegate::{Clock, Limit, ManualClock, Rate, StoreError};

use super::holds::{Holds, Moment};
use super::{Model, ModelRequest, Place, first};
use crate::pure_store::name;

/// A store that decides by the naive model.
#[derive(Debug)]
pub struct ModelStore {
    clock: ManualClock,
    states: Mutex<HashMap<Vec<u8>, KeyState>>,
}

/// What is known of a key.
#[derive(Clone, Debug)]
struct KeyState {
    model: Model,
    holds: Holds,
}

/// A check, and what is known of its key when it is decided.
struct CheckState<'p> {
    check: &'p Check<'p>,
    model: Model,
    is_rebased: bool,
    holds: Holds,
    moment: Moment,
    /// Whether the check is held, and what is known of that hold.
    keeps: bool,
    status: HoldStatus,
    /// The units of all other holds.
    held: u64,
}

impl CheckState<'_> {
    fn role(&self) -> Role {
        self.check.gate().role()
    }

    /// Whether the same reservation holds the same units already.
    fn is_open(&self) -> bool {
        self.keeps && self.status == HoldStatus::Open(self.check.cost())
    }

    /// Whether it was taken when the reservation was made, if that is repeated: it has no owner.
    fn is_taken_before(&self) -> bool {
        !self.keeps && !matches!(self.check.gate().limit(), Limit::Concurrency(_) | Limit::Penalty(_))
    }

    /// Whether the rule of this check strikes the penalty of `other`: its own, for the same subject.
    fn strikes(&self, other: &Self) -> bool {
        let (own, gate) = (other.check.gate(), self.check.gate());
        !gate.is_penalty()
            && (&gate.rule().id, gate.role()) == (&own.rule().id, own.role())
            && self.check.key().subject() == other.check.key().subject()
    }
}

impl KeyState {
    /// The instant, and the window of the settled model.
    fn moment(&self, now: u64) -> Moment {
        let mut settled = self.model.clone();
        settled.settle(now);
        Moment { now, window: settled.window_start(now) }
    }
}

fn state_of<'s>(states: &'s mut HashMap<Vec<u8>, KeyState>, key: &Key<'_>, limit: &Limit) -> &'s mut KeyState {
    let fresh = || KeyState { model: Model::new(limit), holds: Holds::default() };
    let state = states.entry(name(key)).or_insert_with(fresh);
    state.model.set_limit(limit);
    state
}

impl ModelStore {
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, states: Mutex::default() }
    }

    #[allow(clippy::too_many_lines, reason = "the definition of a decision, in one piece")]
    fn run(&self, plan: &Plan<'_>) -> Verdict {
        let (now, mut states) = (self.clock.now(), self.states.lock().unwrap());
        let (micros, consume) = (now.as_micros(), !plan.is_peek());
        let owner = plan.reservation().map_or(0, |terms| terms.owner().number());
        let request = |check: &Check<'_>, units: u64| {
            let take = plan.take(check, units);
            ModelRequest {
                now: micros,
                cost: take.total(),
                max_delay: take.max_delay().map_or(u64::MAX, |delay| delay.as_micros() as u64),
                owner: take.owner_number(),
            }
        };
        let mut check_states = Vec::new();
        for check in plan.checks() {
            let state = state_of(&mut states, check.key(), check.gate().limit());
            let (moment, KeyState { mut model, holds }) = (state.moment(micros), state.clone());
            let (is_rebased, keeps) = (model.settle(micros), plan.is_hold(check));
            let status = holds.status(moment, owner);
            let held = holds.held_by_others(moment, if keeps { owner } else { 0 });
            check_states.push(CheckState { check, model, is_rebased, holds, moment, keeps, status, held });
        }
        let mut refusal = None;
        for own in check_states.iter().filter(|own| own.keeps && own.role() != Role::Shadow) {
            match own.status {
                HoldStatus::Open(_) if !own.is_open() => refusal = refusal.or(Some(HoldRefusal::KeyReused)),
                HoldStatus::Committed(_) | HoldStatus::Released => refusal = Some(HoldRefusal::AlreadyEnded),
                _ => {}
            }
        }
        if let Some(refusal) = refusal {
            return Verdict::refused(now, refusal);
        }
        let is_repeat = check_states.iter().any(CheckState::is_open);
        let fits = |own: &CheckState<'_>, units: u64| {
            if is_repeat && own.is_taken_before() || own.is_open() {
                return true;
            }
            let request = request(own.check, units);
            let beside = ModelRequest { cost: request.cost.saturating_add(own.held), ..request };
            let has_room = !own.keeps || own.status == HoldStatus::Absent && own.holds.has_room(own.moment);
            own.model.fits(request) && has_room && (request.cost == 0 || own.model.fits(beside))
        };
        let count_allowed = |units: u64| {
            check_states.iter().all(|own| match own.role() {
                Role::Shadow => true,
                role @ Role::AnyOf(_) => {
                    check_states.iter().filter(|member| member.role() == role).any(|member| fits(member, units))
                }
                _ => fits(own, units),
            })
        };
        let granted = plan.max_units() - first(plan.max_units(), |less| count_allowed(plan.max_units() - less));
        let units = granted.max(1);
        let mut verdicts = Vec::new();
        for own in &check_states {
            let CheckState { check, model: before, moment, keeps, .. } = own;
            let (request, admitted) = (request(check, units), fits(own, units));
            let limit = check.gate().limit();
            let each = plan.mode() == PlanMode::CountEach && own.role() != Role::Shadow && !limit.has_slots();
            let consumed = consume
                && admitted
                && (request.cost > 0 || *keeps)
                && (granted > 0 || each)
                && !(is_repeat && own.is_taken_before());
            let is_denied = consume && !admitted;
            let (mut after, mut holds, mut position) = (before.clone(), own.holds.clone(), TakePosition::default());
            // The limit is not asked about what was reserved before.
            let is_asked = !keeps || own.status == HoldStatus::Absent;
            let is_rewritten = is_asked && (own.is_rebased || before.is_in_debt(micros));
            let (mut held, mut is_written) = (own.held, is_denied && is_rewritten && !before.fits(request));
            // A repeat changes nothing, but what lies too far ahead.
            if consumed && !own.is_open() || (consumed || is_denied) && holds.is_stale(*moment) {
                holds.write(*moment);
            }
            if consumed && *keeps {
                let terms = plan.reservation().unwrap();
                held += request.cost;
                position = terms.position();
                if let Limit::Quota(_) = limit {
                    position = position.in_period(outward(limit, before.clone().spend(micros, 0, 0)).index());
                }
                if !own.is_open() {
                    holds.place(*moment, owner, request.cost, terms.ttl_micros());
                }
            } else if consumed {
                position = outward(limit, after.spend(micros, request.cost, request.owner));
                is_written = true;
            } else if is_denied && each {
                is_written |= after.charge_denied(micros, request.cost);
            }
            verdicts.push(CheckVerdict::new(after.outcome(before, held, request, admitted), consumed, position));
            let state = state_of(&mut states, check.key(), limit);
            if is_written {
                holds.write(*moment);
                state.model = after;
            }
            state.holds = holds;
        }
        for (own, verdict) in check_states.iter().zip(&mut verdicts) {
            let mut after = own.model.clone();
            let denies = |other: &CheckState<'_>| other.strikes(own) && !fits(other, units);
            if consume && check_states.iter().any(denies) && after.strike(micros) {
                let request = request(own.check, 1);
                let outcome = after.outcome(&after, 0, request, after.fits(request));
                *verdict = CheckVerdict::new(outcome, false, TakePosition::default());
                state_of(&mut states, own.check.key(), own.check.gate().limit()).model = after;
            }
        }
        Verdict::new(now, granted, verdicts).with_repeat(is_repeat)
    }

    /// Charges, refunds or renews.
    fn adjust(&self, Adjustment { key, limit, op, .. }: &Adjustment<'_>) -> AdjustmentOutcome {
        let (now, mut states) = (self.clock.now().as_micros(), self.states.lock().unwrap());
        let state = state_of(&mut states, key, limit);
        let is_changed = apply(&mut state.model, now, limit, *op);
        if is_changed {
            let moment = state.moment(now);
            state.holds.write(moment);
        }
        // Only slots can be missing.
        let is_found = is_changed || !limit.has_slots() || matches!(op, Op::Charge { .. });
        if is_found { AdjustmentOutcome::Applied } else { AdjustmentOutcome::NotFound }
    }

    /// Commits or releases a hold.
    fn end_hold(&self, Adjustment { key, limit, op, .. }: &Adjustment<'_>) -> AdjustmentOutcome {
        let (now, mut states) = (self.clock.now().as_micros(), self.states.lock().unwrap());
        let state = state_of(&mut states, key, limit);
        let (ended, position, cost) = match *op {
            Op::Hold(HoldOp::Commit { cost, position }) => {
                (HoldStatus::Committed(cost.min(MAX_AMOUNT)), position, Some(cost.min(MAX_AMOUNT)))
            }
            Op::Hold(HoldOp::Release { position }) => (HoldStatus::Released, position, None),
            _ => panic!("{op:?} ends no hold"),
        };
        let moment = state.moment(now);
        let made_at = state.holds.made_at(moment, position.index());
        let ending = state.holds.end(moment, position.index(), ended, position.is_keyed_hold());
        if let (AdjustmentOutcome::Applied, Some(cost), Some(made_at)) = (ending, cost, made_at) {
            state.model.charge_reserved(now, cost, made_at, position.overflow_bucket().is_some());
        }
        ending
    }
}

/// Applies an operation that is not about holds; whether that changed anything.
fn apply(model: &mut Model, now: u64, limit: &Limit, op: Op) -> bool {
    match op {
        Op::Charge { cost, position } => model.charge(now, cost, inward(limit, position)),
        Op::Refund { cost, position } => model.refund(now, cost, inward(limit, position)),
        Op::Renew { position, weight } => model.renew(now, inward(limit, position), weight),
        _ => panic!("{op:?} is decided, or about a hold"),
    }
}

impl Store for ModelStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        Ok(self.run(plan))
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        let now = self.clock.now().as_micros();
        let is_stuck = |one: &Adjustment<'_>| match one.op {
            Op::Refund { position, .. } if one.bundled => {
                let states = self.states.lock().unwrap();
                let state = states.get(&name(&one.key));
                state.is_some_and(|state| state.model.is_stuck(now, inward(one.limit, position)))
            }
            _ => false,
        };
        let stays_taken = adjustments.iter().any(is_stuck);
        let apply_one = |one: &Adjustment<'_>| match one.op {
            _ if one.bundled && stays_taken => AdjustmentOutcome::NotFound,
            Op::Hold(_) => self.end_hold(one),
            _ => self.adjust(one),
        };
        adjustments.iter().map(apply_one).collect()
    }

    fn spawn_apply(&self, _: &[Adjustment<'_>]) {
        panic!("histories apply nothing in the background");
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        let (states, now) = (self.states.lock().unwrap(), self.clock.now());
        let summary = |check: &Check<'_>| {
            let state = states.get(&name(check.key()));
            state.map_or_else(HoldsSummary::default, |state| state.holds.summary(now.as_micros()))
        };
        Ok(OutstandingHolds { now, checks: plan.checks().iter().map(summary).collect() })
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        for key in keys {
            self.states.lock().unwrap().remove(&name(key));
        }
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn outward(limit: &Limit, place: Place) -> TakePosition {
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

fn inward(limit: &Limit, position: TakePosition) -> Place {
    let rate = match limit {
        Limit::TokenBucket(limit) => limit.refill().amount(),
        Limit::LeakyBucket(limit) => limit.drain().amount(),
        _ => 1,
    };
    let [at, full] = [position.slot(), position.full()]
        .map(|moment| u128::from(moment.micros) * u128::from(rate) + u128::from(moment.part));
    Place { at, full, returned: position.returned() }
}
