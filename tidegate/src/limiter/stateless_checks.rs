//! `StatelessChecks`: the checks of a plan for which a full store had no state. The store decided them on a fresh state and wrote
//! nothing, so this instance decides them once more in its memory.

use crate::Decision;
use crate::decision::CheckResult;
use crate::plan::{Check, Plan, PlanMode, Role};
use crate::spi::{CheckVerdict, Verdict};
use crate::store::Adjustment;

pub(super) struct StatelessChecks<'p, 'r> {
    whole: &'p Plan<'r>,
    /// What the store decided.
    verdict: &'p Verdict,
    /// The checks to decide in memory, for the units that the store granted.
    stateless: Plan<'r>,
}

impl<'p, 'r> StatelessChecks<'p, 'r> {
    /// The checks that `verdict` leaves to this instance; `None` if it denies the request, or leaves none that affects it.
    pub(super) fn new(plan: &'p Plan<'r>, verdict: &'p Verdict) -> Option<Self> {
        if verdict.granted() == 0 {
            return None;
        }
        let results = || plan.checks().iter().zip(verdict.checks());
        // The store has a state of another member, and that one admits the request.
        let is_satisfied = |role: Role| {
            let admits =
                |(check, result): (&Check<'_>, &CheckVerdict)| check.gate().role() == role && is_stored_pass(result);
            matches!(role, Role::AnyOf(_)) && results().any(admits)
        };
        let decides = |(check, result): &(&Check<'r>, &CheckVerdict)| {
            result.stateless && !check.is_shadow() && !is_satisfied(check.gate().role())
        };
        let stateless = plan.with_checks(results().filter(decides).map(|(check, _)| *check));
        let stateless = stateless.with_max_units(verdict.granted());
        (!stateless.checks().is_empty()).then_some(Self { whole: plan, verdict, stateless })
    }

    /// The plan to decide in memory.
    pub(super) const fn plan(&self) -> &Plan<'r> {
        &self.stateless
    }

    /// Gives back what the store consumed for units that this instance did not grant, so that such a request consumes nothing.
    pub(super) fn refunds(&self, granted: u64) -> Vec<Adjustment<'r>> {
        let Self { whole: plan, verdict, .. } = self;
        let surplus = verdict.granted().saturating_sub(granted);
        // What an earlier call reserved is not this call's to give back.
        if surplus == 0 || plan.mode() == PlanMode::CountEach || verdict.is_repeat() {
            return Vec::new();
        }
        let refund = |(check, result): (&Check<'r>, &CheckVerdict)| {
            let has_owner = check.gate().limit().has_slots() || plan.is_hold(check);
            let refundable = result.consumed && !result.stateless && (has_owner || !result.overflowed);
            refundable.then(|| Adjustment::undo(plan, check, surplus, result.position))
        };
        plan.checks().iter().zip(verdict.checks()).filter_map(refund).collect()
    }

    /// The decision on the whole plan, after this instance granted its part as `local`.
    pub(super) fn merge(&self, local: &Decision) -> Decision {
        let (plan, mut verdict) = (self.whole, self.verdict.clone());
        verdict.set_granted(local.granted());
        let results = plan.checks().iter().zip(verdict.checks_mut());
        for (check, result) in results.filter(|(_, result)| result.stateless) {
            // A slot or hold is in the memory of this instance, and released there, unless the rule let the request pass without one.
            let is_slot = |own: &&CheckResult| {
                let (gate, subject) = (check.gate(), check.key().subject());
                own.consumed
                    && (own.rule(), own.limit_name(), own.subject())
                        == (gate.rule().id.as_str(), gate.limit_name().as_str(), subject)
            };
            let slot =
                local.checks().iter().find(is_slot).filter(|_| check.gate().limit().has_slots() || plan.is_hold(check));
            result.consumed = slot.is_some();
            result.position = slot.map_or(result.position, |slot| slot.position);
        }
        let mut decision = Decision::new(plan, &verdict).with_delay(local.delay());
        for result in decision.checks_mut().iter_mut().filter(|result| result.local) {
            let is_same = |own: &&CheckResult| {
                (own.rule(), own.limit_name(), own.subject()) == (result.rule(), result.limit_name(), result.subject())
            };
            result.share = local.checks().iter().find(is_same).is_some_and(|own| own.share);
        }
        match local.degraded() {
            Some(kind) => decision.degraded_by(kind, plan),
            None => decision,
        }
    }
}

