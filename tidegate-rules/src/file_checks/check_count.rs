//! `too-many-checks`: requests to which more limits apply than one decision may have, enforced ones or those in shadow
//! mode. Tries every path and method of a rule.

use std::collections::HashSet;

use tidegate::RuleMode;
use tidegate::spi::{MAX_CHECKS, MAX_SHADOW_CHECKS};

use super::example_request::ExampleRequest;
use super::{MAX_COMPARISONS, NOT_COMPARED};
use crate::compile::CompiledRule;
use crate::compiled_file::CompiledFile;
use crate::problem::Problem;

/// The comparisons that an example counts as, besides those for its candidates.
const COMPARISONS_PER_EXAMPLE: usize = 200;

/// Tries the examples of every rule that is not disabled.
pub(super) fn check(file: &CompiledFile, problems: &mut Vec<Problem>) {
    let rules = &file.enabled_rules().collect::<Vec<_>>();
    // Most files stay below the bound even if all rules apply.
    let of_mode = |shadow: bool| rules.iter().filter(move |rule| (rule.mode == RuleMode::Shadow) == shadow);
    let sum = |shadow| of_mode(shadow).map(|rule| max_checks(rule)).sum::<usize>();
    if sum(false) <= MAX_CHECKS && sum(true) <= MAX_SHADOW_CHECKS {
        return;
    }
    let (mut left, mut reported) = (MAX_COMPARISONS, HashSet::new());
    for rule in rules {
        for example in ExampleRequest::combinations(&rule.matcher.condition) {
            let (met, looked_at) = example.rules(&file.matcher);
            let Some(less) = left.checked_sub(COMPARISONS_PER_EXAMPLE + looked_at) else {
                problems.push(not_tried(rule));
                return;
            };
            left = less;
            let counts = |met: &[usize]| [count(met, rules, false), count(met, rules, true)].into_iter().flatten();
            if counts(&met).next().is_none() {
                continue;
            }
            for (checks, index) in counts(&example.without_exempt(met, &file.matcher)) {
                if reported.insert(index) {
                    problems.push(problem(checks, rules[index]));
                }
            }
        }
    }
}

/// The number of limits of those of these rules that are in shadow mode, or of those that are not, and the first rule beyond the
/// bound; `None` if they stay within it.
fn count(met: &[usize], rules: &[&CompiledRule], shadow: bool) -> Option<(usize, usize)> {
    let max = if shadow { MAX_SHADOW_CHECKS } else { MAX_CHECKS };
    let (mut checks, mut first, mut budgets) = (0, None, HashSet::new());
    for index in met.iter().filter(|index| (rules[**index].mode == RuleMode::Shadow) == shadow) {
        let rule = rules[*index];
        // Rules that share a budget have one check; a rule in shadow mode has its own.
        let shared = rule.budget.as_ref().filter(|_| !shadow);
        if shared.is_some_and(|budget| !budgets.insert(budget)) {
            continue;
        }
        checks += max_checks(rule);
        if checks > max && first.is_none() {
            first = Some(*index);
        }
    }
    first.map(|index| (checks, index))
}

/// The most checks that a rule adds in any plan.
fn max_checks(rule: &CompiledRule) -> usize {
    let limits = rule.plans.iter().map(|(_, limits)| limits.len()).chain([rule.limits.len()]).max().unwrap_or_default();
    limits + usize::from(rule.penalty.is_some())
}

fn problem(checks: usize, rule: &CompiledRule) -> Problem {
    if rule.mode == RuleMode::Shadow {
        let message = format!(
            "{checks} limits in shadow mode apply to one request, including this one; the first {MAX_SHADOW_CHECKS} are \
             decided, the others skipped"
        );
        let problem = Problem::warning("too-many-checks", message, rule.id_span.clone());
        return problem.with_help("try fewer rules in shadow mode at a time, or narrow `match`");
    }
    let message = format!("{checks} limits apply to one request, including this one; the maximum is {MAX_CHECKS}");
    let problem = Problem::error("too-many-checks", message, rule.id_span.clone());
    problem.with_help("narrow `match`, or combine rules that count by the same subject")
}

/// The note on the rule at which the bound on comparisons was reached.
fn not_tried(rule: &CompiledRule) -> Problem {
    let message =
        "too many values to combine: this rule and later ones were not checked for too many limits on one request";
    let problem = Problem::note(NOT_COMPARED, message, rule.id_span.clone());
    problem.with_help("match fewer paths, methods, hosts, tenants or values of headers in one rule")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Spanned;
    use crate::source_file::SourceFile;
    use crate::{compile, read, schema_types};

    /// Seventeen rules that apply to everything, each with one limit.
    fn seventeen() -> CompiledFile {
        let rule = |n: usize| format!("- {{ id: r{n}, per: ip, fixed_window: {{ limit: {n}, window: 1m }} }}\n");
        let rules: Vec<_> = (1..=17).map(rule).collect();
        let source = SourceFile::new("rules.yaml", &format!("version: 1\nrules:\n{}", rules.concat()));
        let mut problems = Vec::new();
        let file: Spanned<schema_types::RuleFileSpec> =
            read::decode(read::parse(&source).unwrap(), &mut problems).unwrap();
        compile::compile(&file, &mut problems)
    }

    fn lints(file: &CompiledFile) -> Vec<Problem> {
        let mut lints = Vec::new();
        check(file, &mut lints);
        lints
    }

    /// A file cannot give a rule more limits in a plan than it has itself; the library can.
    #[test]
    fn the_limits_of_a_plan_count_instead_of_those_of_the_rule() {
        let mut file = seventeen();
        assert!(lints(&file).is_empty());
        for rule in &mut file.rules {
            let limit = rule.limits[0].1;
            let limits = vec![("a".into(), limit), ("b".into(), limit)];
            rule.rule_mut().plans.push(("pro".into(), limits));
        }
        let lints = lints(&file);
        assert_eq!(lints.len(), 1);
        assert!(lints[0].message().starts_with("34 limits"), "{lints:?}");
    }
}
