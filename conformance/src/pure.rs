//! The library's pure functions as a store: a plain map that never forgets, so that time may jump at will.

use std::collections::HashMap;
use std::sync::Mutex;

use tidegate::algorithm::{self, State};
use tidegate::{Adjustment, Clock, Key, ManualClock, Plan, Store, StoreError, Verdict};

/// States by the names of their keys.
#[derive(Debug)]
pub struct PureStore {
    clock: ManualClock,
    states: Mutex<HashMap<Vec<u8>, State>>,
}

impl PureStore {
    /// An empty one, on this clock.
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, states: Mutex::default() }
    }

    fn run(&self, plan: &Plan<'_>, consume: bool) -> Verdict {
        let mut states = self.states.lock().unwrap();
        let names: Vec<_> = plan.checks().iter().map(|check| name(check.key())).collect();
        let (verdict, changes) = Verdict::judge(plan, self.clock.now(), consume, |index| states.get(&names[index]));
        for (name, change) in names.into_iter().zip(changes) {
            if let Some(change) = change {
                let mut state = states.remove(&name);
                State::commit(&mut state, change);
                states.extend(state.map(|state| (name, state)));
            }
        }
        verdict
    }
}

impl Store for PureStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        Ok(self.run(plan, true))
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        Ok(self.run(plan, false))
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        self.adjust_soon(adjustments);
        Ok(())
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        let mut states = self.states.lock().unwrap();
        for Adjustment { key, limit, op } in adjustments {
            let mut state = states.remove(&name(key));
            if let Some(change) = algorithm::apply(state.as_ref(), limit, self.clock.now(), *op).change {
                State::commit(&mut state, change);
            }
            states.extend(state.map(|state| (name(key), state)));
        }
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        for key in keys {
            self.states.lock().unwrap().remove(&name(key));
        }
        Ok(())
    }
}

fn name(key: &Key<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.write_name("", &mut bytes);
    bytes
}
