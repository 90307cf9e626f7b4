//! `Ending`: how a grant ends. `Costs`: what it cost.

use smol_str::SmolStr;

use super::Grant;
use crate::RuleSet;

/// How a [`Grant`] ends, which says what becomes of each part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// As if the request had never been made.
    Refund,
    /// With the actual costs. May come again with other costs.
    Settle(Costs),
    /// A reservation with its actual costs, once.
    Commit(Costs),
    /// Slots and reservations without a cost.
    Release,
}

/// The actual cost under each rule of a grant. Under all others it stays as it was taken.
///
/// ```
/// use tidegate::grants::Costs;
///
/// let same_everywhere = Costs::from(1_234);
/// let by_rule = Costs::default().with("tokens", 1_234).with("requests", 1);
/// assert_ne!(same_everywhere, by_rule);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    by_rule: Vec<(SmolStr, u64)>,
    /// The cost under every other rule without a cost of its own.
    other: Option<u64>,
}

impl Costs {
    /// The cost that `actual` returns for each rule of `grant`; `None` keeps the cost.
    pub fn of(grant: &Grant, actual: impl Fn(&str) -> Option<u64>) -> Self {
        let by_rule = grant.rules().filter_map(|rule| Some((SmolStr::from(rule), actual(rule)?)));
        Self { by_rule: by_rule.collect(), other: None }
    }

    /// Sets the cost under a rule.
    pub fn with(mut self, rule: impl Into<SmolStr>, cost: u64) -> Self {
        self.by_rule.push((rule.into(), cost));
        self
    }

    /// The cost under `rule`, if it is known.
    pub(super) fn actual(&self, rules: &RuleSet, rule: &str) -> Option<u64> {
        let stated = self.by_rule.iter().rev().find(|(name, _)| name == rule).map(|(_, cost)| *cost);
        let has_own_cost = || rules.rule(rule).is_some_and(crate::Rule::has_own_cost);
        stated.or_else(|| self.other.filter(|_| !has_own_cost()))
    }
}

impl From<u64> for Costs {
    /// The same cost under every rule without a [cost of its own](crate::Rule::cost). Those keep what was taken.
    fn from(cost: u64) -> Self {
        Self { by_rule: Vec::new(), other: Some(cost) }
    }
}
