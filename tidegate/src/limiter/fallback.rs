//! `Fallback`: decides plans while the store fails.
//!
//! If a rule is closed, the request is refused. Otherwise the checks of local and static rules form a smaller plan, which is
//! decided in the memory of this instance; open and degraded rules let the request pass. The decision is marked as degraded and
//! has an empty receipt, since nothing was consumed in the store.

use std::sync::{Arc, OnceLock};

use crate::key::{Key, KeyStem};
use crate::plan::{Check, Gate, Plan, Role};
use crate::store::StoreError;
use crate::{Decision, MemoryStore, OnFailure};

/// The name of the static limit of a rule.
const STATIC_LIMIT_NAME: &str = "static";

/// Decides without the store. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Fallback {
    /// Created when first needed.
    store: Arc<OnceLock<MemoryStore>>,
    /// The number of instances, in case the store does not count them.
    pub(crate) instances: u32,
}

impl Fallback {
    /// A fallback for a single instance.
    pub(crate) fn new() -> Self {
        Self { store: Arc::default(), instances: 1 }
    }

    /// Sets the memory store.
    pub(crate) fn with_store(self, store: MemoryStore) -> Self {
        Self { store: Arc::new(OnceLock::from(store)), ..self }
    }

    /// Decides `plan` after the store failed with `error`. Returns the error if a rule is closed then. `counted_instances` is
    /// the number of instances that the store has counted.
    pub(crate) fn decide(
        &self,
        plan: &Plan<'_>,
        error: StoreError,
        counted_instances: Option<u32>,
    ) -> Result<Decision, StoreError> {
        if plan.fails_closed() {
            return Err(error);
        }
        let instances = counted_instances.unwrap_or(self.instances);
        let gates: Vec<(Gate, &Check<'_>)> =
            local_checks(plan).map(|check| (local_gate(check, instances), check)).collect();
        let local_plan = plan.with_checks(gates.iter().map(|(gate, check)| match check.on_failure() {
            // A static limit counts requests, whatever their cost; a cost of 0 consumes nothing.
            OnFailure::Static => {
                let requests = if check.cost() == 0 { 0 } else { plan.requests() };
                Check::from_key(gate, Key::new(gate.stem(), gate.own_tag(), gate.own_tag()), requests)
            }
            _ => Check::from_key(gate, *check.key(), check.cost()).with_anonymous(check.is_anonymous()),
        }));
        let store = self.store.get_or_init(MemoryStore::new);
        let verdict = store.decide_now(&local_plan);
        Ok(Decision::new(&local_plan, &verdict).degraded_by(error.kind(), plan.is_security()))
    }
}

/// The checks that this instance decides. A static rule has one check, even with several limits.
fn local_checks<'p, 'r>(plan: &'p Plan<'r>) -> impl Iterator<Item = &'p Check<'r>> {
    let is_same_rule = |one: &Check<'_>, other: &Check<'_>| one.gate().rule() == other.gate().rule();
    plan.checks().iter().enumerate().filter_map(move |(index, check)| {
        let earlier = &plan.checks()[..index];
        let counts = check.gate().role() != Role::Shadow
            && match check.on_failure() {
                OnFailure::Local => true,
                OnFailure::Static => !earlier.iter().any(|earlier| is_same_rule(earlier, check)),
                OnFailure::Open | OnFailure::Degraded | OnFailure::Closed => false,
            };
        counts.then_some(check)
    })
}

/// The gate for `check` in this instance: the share of its limit, or the static limit of its rule.
fn local_gate(check: &Check<'_>, instances: u32) -> Gate {
    let gate = check.gate();
    match (check.on_failure(), gate.static_limit()) {
        (OnFailure::Static, Some(limit)) => {
            let stem = KeyStem::for_rule(gate.rule(), limit, STATIC_LIMIT_NAME);
            Gate::from_names(gate.rule_smol_str().clone(), STATIC_LIMIT_NAME.into(), *limit, gate.role(), stem)
                .with_security(check.is_security())
        }
        _ => gate.with_limit(gate.limit().share(instances)).with_security(check.is_security()),
    }
}
