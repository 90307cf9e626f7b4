//! `Fallback`: decides plans while the store fails.
//!
//! If a rule is closed, the request is refused. Otherwise the checks of local, share and static rules form a smaller plan, which is
//! decided in the memory of this instance, static rules by plain takes even in a reservation; open and degraded rules let the request pass. The decision is marked as degraded and
//! consumed nothing in the store that could be given back.

use std::sync::{Arc, OnceLock};

use crate::algorithm::AdjustmentOutcome;
use crate::key::{Key, KeyStem};
use crate::plan::{Check, Gate, Plan, Role};
use crate::spi::{CheckVerdict, Verdict};
use crate::store::{Adjustment, AdjustmentResults, StoreError};
use crate::{Decision, Limit, MemoryStore, OnFailure, Timestamp};

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
    kind: LocalLimit,
}

/// The limit of a check in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalLimit {
    Whole,
    Share,
    Static,
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

    /// The time in memory.
    pub(crate) fn now(&self) -> Timestamp {
        self.store.get_or_init(MemoryStore::new).now()
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
        // It has no journal, so it cannot fail.
        let verdict = store.decide_now(&local_plan);
        let static_holds = static_holds(&local_plan, &verdict, &checks);
        if !static_holds.is_empty() {
            drop(store.apply_now(&static_holds));
        }
        let mut decision = Decision::new(&local_plan, &verdict);
        for (result, local) in decision.checks_mut().iter_mut().zip(&checks) {
            result.share = local.kind == LocalLimit::Share;
            result.hold &= local.kind != LocalLimit::Static;
        }
        Ok(decision.made_locally(error.kind(), plan))
    }

    /// Renews, releases and commits what was taken in memory.
    pub(crate) fn apply(&self, adjustments: &[Adjustment<'_>], counted_instances: Option<u32>) -> AdjustmentResults {
        match self.store.get() {
            _ if adjustments.is_empty() => AdjustmentResults::default(),
            Some(store) => {
                let limits = self.local_limits(adjustments, counted_instances);
                store.apply_now(&with_limits(adjustments, &limits))
            }
            None => adjustments.iter().map(|_| AdjustmentOutcome::NotFound).collect(),
        }
    }

    /// The limits under which the states of `adjustments` are kept in memory: a charge by another limit would be of another size.
    fn local_limits(&self, adjustments: &[Adjustment<'_>], counted_instances: Option<u32>) -> Vec<Limit> {
        let instances = counted_instances.unwrap_or(self.instances);
        let local_limit = |one: &Adjustment<'_>| if one.share { one.limit.share(instances) } else { *one.limit };
        adjustments.iter().map(local_limit).collect()
    }
}

/// Commits what a reservation holds under static limits: they count the requests that begin, for which a take is enough. The reservation
/// does not contain them, so nothing else would end these holds.
fn static_holds<'c>(plan: &Plan<'c>, verdict: &Verdict, checks: &[LocalCheck<'_, '_>]) -> Vec<Adjustment<'c>> {
    let results = plan.checks().iter().zip(verdict.checks()).zip(checks);
    let commit = |((check, result), local): ((&Check<'c>, &CheckVerdict), &LocalCheck<'_, '_>)| {
        let is_hold = local.kind == LocalLimit::Static && result.consumed && plan.is_hold(check);
        is_hold.then(|| Adjustment::commit_now(plan, check, result.position)).flatten()
    };
    results.filter_map(commit).collect()
}

/// The same adjustments under other limits.
fn with_limits<'l>(adjustments: &[Adjustment<'l>], limits: &'l [Limit]) -> Vec<Adjustment<'l>> {
    adjustments.iter().zip(limits).map(|(one, limit)| Adjustment { limit, ..*one }).collect()
}

/// The checks that this instance decides. A static rule has one check, even with several limits.
fn local_checks<'p, 'r>(plan: &'p Plan<'r>, error: &StoreError, instances: u32) -> Vec<LocalCheck<'p, 'r>> {
    let mut checks: Vec<LocalCheck<'p, 'r>> = Vec::new();
    for check in plan.enforced().filter(|check| !is_passed_by_group(plan, check, error)) {
        let gate = check.gate();
        let (gate, kind) = match (check.policy(error), gate.rule().static_limit) {
            (OnFailure::Static, Some(limit)) => {
                if checks
                    .iter()
                    .any(|earlier| earlier.kind == LocalLimit::Static && earlier.gate.rule().id == gate.rule().id)
                {
                    continue;
                }
                // Rules that share a budget have a static limit each.
                let stem = KeyStem::for_rule(&gate.rule().id, &limit, STATIC_LIMIT_NAME);
                let of_instance = Gate::new(Arc::clone(gate.rule_arc()), STATIC_LIMIT_NAME, limit);
                (of_instance.with_role(gate.role()).with_stem(stem), LocalLimit::Static)
            }
            (OnFailure::Local, _) => (gate.clone(), LocalLimit::Whole),
            (OnFailure::Share, _) => (gate.with_limit(gate.limit().share(instances)), LocalLimit::Share),
            (OnFailure::Open | OnFailure::Degraded | OnFailure::Closed | OnFailure::Static, _) => continue,
        };
        checks.push(LocalCheck { check, gate, kind });
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
        let Self { check, gate, kind } = self;
        if *kind == LocalLimit::Static {
            // It counts requests, whatever their cost, unless all of them are free.
            let is_free = |other: &Check<'_>| other.gate().rule().id != gate.rule().id || other.cost() == 0;
            let requests = if plan.enforced().all(is_free) { 0 } else { plan.requests() };
            let all = gate.stem().own_subject();
            let local = Check::from_key(gate, Key::new(gate.stem(), all.partition(), all), requests);
            return local.with_security(check.is_security()).with_usage(false);
        }
        let local = Check::from_key(gate, *check.key(), check.cost()).with_security(check.is_security());
        let local = local.with_anonymous(check.is_anonymous()).with_network(check.network());
        local.with_usage(check.settles_by_usage())
    }
}
