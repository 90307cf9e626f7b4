//! `PureStore`: the library's pure functions on a plain map that never expires keys, so that time may jump freely.

use std::collections::HashMap;
use std::sync::Mutex;

use tidegate::spi::algorithm::{self, AdjustmentOutcome, HoldOp, Op, State, holds};
use tidegate::spi::{Adjustment, AdjustmentResults, Check, Key, OutstandingHolds, Plan, Store, Verdict};
use tidegate::{Clock, Limit, ManualClock, StoreError};

use crate::anonymous::blank_free_checks;

/// A map from key name to state.
#[derive(Debug)]
pub struct PureStore {
    clock: ManualClock,
    states: Mutex<HashMap<Vec<u8>, State>>,
    without_debt: bool,
    blanks_free_checks: bool,
}

impl PureStore {
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, states: Mutex::default(), without_debt: false, blanks_free_checks: false }
    }

    /// The same store, in which charges make no debt, as in overflow buckets.
    pub fn without_debt(mut self) -> Self {
        self.without_debt = true;
        self
    }

    /// The same store, in which checks of cost 0 say as much as those of an `AnonymousStore`.
    pub fn with_blank_free_checks(mut self) -> Self {
        self.blanks_free_checks = true;
        self
    }

    /// Applies an operation, and returns whether it was admitted.
    fn apply_one(&self, states: &mut HashMap<Vec<u8>, State>, key: &Key<'_>, limit: &Limit, op: Op) -> bool {
        let mut state = states.remove(&name(key));
        let result = algorithm::apply(&mut state, limit, self.clock.now(), op);
        states.extend(state.map(|state| (name(key), state)));
        result.admitted
    }
}

impl Store for PureStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        let mut states = self.states.lock().unwrap();
        let names: Vec<_> = plan.checks().iter().map(|check| name(check.key())).collect();
        let found: Vec<_> = names.iter().map(|name| states.get(name)).collect();
        let (mut verdict, ops) = Verdict::decide(plan, self.clock.now(), &found, |_| true);
        for (check, ops) in plan.checks().iter().zip(ops) {
            for op in ops {
                self.apply_one(&mut states, check.key(), check.gate().limit(), op);
            }
        }
        if self.blanks_free_checks {
            blank_free_checks(plan, &mut verdict);
        }
        Ok(verdict)
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        let (mut states, now) = (self.states.lock().unwrap(), self.clock.now());
        let is_stuck = |one: &Adjustment<'_>| {
            let state = states.get(&name(&one.key));
            one.is_bundled_place() && !algorithm::decide(state, one.limit, now, one.op).admitted
        };
        let stays_taken = adjustments.iter().any(is_stuck);
        let mut outcomes = Vec::new();
        for one in adjustments {
            if one.bundled && stays_taken {
                outcomes.push(AdjustmentOutcome::NotFound);
                continue;
            }
            let state = states.get(&name(&one.key));
            let op = if self.without_debt { one.op.without_debt() } else { one.op };
            let of_hold = match op {
                Op::Hold(hold @ (HoldOp::Commit { position, .. } | HoldOp::Release { position })) => {
                    Some(holds::ending(holds::status(state, one.limit, now, position.index()), hold))
                }
                _ => None,
            };
            let admitted = self.apply_one(&mut states, &one.key, one.limit, op);
            let of_slot = if admitted { AdjustmentOutcome::Applied } else { AdjustmentOutcome::NotFound };
            outcomes.push(of_hold.unwrap_or(of_slot));
        }
        outcomes.into_iter().collect()
    }

    fn spawn_apply(&self, _: &[Adjustment<'_>]) {
        panic!("histories apply nothing in the background");
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        let (states, now) = (self.states.lock().unwrap(), self.clock.now());
        let summary = |check: &Check<'_>| holds::summary(states.get(&name(check.key())), now);
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

/// The name of a key, as an index into a map.
pub(crate) fn name(key: &Key<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.write_name("", &mut bytes);
    bytes
}
