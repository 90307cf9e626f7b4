//! Lints about crowds: requests on which more limits meet than one decision takes. It must not stop at the first path or
//! method of a rule: a crowd may meet on the second.

use std::collections::HashSet;

use tidegate::{MOST_CHECKS, RuleMode};

use super::example::Example;
use super::not_compared;
use crate::compile::{Compiled, Ready};
use crate::problem::Problem;

/// How much work it may be, in comparisons of two values; as much as for comparing rules.
const MOST_WORK: usize = super::MOST_WORK;

/// What an example takes besides the rules that it finds.
const PER_EXAMPLE: usize = 200;

/// Tries the examples of every rule. `rules` are those that are not disabled.
pub(super) fn lint(ready: &Ready, rules: &[&Compiled], found: &mut Vec<Problem>) {
    // Of most files not even all rules together are too many.
    if rules.iter().map(|rule| most_checks(rule)).sum::<usize>() <= MOST_CHECKS {
        return;
    }
    let (mut left, mut told) = (MOST_WORK, HashSet::new());
    for rule in rules {
        for example in Example::each(&rule.matched.condition) {
            let (met, looked_at) = example.rules(&ready.matching);
            let Some(less) = left.checked_sub(PER_EXAMPLE + looked_at) else {
                found.push(not_compared(rule));
                return;
            };
            left = less;
            let Some((checks, place)) = too_many(&met, rules) else { continue };
            if !example.is_exempt(&ready.matching) && told.insert(place) {
                found.push(problem(checks, rules[place]));
            }
        }
    }
}

/// How many limits the rules at these places have together, and where the first is that is too many.
fn too_many(met: &[usize], rules: &[&Compiled]) -> Option<(usize, usize)> {
    let (mut checks, mut first, mut budgets) = (0, None, HashSet::new());
    for place in met {
        let rule = rules[*place];
        // Rules that share a budget make one check of it; one in shadow counts beside it.
        let shared = rule.budget.as_ref().filter(|_| rule.mode != RuleMode::Shadow);
        if shared.is_some_and(|budget| !budgets.insert(budget)) {
            continue;
        }
        checks += most_checks(rule);
        if checks > MOST_CHECKS && first.is_none() {
            first = Some(*place);
        }
    }
    first.map(|place| (checks, place))
}

/// The most checks that a rule makes, in whichever plan.
fn most_checks(rule: &Compiled) -> usize {
    rule.plans.iter().map(|(_, limits)| limits.len()).chain([rule.limits.len()]).max().unwrap_or_default()
}

fn problem(checks: usize, rule: &Compiled) -> Problem {
    let message = format!("{checks} limits apply to one request, this one among them; at most {MOST_CHECKS} may");
    let problem = Problem::error("too-many-checks", message, rule.id_span.clone());
    problem.help("let the rules match less, or make one rule of several that count by the same")
}
