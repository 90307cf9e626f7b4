//! `PlanPart`: the checks of a plan that one script call decides; how a plan is split into parts, and how the verdicts of the
//! parts are combined.

use std::cmp::Reverse;

use tidegate::spi::{Check, CheckVerdict, Plan, ReservationTerms, Role, Verdict};
use tidegate::{Limit, Timestamp};

use super::recent_denials::RecentDenials;
use crate::slot_map::slot_of;

/// How a plan is split into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitBy {
    /// The checks of one slot are one part.
    Slot,
    /// Each check is a part, for a slot that is being migrated: a script would find only some of its keys.
    Key,
}

/// Some checks of a plan, as a plan of their own.
pub(super) struct PlanPart<'r> {
    pub(super) plan: Plan<'r>,
    pub(super) order: PartOrder,
    /// The indexes of its checks in the whole plan.
    indexes: Vec<usize>,
    /// How many units of the whole plan are one unit of this part.
    unit_scale: u64,
}

/// When a part is decided: parts without a queue first, then in the order of the roles.
///
/// A slot of a concurrency limit is taken after all units that are not held, so that a plan that they deny does not hold it, not even
/// until it is released.
///
/// A place in the queue of a leaky bucket cannot be given back once others wait behind it. Taken last, it is not wasted on a plan
/// that another part denies, and it is known whether another part has found a reservation that was made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartOrder {
    /// 3 for shadow checks, 2 with a queue, 1 with slots to hold, otherwise 0.
    pass: u8,
    pub(super) role: PartRole,
    /// The places in the shortest queue. A long queue is more likely to be shared, so it comes last.
    places: u64,
}

/// What a part means for the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PartRole {
    /// It can deny the plan. Parts that denied recently come first.
    CanDeny { last_denial: Reverse<u64> },
    /// A member of an any-of group whose members are in several parts. One of them must admit.
    AnyOf(u8),
    /// Shadow checks come last, when it is known how many units pass.
    Shadow,
}

/// How many units are requested of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitRequest {
    /// As many as it has, at most this number.
    UpTo(u64),
    /// Exactly this number. A member of a split any-of group that has fewer takes none.
    Exactly(u64),
}

impl<'r> PlanPart<'r> {
    /// The units of the whole plan that this part grants.
    pub(super) fn granted(&self, verdict: &Verdict) -> u64 {
        verdict.granted().saturating_mul(self.unit_scale)
    }

    /// Whether a reservation that is repeated finds nothing of what it has taken here.
    pub(super) fn has_only_takes(&self) -> bool {
        self.plan.checks().iter().all(|check| is_take(&self.plan, check))
    }

    /// Whether it takes slots of concurrency limits, or what has no owner.
    pub(super) fn has_slots_or_takes(&self) -> bool {
        self.plan.checks().iter().any(|check| check.gate().limit().has_slots() || is_take(&self.plan, check))
    }

    /// Whether it finds or refuses a reservation that was made before, for the whole plan.
    pub(super) fn has_enforced_holds(&self) -> bool {
        self.order.role != PartRole::Shadow && self.plan.checks().iter().any(|check| self.plan.is_hold(check))
    }

    /// The checks that find what they have taken, and the others, as parts of `plan` of their own.
    fn separate_takes(self, plan: &Plan<'r>) -> impl Iterator<Item = Self> {
        let is_take = |index: &usize| is_take(plan, &plan.checks()[*index]);
        let (takes, owned): (Vec<_>, Vec<_>) = self.indexes.iter().copied().partition(is_take);
        let part = move |indexes: Vec<usize>| Self {
            plan: sub_plan(plan, &indexes, self.unit_scale).with_max_units(self.plan.max_units()),
            order: self.order,
            indexes,
            unit_scale: self.unit_scale,
        };
        [owned, takes].into_iter().filter(|indexes| !indexes.is_empty()).map(part)
    }
}

/// Whether `check` of a reservation that can be repeated is a take without an owner, such as a place in a queue.
fn is_take(plan: &Plan<'_>, check: &Check<'_>) -> bool {
    let is_owned = || plan.is_hold(check) || check.gate().limit().has_slots() || check.gate().is_penalty();
    plan.reservation().is_some_and(ReservationTerms::is_keyed) && !is_owned()
}

