//! Lints about crowds: requests on which more limits meet than one decision takes. It must not stop at the first path or
//! method of a rule: a crowd may meet on the second.

use std::collections::HashSet;

use tidegate::RuleMode;
use tidegate::spi::MAX_CHECKS;

use super::example_request::ExampleRequest;
use super::{MAX_COMPARISONS, NOT_COMPARED};
use crate::compile::{CompiledFile, CompiledRule};
use crate::problem::Problem;

/// What an example takes besides the rules that it finds.
const PER_EXAMPLE: usize = 200;

/// Tries the examples of every rule. `rules` are those that are not disabled.
pub(super) fn lint(ready: &CompiledFile, rules: &[&CompiledRule], found: &mut Vec<Problem>) {
    // Of most files not even all rules together are too many.
    if rules.iter().map(|rule| most_checks(rule)).sum::<usize>() <= MAX_CHECKS {
        return;
    }
    let (mut left, mut told) = (MAX_COMPARISONS, HashSet::new());
    for rule in rules {
        for example in ExampleRequest::each(&rule.matcher.condition) {
            let (met, looked_at) = example.rules(&ready.matcher);
            let Some(less) = left.checked_sub(PER_EXAMPLE + looked_at) else {
                if !found.iter().any(|problem| problem.code() == NOT_COMPARED) {
                    found.push(not_tried(rule));
                }
                return;
            };
            left = less;
            let Some((checks, place)) = too_many(&met, rules) else { continue };
            if !example.is_exempt(&ready.matcher) && told.insert(place) {
                found.push(problem(checks, rules[place]));
            }
        }
    }
}

/// How many limits the rules at these places have together, and where the first is that is too many.
fn too_many(met: &[usize], rules: &[&CompiledRule]) -> Option<(usize, usize)> {
    let (mut checks, mut first, mut budgets) = (0, None, HashSet::new());
    for place in met {
        let rule = rules[*place];
        // Rules that share a budget make one check of it; one in shadow counts beside it.
        let shared = rule.budget.as_ref().filter(|_| rule.mode != RuleMode::Shadow);
        if shared.is_some_and(|budget| !budgets.insert(budget)) {
            continue;
        }
        checks += most_checks(rule);
        if checks > MAX_CHECKS && first.is_none() {
            first = Some(*place);
        }
    }
    first.map(|place| (checks, place))
}

/// The most checks that a rule makes, in whichever plan.
fn most_checks(rule: &CompiledRule) -> usize {
    rule.plans.iter().map(|(_, limits)| limits.len()).chain([rule.limits.len()]).max().unwrap_or_default()
}

fn problem(checks: usize, rule: &CompiledRule) -> Problem {
    let message = format!("{checks} limits apply to one request, this one among them; at most {MAX_CHECKS} may");
    let problem = Problem::error("too-many-checks", message, rule.id_span.clone());
    problem.with_help("let the rules match less, or make one rule of several that count by the same")
}

/// What is said at the rule at which the work became too much.
fn not_tried(rule: &CompiledRule) -> Problem {
    let message = "too many values to combine: from here on nobody looked whether too many limits meet on one request";
    let problem = Problem::note(NOT_COMPARED, message, rule.id_span.clone());
    problem.with_help("match fewer paths, methods, hosts, tenants or values of headers in one rule")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_file::SourceFile;
    use crate::{compile, read, schema_types};

    /// Seventeen rules that apply to everything, each with one limit.
    fn seventeen() -> CompiledFile {
        let rule = |n: usize| format!("- {{ id: r{n}, per: ip, fixed_window: {{ limit: {n}, window: 1m }} }}\n");
        let rules: Vec<_> = (1..=17).map(rule).collect();
        let source = SourceFile::new("rules.yaml", &format!("version: 1\nrules:\n{}", rules.concat()));
        let mut problems = Vec::new();
        let file: schema_types::RuleFileSpec = read::decode(read::parse(&source).unwrap(), &mut problems).unwrap();
        compile::compile(&file, &mut problems)
    }

    fn found(ready: &CompiledFile) -> Vec<Problem> {
        let mut found = Vec::new();
        lint(ready, &ready.rules.iter().collect::<Vec<_>>(), &mut found);
        found
    }

    /// No file can give a rule more limits in a plan than it has itself yet; the library can.
    #[test]
    fn a_plan_counts_with_as_many_limits_as_it_has() {
        let mut ready = seventeen();
        assert!(found(&ready).is_empty());
        for rule in &mut ready.rules {
            let limit = rule.limits[0].1;
            rule.plans.push(("pro".into(), vec![("a".into(), limit), ("b".into(), limit)]));
        }
        let found = found(&ready);
        assert_eq!(found.len(), 1);
        assert!(found[0].message().starts_with("34 limits"), "{found:?}");
    }
}
