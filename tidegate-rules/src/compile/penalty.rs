//! Compiling `penalty`: growing blocks, only for rules against guessing.

use std::time::Duration;

use tidegate::limits::Penalty;

use super::Compiler;
use crate::quantity::format_duration;
use crate::read::Spanned;
use crate::schema_types::{PenaltySpec, RuleSpec};

/// The code of errors about penalties.
const CODE: &str = "penalty";

/// A block that fits every other value.
const SHORTEST: Duration = Duration::from_micros(1);

/// How many times longer each further block is by default.
const DEFAULT_FACTOR: u64 = 2;

impl Compiler<'_> {
    /// The penalty of a rule; `None` after an error. Each value is checked beside others that fit it.
    pub(super) fn penalty(&mut self, rule: &RuleSpec, at: &Spanned<PenaltySpec>) -> Option<Penalty> {
        let after = at.after.as_ref().and_then(|field| {
            self.check_value(CODE, field.value.0, &field.span, |after| Penalty::new(after, SHORTEST, 1, SHORTEST))
        });
        let factor = at.factor.as_ref().map_or(Some(DEFAULT_FACTOR), |field| {
            self.check_value(CODE, field.value.0, &field.span, |factor| Penalty::new(1, SHORTEST, factor, SHORTEST))
        });
        let block = at.block.as_ref().and_then(|field| {
            let block = self.duration(field)?;
            self.check_value(CODE, block, &field.span, |block| Penalty::new(1, block.min(SHORTEST), 1, SHORTEST))
        });
        let max = at.max.as_ref().and_then(|field| {
            let max = self.duration(field)?;
            let [shown, block_shown] = [max, block.unwrap_or_default()].map(format_duration);
            let message = match Penalty::new(1, SHORTEST, 1, max) {
                Err(_) if max.is_zero() => "penalty.max: it is zero; it must be at least the first block".to_owned(),
                Err(_) => format!("penalty.max: {shown} is longer than 10 years, the maximum"),
                Ok(_) if block.is_some_and(|block| max < block) => {
                    format!("penalty.max: {shown} is shorter than the first block, {block_shown}")
                }
                Ok(_) => return Some(max),
            };
            self.error(CODE, &field.span, message);
            None
        });
        let (message, help) = if rule.security.as_ref().is_none_or(|security| !security.value) {
            ("a penalty is only for rules against guessing", "add `security: true`, or remove the penalty")
        } else if rule.per.as_ref().is_some_and(|per| per.value.0.is_empty()) {
            ("a penalty would block everybody: the rule counts all requests together", "count by `ip`, or remove it")
        } else if rule.budget.is_some() {
            ("a penalty needs a limit of its own: other rules could exhaust the budget", "remove one of the two")
        } else {
            return Penalty::new(after?, block?, factor?, max?).ok();
        };
        self.error(CODE, &at.span, message).set_help(help);
        None
    }
}
