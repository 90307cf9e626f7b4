//! `GrantPart`: what one check took.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use super::Costs;
use crate::algorithm::TakePosition;
use crate::decision::{BudgetShare, CheckResult};
use crate::limit::{Algorithm, MAX_AMOUNT};
use crate::plan::{Gate, Role};
use crate::spi::Subject;
use crate::{Network, RuleSet};

/// What one check took.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct GrantPart {
    pub(super) rule: SmolStr,
    pub(super) limit_name: SmolStr,
    pub(super) plan: Option<Arc<str>>,
    pub(super) subject: Subject,
    pub(super) partition: u16,
    pub(super) kind: GrantKind,
    /// The cost of all rules that share the check.
    pub(super) cost: u64,
    /// The cost that a settlement has charged for a hold.
    pub(super) settled: Option<u64>,
    pub(super) position: TakePosition,
    /// How long a slot is held without a renewal.
    pub(super) lease: Duration,
    /// Whether the subject is anonymous.
    pub(super) anonymous: bool,
    /// Whether it is a shadow check.
    pub(super) shadow: bool,
    /// The network of the subject, for a charge to its overflow bucket. Not part of the bytes.
    pub(super) network: Option<Network>,
    /// Whether an overflow bucket decided, to which nothing but slots and holds goes back.
    pub(super) overflowed: bool,
    /// Whether it is in the memory of this instance, taken while the store failed.
    pub(super) local: bool,
    /// Whether it is there under the share of this instance.
    pub(super) share: bool,
    /// The costs of further rules that share the check through a budget.
    pub(super) others: Vec<(SmolStr, u64)>,
}

/// How something was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GrantKind {
    /// Consumed at once.
    Taken,
    /// A slot of a concurrency limit, held until it is released or runs out.
    Slot,
    /// Held by a reservation until its actual cost is known, or it runs out.
    Held,
}

impl GrantPart {
    /// What the check with this index took for `units`.
    pub(crate) fn new(index: usize, check: &CheckResult, units: u64, budget_shares: &[BudgetShare]) -> Self {
        let others = budget_shares.iter().filter(|other| other.check == index);
        let kind = match check.algorithm {
            Algorithm::Concurrency => GrantKind::Slot,
            _ if check.hold => GrantKind::Held,
            _ => GrantKind::Taken,
        };
        Self {
            rule: check.rule.clone(),
            limit_name: check.limit_name.clone(),
            plan: check.plan.clone(),
            subject: check.subject,
            partition: check.partition,
            kind,
            cost: check.cost.saturating_mul(units),
            settled: None,
            position: check.position,
            lease: if kind == GrantKind::Slot { check.window().duration().unwrap_or_default() } else { Duration::ZERO },
            anonymous: check.anonymous,
            shadow: check.role == Role::Shadow,
            network: check.network,
            overflowed: check.overflowed && kind == GrantKind::Taken,
            local: check.local,
            share: check.share,
            others: others.map(|other| (other.rule.clone(), other.cost.saturating_mul(units))).collect(),
        }
    }

    /// How it was taken.
    pub const fn kind(&self) -> GrantKind {
        self.kind
    }

    /// Whether it is in the memory of the instance that decided, because the store failed. Other instances cannot end it.
    pub const fn is_local(&self) -> bool {
        self.local
    }

    /// The ids of its rules: several share a check through a budget.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.rule.as_str()).chain(self.others.iter().map(|(rule, _)| rule.as_str()))
    }

    /// How long it lasts unless it is renewed or ends before. `None` if it was consumed at once.
    pub fn duration(&self) -> Option<Duration> {
        match self.kind {
            GrantKind::Taken => None,
            GrantKind::Slot => Some(self.lease),
            GrantKind::Held => Some(Duration::from_micros(self.position.hold_ttl_micros())),
        }
    }

    pub(super) fn is_endable(&self, has_lost_place: bool) -> bool {
        match self.kind {
            GrantKind::Held => true,
            GrantKind::Slot => self.cost > 0,
            GrantKind::Taken => self.cost > 0 && !has_lost_place && !self.overflowed,
        }
    }

    /// Its limit under the current rules. `None` if it does not exist any more.
    pub(super) fn gate<'r>(&self, rules: &'r RuleSet) -> Option<&'r Gate> {
        rules.gate(&self.rule, self.plan.as_deref(), &self.limit_name)
    }

    /// The actual cost of all its rules; `None` if it is unknown for all of them.
    pub(super) fn actual(&self, rules: &RuleSet, costs: &Costs) -> Option<u64> {
        let others: u64 = self.others.iter().map(|(_, cost)| *cost).fold(0, u64::saturating_add);
        let own = (&self.rule, self.cost.saturating_sub(others));
        let each = || self.others.iter().map(|(rule, cost)| (rule, *cost)).chain([own]);
        each().find_map(|(rule, _)| costs.actual(rules, rule))?;
        let total = each().map(|(rule, cost)| costs.actual(rules, rule).unwrap_or(cost)).fold(0, u64::saturating_add);
        Some(total.min(MAX_AMOUNT))
    }
}
