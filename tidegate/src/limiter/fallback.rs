//! `Fallback`: what judges a plan while the store fails, as its rules ask for. It must not speak before the store has failed.
//!
//! If one rule is closed, the request is refused. Otherwise the checks of rules that are local or static make a smaller plan,
//! all or nothing, which is decided in the memory of this instance; rules that are open or degraded let the request pass.
//! Whatever comes of it says that it is degraded, and has an empty receipt: what it took is in no store.

use std::sync::{Arc, OnceLock};

use crate::key::{Key, KeyStem};
use crate::plan::{Check, Gate, Plan, Role};
use crate::store::StoreError;
use crate::{Decision, MemoryStore, OnFailure};

/// The name of the limit that a static rule has while the store fails.
const STATIC: &str = "static";

/// Judges without the store. Clones share what they know.
#[derive(Clone, Debug)]
pub(crate) struct Fallback {
    /// Made when it is first needed: most never are.
    memory: Arc<OnceLock<MemoryStore>>,
    /// How many instances there are, unless the store knows.
    pub(crate) instances: u32,
}

impl Fallback {
    /// By itself.
    pub(crate) fn alone() -> Self {
        Self { memory: Arc::default(), instances: 1 }
    }

    /// The same, in another memory.
    pub(crate) fn within(self, memory: MemoryStore) -> Self {
        Self { memory: Arc::new(OnceLock::from(memory)), ..self }
    }

    /// Decides `plan` after the store failed with `error`. Returns the error if a rule is closed then. `known` is the number of
    /// instances that the store has counted.
    pub(crate) fn decide(
        &self,
        plan: &Plan<'_>,
        error: StoreError,
        known: Option<u32>,
    ) -> Result<Decision, StoreError> {
        if plan.fails_closed() {
            return Err(error);
        }
        let instances = known.unwrap_or(self.instances);
        let gates: Vec<(Gate, &Check<'_>)> =
            judged_here(plan).map(|check| (stand_in(check, instances), check)).collect();
        let smaller = plan.with_checks(gates.iter().map(|(gate, check)| match check.on_failure() {
            // It counts requests, whatever they cost; but what costs nothing takes nothing.
            OnFailure::Static => {
                let requests = if check.cost() == 0 { 0 } else { plan.requests() };
                Check::from_key(gate, Key::new(gate.stem(), gate.own_tag(), gate.own_tag()), requests)
            }
            _ => Check::from_key(gate, *check.key(), check.cost()).with_anonymous(check.is_anonymous()),
        }));
        let memory = self.memory.get_or_init(MemoryStore::new);
        let verdict = memory.decide_now(&smaller);
        Ok(Decision::new(&smaller, &verdict).degraded_by(error.kind(), plan.is_security()))
    }
}

/// The checks that this instance judges by itself. A static rule with several limits has one cap.
fn judged_here<'p, 'r>(plan: &'p Plan<'r>) -> impl Iterator<Item = &'p Check<'r>> {
    let of_same_rule = |one: &Check<'_>, other: &Check<'_>| one.gate().rule() == other.gate().rule();
    plan.checks().iter().enumerate().filter_map(move |(place, check)| {
        let earlier = &plan.checks()[..place];
        let counts = check.gate().role() != Role::Shadow
            && match check.on_failure() {
                OnFailure::Local => true,
                OnFailure::Static => !earlier.iter().any(|earlier| of_same_rule(earlier, check)),
                OnFailure::Open | OnFailure::Degraded | OnFailure::Closed => false,
            };
        counts.then_some(check)
    })
}

/// The gate that stands in for that of `check`: its share, or the cap of the rule.
fn stand_in(check: &Check<'_>, instances: u32) -> Gate {
    let gate = check.gate();
    match (check.on_failure(), gate.static_limit()) {
        (OnFailure::Static, Some(limit)) => {
            let stem = KeyStem::for_rule(gate.rule(), limit, STATIC);
            Gate::from_names(gate.shared_rule().clone(), STATIC.into(), *limit, gate.role(), stem)
                .with_security(check.is_security())
        }
        _ => gate.with_limit(gate.limit().share(instances)).with_security(check.is_security()),
    }
}