/// Separates takes without an owner from other checks, in the parts of `plan` from `index` on.
pub(super) fn separate_takes<'r>(plan: &Plan<'r>, parts: &mut Vec<PlanPart<'r>>, index: usize) {
    let rest = parts.split_off(index);
    parts.extend(rest.into_iter().flat_map(|part| part.separate_takes(plan)));
}

/// Splits `plan` into parts, in the order in which they are decided.
pub(super) fn split<'r>(
    plan: &Plan<'r>,
    split_by: SplitBy,
    request: UnitRequest,
    denials: &RecentDenials,
) -> Vec<PlanPart<'r>> {
    // Checks with the same split key may be in one part.
    let split_key = |index: usize| match split_by {
        SplitBy::Slot => usize::from(slot_of(plan.checks()[index].key().partition())),
        SplitBy::Key => index,
    };
    let role = |index: usize| plan.checks()[index].gate().role();
    let all = 0..plan.checks().len();
    let in_split_group = |index: usize| {
        matches!(role(index), Role::AnyOf(_))
            && all.clone().any(|other| role(other) == role(index) && split_key(other) != split_key(index))
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in all.clone() {
        let is_shadow = |index: usize| role(index) == Role::Shadow;
        let belongs_to = |group: &&mut Vec<usize>| {
            split_key(group[0]) == split_key(index)
                && !in_split_group(group[0])
                && is_shadow(group[0]) == is_shadow(index)
        };
        match groups.iter_mut().find(belongs_to) {
            Some(group) if !in_split_group(index) => group.push(index),
            _ => groups.push(vec![index]),
        }
    }
    let part = |indexes: Vec<usize>| {
        let unit_scale = match request {
            UnitRequest::Exactly(units) if in_split_group(indexes[0]) => units,
            _ => 1,
        };
        let (UnitRequest::UpTo(units) | UnitRequest::Exactly(units)) = request;
        let part = sub_plan(plan, &indexes, unit_scale).with_max_units(units / unit_scale);
        let queue = |index: usize| match plan.checks()[index].gate().limit() {
            Limit::LeakyBucket(limit) => Some(limit.queue()),
            _ => None,
        };
        let (part_role, places) = match role(indexes[0]) {
            Role::AnyOf(group) if in_split_group(indexes[0]) => {
                // The members of a group are decided one after the other, so they have the same order.
                let members = all.clone().filter(|index| role(*index) == Role::AnyOf(group));
                (PartRole::AnyOf(group), members.filter_map(queue).min())
            }
            Role::Shadow => (PartRole::Shadow, None),
            _ => {
                let last_denial = Reverse(denials.last(&part));
                (PartRole::CanDeny { last_denial }, indexes.iter().copied().filter_map(queue).min())
            }
        };
        let holds_slots = |index: &usize| plan.checks()[*index].gate().limit().has_slots();
        let pass = match part_role {
            PartRole::Shadow => 3,
            _ if places.is_some() => 2,
            // The members of a group have the same order.
            PartRole::AnyOf(group) => {
                u8::from(all.clone().any(|index| role(index) == Role::AnyOf(group) && holds_slots(&index)))
            }
            PartRole::CanDeny { .. } => u8::from(indexes.iter().any(holds_slots)),
        };
        let order = PartOrder { pass, role: part_role, places: places.unwrap_or(0) };
        PlanPart { plan: part, order, indexes, unit_scale }
    };
    let mut parts: Vec<PlanPart<'r>> = groups.into_iter().map(part).collect();
    parts.sort_by_key(|part| (part.order, part.has_only_takes()));
    parts
}

/// The checks at `indexes` as a plan of their own, with their costs multiplied by `unit_scale`.
fn sub_plan<'r>(plan: &Plan<'r>, indexes: &[usize], unit_scale: u64) -> Plan<'r> {
    let checks = indexes.iter().map(|index| plan.checks()[*index]);
    let checks = checks.map(|check| check.with_cost(check.cost().saturating_mul(unit_scale)));
    // Cannot fail: the keys of a plan differ, and so do those of some of its checks.
    let part = Plan::new(checks).unwrap_or_else(|_| plan.clone());
    let part = part.with_mode(plan.mode());
    let part = plan.lease_owner().map_or(part.clone(), |owner| part.with_lease_owner(owner));
    let part = plan.reservation().map_or(part.clone(), |terms| part.with_reservation(*terms));
    plan.max_delay().map_or(part.clone(), |delay| part.with_max_delay(delay))
}

