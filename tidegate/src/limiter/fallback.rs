//! `Fallback`: decides plans while the store fails.
//!
//! If a rule is closed, the request is refused. Otherwise the checks of local, share and static rules form a smaller plan, which is
//! decided in the memory of this instance; open and degraded rules let the request pass. The decision is marked as degraded and
//! has an empty receipt, since nothing was consumed in the store.

use std::sync::{Arc, OnceLock};

use crate::algorithm::holds::HoldEnding;
use crate::key::{Key, KeyStem};
use crate::plan::{Check, Gate, Plan, Role};
use crate::store::{Adjustment, StoreError};
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

/// A check that this instance decides, with its gate in memory.
struct LocalCheck<'p, 'r> {
    check: &'p Check<'r>,
    gate: Gate,
    /// Whether it is the static limit of its rule.
    is_static: bool,
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
        if plan.fails_closed(&error) {
            return Err(error);
        }
        let instances = counted_instances.unwrap_or(self.instances);
        let checks = local_checks(plan, &error, instances);
        let local_plan = plan.with_checks(checks.iter().map(|local| local.check(plan)));
        let store = self.store.get_or_init(MemoryStore::new);
        let verdict = store.decide_now(&local_plan);
        Ok(Decision::new(&local_plan, &verdict).made_locally(error.kind(), plan.is_security()))
    }

    /// Renews and releases slots that were taken in memory. Returns whether all of them were held.
    pub(crate) fn update_slots(&self, updates: &[Adjustment<'_>]) -> bool {
        if updates.is_empty() {
            return true;
        }
        self.store.get().is_some_and(|store| store.apply_all(updates).iter().all(|held| *held))
    }

    /// Commits and releases holds that were made in memory.
    pub(crate) fn end_holds(&self, endings: &[Adjustment<'_>]) -> Vec<HoldEnding> {
        match self.store.get() {
            Some(store) if !endings.is_empty() => store.apply_each(endings),
            _ => vec![HoldEnding::NotFound; endings.len()],
        }
    }
}

/// The checks that this instance decides. A static rule has one check, even with several limits.
fn local_checks<'p, 'r>(plan: &'p Plan<'r>, error: &StoreError, instances: u32) -> Vec<LocalCheck<'p, 'r>> {
    let mut checks: Vec<LocalCheck<'p, 'r>> = Vec::new();
    for check in plan.enforced().filter(|check| !is_passed_by_group(plan, check, error)) {
        let gate = check.gate();
        let local = |limit| gate.with_limit(limit).with_security(check.is_security());
        let (gate, is_static) = match (check.policy(error), gate.static_limit()) {
            (OnFailure::Static, Some(limit)) => {
                if checks.iter().any(|earlier| earlier.is_static && earlier.gate.rule() == gate.rule()) {
                    continue;
                }
                let stem = KeyStem::for_rule(gate.rule(), limit, STATIC_LIMIT_NAME);
                let name = STATIC_LIMIT_NAME.into();
                let cap = Gate::from_names(gate.rule_smol_str().clone(), name, *limit, gate.role(), stem);
                (cap.with_security(check.is_security()), true)
            }
            (OnFailure::Local, _) => (local(*gate.limit()), false),
            (OnFailure::Share, _) => (local(gate.limit().share(instances)), false),
            (OnFailure::Open | OnFailure::Degraded | OnFailure::Closed | OnFailure::Static, _) => continue,
        };
        checks.push(LocalCheck { check, gate, is_static });
    }
    checks
}

/// Whether `check` is in a group of which another member lets the request pass: the group denies only if all its members do.
fn is_passed_by_group(plan: &Plan<'_>, check: &Check<'_>, error: &StoreError) -> bool {
    let role = check.gate().role();
    let passes = |other: &Check<'_>| other.gate().role() == role && other.policy(error).lets_pass();
    matches!(role, Role::AnyOf(_)) && plan.enforced().any(passes)
}

impl LocalCheck<'_, '_> {
    /// The check of `plan` in memory.
    fn check<'s>(&'s self, plan: &Plan<'_>) -> Check<'s> {
        let Self { check, gate, is_static } = self;
        if *is_static {
            // It counts requests, whatever their cost, unless all of them are free.
            let is_free = |other: &Check<'_>| other.gate().rule() != gate.rule() || other.cost() == 0;
            let requests = if plan.enforced().all(is_free) { 0 } else { plan.requests() };
            return Check::from_key(gate, Key::new(gate.stem(), gate.own_tag(), gate.own_tag()), requests);
        }
        let local = Check::from_key(gate, *check.key(), check.cost());
        local.with_anonymous(check.is_anonymous()).with_network(check.network())
    }
}
