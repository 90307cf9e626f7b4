//! Compiling `exempt`.

use std::collections::HashSet;

use smol_str::SmolStr;

use super::Compiler;
use crate::condition::Condition;
use crate::read::Spanned;
use crate::schema_types::{ExemptionSpec, RuleFileSpec};
use crate::suggest::suggest;

impl Compiler<'_> {
    /// Compiles an exemption with the rules that it names, and reports one that matches every request.
    pub(super) fn exemption(
        &mut self,
        field: &Spanned<ExemptionSpec>,
        file: &RuleFileSpec,
    ) -> (Condition, Option<HashSet<SmolStr>>) {
        let before = self.problems.len();
        let condition = self.condition(&field.value.condition());
        let rules = self.exempt_rules(&field.value, file);
        if self.problems.len() == before && condition.covers(&Condition::default()) {
            let from = if rules.is_some() { "these rules" } else { "every rule" };
            self.error("exempt-all", &field.span, format!("this exempts every request from {from}"))
                .set_help("name the exempt requests, or set rules to `mode: disabled`");
        }
        (condition, rules)
    }

    /// The rules that an exemption is limited to; `None` for all rules.
    fn exempt_rules(&mut self, spec: &ExemptionSpec, file: &RuleFileSpec) -> Option<HashSet<SmolStr>> {
        let at = spec.rules.as_ref()?;
        if at.value.0.is_empty() {
            self.error("exempt-rules", &at.span, "this names no rule")
                .set_help("name a rule, or remove `rules`: all rules");
        }
        for id in &at.value.0 {
            // A rule that could not be decoded may have this id.
            if !file.has_lost_ids() && !file.rule_ids().any(|known| known == id.as_str()) {
                let help = suggest(id, file.rule_ids());
                self.error("unknown-rule", &id.span, format!("there is no rule `{}`", id.value)).set_help(help);
            }
        }
        Some(at.value.0.iter().map(|id| SmolStr::new(&id.value)).collect())
    }
}
