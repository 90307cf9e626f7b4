//! The lint about rules that never apply at a front end that they are meant for.

use super::NEVER_APPLIES;
use crate::compile::{CompiledFile, CompiledRule};
use crate::door_gaps::never_applies;
use crate::problem::Problem;

/// An error for each listed front end at which the rule never applies: the file contradicts itself.
pub(super) fn lint(file: &CompiledFile, rule: &CompiledRule, lints: &mut Vec<Problem>) {
    for (door, span) in rule.front_ends.listed() {
        let Some(gap) = never_applies(rule, *door, &file.matcher) else { continue };
        let (id, source, title) = (gap.rule(), gap.source(), door.title());
        let message = format!(
            "rule `{id}` is meant for {title}, and never applies there: it matches by `{source}`, which {title} never has"
        );
        lints.push(Problem::error(NEVER_APPLIES, message, span.clone()).with_help(gap.help()));
    }
}