/// Whether the known verdicts deny the plan, whatever the missing ones would be.
pub(super) fn is_denied(parts: &[&PlanPart<'_>], verdicts: &[Option<Verdict>]) -> bool {
    let denies = |verdict: &Option<Verdict>| verdict.as_ref().is_some_and(|verdict| verdict.granted() == 0);
    parts.iter().zip(verdicts).any(|(part, verdict)| match part.order.role {
        PartRole::Shadow => false,
        PartRole::CanDeny { .. } => denies(verdict),
        PartRole::AnyOf(_) => parts
            .iter()
            .zip(verdicts)
            .filter(|(member, _)| member.order == part.order)
            .all(|(_, verdict)| denies(verdict)),
    })
}

/// The units, of those requested, that all parts together grant.
pub(super) fn granted_by_all(parts: &[&PlanPart<'_>], verdicts: &[Option<Verdict>], units: u64) -> u64 {
    let granted_by = |order: PartOrder| {
        let members = parts.iter().zip(verdicts).filter(move |(part, _)| part.order == order);
        members.filter_map(|(part, verdict)| verdict.as_ref().map(|verdict| part.granted(verdict)))
    };
    let each = parts.iter().map(|part| match part.order.role {
        PartRole::Shadow => units,
        PartRole::CanDeny { .. } => granted_by(part.order).min().unwrap_or(units),
        PartRole::AnyOf(_) => granted_by(part.order).max().unwrap_or(0),
    });
    each.fold(units, u64::min)
}

/// Merges the verdicts of the parts into one. A missing verdict is replaced by that on fresh states, and so is one without results: that of
/// a reservation that was refused.
pub(super) fn merge(plan: &Plan<'_>, granted: u64, parts: &[PlanPart<'_>], verdicts: Vec<Option<Verdict>>) -> Verdict {
    let decided_at = verdicts.iter().flatten().map(Verdict::decided_at).max().unwrap_or(Timestamp::from_micros(0));
    let is_repeat = verdicts.iter().flatten().any(Verdict::is_repeat);
    let mut checks: Vec<Option<CheckVerdict>> = plan.checks().iter().map(|_| None).collect();
    let mut entries = Vec::new();
    for (part, verdict) in parts.iter().zip(verdicts) {
        let verdict = verdict.filter(|verdict| verdict.refusal().is_none()).unwrap_or_else(|| {
            let fresh: Vec<_> = part.indexes.iter().map(|_| (true, None)).collect();
            Verdict::replay(&part.plan.clone().with_peek(), decided_at, 1, &fresh, false)
        });
        for (index, check) in part.indexes.iter().zip(verdict.checks()) {
            checks[*index] = Some(*check);
        }
        entries.extend(verdict.entries().filter_map(|(index, id)| Some((*part.indexes.get(index)?, id))));
    }
    let mut merged = Verdict::new(decided_at, granted, checks.into_iter().flatten()).with_repeat(is_repeat);
    for (index, id) in entries {
        merged.set_entry(index, id);
    }
    merged
}

#[cfg(test)]
mod tests {
    use tidegate::spi::{Check, Gate, HoldRefusal, Subject};

    use super::*;

    /// Otherwise the results of later checks would be taken for those of other rules.
    #[test]
    fn a_refused_part_does_not_shift_the_results_of_other_checks() {
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        let window = std::time::Duration::from_secs(60);
        let gates =
            [10, 20, 30].map(|limit| Gate::for_rule(format!("r{limit}"), Limit::fixed_window(limit, window).unwrap()));
        let plan = Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(1), 1))).unwrap();
        let parts = split(&plan, SplitBy::Key, UnitRequest::Exactly(1), &RecentDenials::new(true));
        for refused in 0..3 {
            let verdict = |(index, part): (usize, &PlanPart<'_>)| {
                if index == refused {
                    return Some(Verdict::refused(now, HoldRefusal::AlreadyEnded));
                }
                Some(Verdict::replay(&part.plan, now, 1, &[(true, None)], false))
            };
            let merged = merge(&plan, 0, &parts, parts.iter().enumerate().map(verdict).collect());
            let limits: Vec<u64> = merged.checks().iter().map(|check| check.outcome.limit).collect();
            assert_eq!(limits, [10, 20, 30]);
        }
    }
}
