//! `ReservedTokens`: what the layer has reserved for a request to a language model.

use tidegate::RuleSet;
use tidegate::rules::UsageKind;
use tidegate::spi::Plan;

/// The largest estimate that is reserved under a rule that counts the tokens of the prompt: an extension of the request beside
/// [`UsageReport`](crate::UsageReport). Of several layers, the largest.
///
/// It bounds what a service charges for a prompt whose tokens it does not learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedTokens(pub u64);

impl ReservedTokens {
    /// `None` if no rule counts the prompt.
    pub(crate) fn from_plan(rules: &RuleSet, plan: &Plan<'_>) -> Option<Self> {
        let counts_prompt = |rule: &&str| rules.usage(rule).is_some_and(|kind| kind != UsageKind::Output);
        let names = plan.checks().iter().map(|check| check.gate().rule().id.as_str());
        names.filter(counts_prompt).filter_map(|rule| plan.rule_cost(rule)).max().map(Self)
    }
}
