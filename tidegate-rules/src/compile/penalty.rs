//! Compiling `penalty`: growing blocks, only for rules against guessing.

use tidegate::Penalty;

use super::Compiler;
use crate::quantity::format_duration;
use crate::read::Spanned;
use crate::schema_types::{PenaltySpec, RuleSpec};

/// How many times longer each further block is by default.
const DEFAULT_FACTOR: u64 = 2;

impl Compiler<'_> {
    /// The penalty of a rule; `None` after an error.
    pub(super) fn penalty(&mut self, rule: &RuleSpec, at: &Spanned<PenaltySpec>) -> Option<Penalty> {
        let (block, max) = (self.duration(&at.block), self.duration(&at.max));
        let factor = at.factor.as_ref().map_or(DEFAULT_FACTOR, |factor| factor.value.0);
        let (block, max) = (block?, max?);
        let penalty = Penalty::new(at.after.value.0, block, factor, max).map_err(|error| {
            let (span, message) = match (error.field(), &at.factor) {
                ("penalty.after", _) => (&at.after.span, error.to_string()),
                ("penalty.block", _) => (&at.block.span, error.to_string()),
                ("penalty.factor", Some(factor)) => (&factor.span, error.to_string()),
                _ if max < block => {
                    let [max, block] = [max, block].map(format_duration);
                    (&at.max.span, format!("penalty.max: {max} is shorter than the first block, {block}"))
                }
                _ => {
                    let max = format_duration(max);
                    (&at.max.span, format!("penalty.max: {max} is longer than 10 years, the maximum"))
                }
            };
            _ = self.error("penalty", span, message);
        });
        let (message, help) = if rule.security.as_ref().is_none_or(|security| !security.value) {
            ("a penalty is only for rules against guessing", "add `security: true`, or remove the penalty")
        } else if rule.per.value.0.is_empty() {
            ("a penalty would block everybody: the rule counts all requests together", "count by `ip`, or remove it")
        } else if rule.budget.is_some() {
            ("a penalty needs a limit of its own: other rules could exhaust the budget", "remove one of the two")
        } else {
            return penalty.ok();
        };
        self.error("penalty", &at.span, message).set_help(help);
        None
    }
}