/// Whether the store has a state for the check that admits the request.
const fn is_stored_pass(result: &CheckVerdict) -> bool {
    !result.stateless && result.outcome.admitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Gate;
    use crate::subject::Subject;
    use crate::{Limit, MemoryStore, Rate};

    /// Whether this instance decides a check of an any-of group, whose members the store has (admitted, stateless).
    fn decides(members: [(bool, bool); 2]) -> bool {
        let limit = Limit::token_bucket(5, Rate::per_second(1).unwrap()).unwrap();
        let gates = ["one", "other"].map(|rule| Gate::for_rule(rule, limit).with_role(Role::AnyOf(0)));
        let plan = Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(1), 1))).unwrap();
        let mut verdict = MemoryStore::new().decide_now(&plan);
        for (result, (admitted, stateless)) in verdict.checks_mut().iter_mut().zip(members) {
            (result.outcome.admitted, result.stateless) = (admitted, stateless);
        }
        StatelessChecks::new(&plan, &verdict).is_some()
    }

    /// How many adjustments give back what a store consumed for `tenant` of a request of which this instance granted this many units.
    fn refunds(mode: PlanMode, granted: u64) -> usize {
        let limit = Limit::token_bucket(5, Rate::per_second(1).unwrap()).unwrap();
        let gates = ["tenant", "user"].map(|rule| Gate::for_rule(rule, limit));
        let plan = Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(1), 1))).unwrap();
        let plan = plan.with_mode(mode).with_max_units(2);
        let mut verdict = MemoryStore::new().decide_now(&plan);
        verdict.checks_mut()[1].stateless = true;
        StatelessChecks::new(&plan, &verdict).map_or(0, |stateless| stateless.refunds(granted).len())
    }

    #[test]
    fn units_that_were_granted_or_count_each_on_their_own_are_not_given_back() {
        assert_eq!((refunds(PlanMode::AllOrNothing, 1), refunds(PlanMode::AllOrNothing, 2)), (1, 0));
        assert_eq!((refunds(PlanMode::CountEach, 1), refunds(PlanMode::CountEach, 2)), (0, 0));
    }

    /// An overflow bucket does not tell whose units it counts, but a slot in it has an owner.
    #[test]
    fn from_an_overflow_bucket_only_a_slot_goes_back() {
        let bucket = Limit::token_bucket(5, Rate::per_second(1).unwrap()).unwrap();
        let slots = Limit::concurrency(5, std::time::Duration::from_secs(30)).unwrap();
        for (limit, overflowed, expected) in
            [(bucket, false, 1), (bucket, true, 0), (slots, false, 1), (slots, true, 1)]
        {
            let gates = [Gate::for_rule("tenant", limit), Gate::for_rule("user", bucket)];
            let plan = Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(1), 1))).unwrap();
            let mut verdict = MemoryStore::new().decide_now(&plan);
            verdict.checks_mut()[0].overflowed = overflowed;
            verdict.checks_mut()[1].stateless = true;
            let stateless = StatelessChecks::new(&plan, &verdict).unwrap();
            assert_eq!(stateless.refunds(0).len(), expected, "{limit:?} {overflowed}");
        }
    }

    #[test]
    fn a_group_is_decided_here_unless_the_store_has_a_state_that_admits_the_request() {
        assert!(!decides([(true, false), (true, true)]), "the store knows a member that admits it");
        assert!(decides([(false, false), (true, true)]), "the store knows a member, and that one denies it");
        assert!(decides([(true, true), (true, true)]));
        assert!(!decides([(true, false), (false, false)]));
    }
}
