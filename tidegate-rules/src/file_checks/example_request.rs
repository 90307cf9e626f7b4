//! `ExampleRequest`: a request that matches a condition, used to find the rules that apply together.
//!
//! A condition may have several values for each field; there is an example for each combination, up to a bound.

use smol_str::SmolStr;
use tidegate::{Request, attributes};

use crate::condition::{Condition, HostPattern};
use crate::index::RuleIndices;
use crate::path::PathPattern;
use crate::request_matcher::RequestMatcher;
use crate::request_view::RequestView;

/// A value for fields that match anything.
const FILLER: &str = "x";

/// The comparisons that a rule counts as, besides its values.
const COMPARISONS_PER_RULE: usize = 4;

/// The most examples of one condition.
pub(super) const MAX_EXAMPLES: usize = 1_000;

/// The action and attributes of the request.
pub struct ExampleRequest {
    action: SmolStr,
    attributes: Vec<(SmolStr, String)>,
}

impl ExampleRequest {
    /// The example with the first value of each field.
    pub fn first(condition: &Condition) -> Self {
        Self::from_picks(condition, &[])
    }

    /// One example for each combination, up to [`MAX_EXAMPLES`].
    pub fn combinations(condition: &Condition) -> impl Iterator<Item = Self> {
        let lengths = lengths(condition);
        let all = lengths.iter().fold(1, |all: usize, length| all.saturating_mul(*length));
        (0..all.min(MAX_EXAMPLES)).map(move |number| Self::from_picks(condition, &picks(&lengths, number)))
    }

    /// The example with the values at these positions; the first value where a position is missing.
    fn from_picks(condition: &Condition, picks: &[usize]) -> Self {
        let mut picks = picks.iter().copied();
        let mut pick = || picks.next().unwrap_or_default();
        let text = |values: &[SmolStr], at: usize| values.get(at).map(ToString::to_string);
        let mut attributes = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            attributes.extend(value.map(|value| (SmolStr::new(name), value)));
        };
        add(attributes::METHOD, text(&condition.methods, pick()));
        add(attributes::PATH, condition.paths.get(pick()).map(PathPattern::example));
        let host = condition.hosts.get(pick()).map(|host| match host {
            HostPattern::Exactly(host) => host.to_string(),
            HostPattern::Below(host) => format!("{FILLER}.{host}"),
        });
        add(attributes::HOST, host);
        add(attributes::TENANT, text(&condition.tenants, pick()));
        add(attributes::PLAN, text(&condition.plans, pick()));
        add(attributes::IP, condition.networks.get(pick()).map(|network| network.addr().to_string()));
        let action = condition.actions.get(pick()).cloned().unwrap_or_default();
        for (name, values) in &condition.headers {
            add(name, text(values, pick()).or_else(|| Some(FILLER.to_owned())));
        }
        Self { action, attributes }
    }

    /// The rules that apply, regardless of exemptions, and the number of comparisons it took.
    ///
    /// Every rule whose condition covers the example's condition is among them.
    pub fn rules(&self, matcher: &RequestMatcher) -> (Vec<usize>, usize) {
        let request = self.request();
        let view = RequestView::new(&request, matcher);
        let mut candidates = RuleIndices::new();
        matcher.index.candidates(&view, &mut candidates);
        let condition = |index: &u32| -> &Condition { &matcher.rules[*index as usize].condition };
        let looked_at = candidates.iter().map(|index| COMPARISONS_PER_RULE + weight(condition(index))).sum();
        candidates.retain(|index| condition(index).matches(&view));
        (candidates.into_iter().map(|index| index as usize).collect(), looked_at)
    }

    /// Those of these rules from which it is not exempt.
    pub fn without_exempt(&self, mut rules: Vec<usize>, matcher: &RequestMatcher) -> Vec<usize> {
        let exemptions = matcher.exemptions(&RequestView::new(&self.request(), matcher));
        rules.retain(|rule| matcher.exemption_from(&matcher.rules[*rule].rule.id, &exemptions).is_none());
        rules
    }

    fn request(&self) -> Request<'_> {
        let request = Request::new(&self.action);
        self.attributes.iter().fold(request, |request, (name, value)| request.with_attribute(name, value))
    }
}

/// The number of values of each field, in the order of [`ExampleRequest::from_picks`]; 1 for an empty field.
fn lengths(condition: &Condition) -> Vec<usize> {
    let fixed = [
        condition.methods.len(),
        condition.paths.len(),
        condition.hosts.len(),
        condition.tenants.len(),
        condition.plans.len(),
        condition.networks.len(),
        condition.actions.len(),
    ];
    fixed
        .into_iter()
        .chain(condition.headers.iter().map(|(_, values)| values.len()))
        .map(|length| length.max(1))
        .collect()
}

/// The positions of the values in combination `number`. Every value occurs within the first round, so that a bound cuts off
/// only further combinations.
fn picks(lengths: &[usize], number: usize) -> Vec<usize> {
    let longest = (0..lengths.len()).rev().max_by_key(|at| lengths[*at]);
    let round = longest.map_or(1, |at| lengths[at]);
    let (first, mut rest) = (number % round, number / round);
    let pick = |(at, length): (usize, &usize)| {
        if Some(at) == longest {
            return first;
        }
        // Shifted by the position in the round, so that all fields advance together.
        let pick = (rest % length + first) % length;
        rest /= length;
        pick
    };
    lengths.iter().enumerate().map(pick).collect()
}

/// The number of values of a condition, plus one.
pub fn weight(condition: &Condition) -> usize {
    let headers: usize = condition.headers.iter().map(|(_, values)| 1 + values.len()).sum();
    1 + condition.methods.len()
        + condition.paths.len()
        + condition.hosts.len()
        + condition.tenants.len()
        + condition.plans.len()
        + condition.actions.len()
        + condition.networks.len()
        + headers
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_combination_occurs_once_and_every_value_occurs_early() {
        for lengths in [vec![], vec![1], vec![3, 1, 4], vec![2, 2, 2], vec![5, 3, 6, 2], vec![1, 7]] {
            let all: usize = lengths.iter().product();
            let picked: HashSet<_> = (0..all).map(|number| picks(&lengths, number)).collect();
            assert_eq!(picked.len(), all, "{lengths:?}");
            assert!(picks(&lengths, 0).iter().all(|pick| *pick == 0), "{lengths:?}");
            let round = lengths.iter().copied().max().unwrap_or(1);
            for (at, length) in lengths.iter().enumerate() {
                let early: HashSet<_> = (0..round).map(|number| picks(&lengths, number)[at]).collect();
                assert_eq!(early.len(), *length, "{lengths:?}");
            }
        }
    }

    #[test]
    fn long_lists_have_as_many_examples_as_the_bound() {
        let words = |count: usize| (0..count).map(|word| SmolStr::new(word.to_string())).collect::<Vec<_>>();
        let condition =
            Condition { tenants: words(500), actions: words(600), methods: words(7), ..Condition::default() };
        let examples: Vec<_> = ExampleRequest::combinations(&condition).collect();
        assert_eq!(examples.len(), MAX_EXAMPLES);
        assert_eq!(examples.iter().map(|example| &example.action).collect::<HashSet<_>>().len(), 600);
        let tenant = |example: &ExampleRequest| example.attributes.iter().find(|(name, _)| name == "tenant").cloned();
        assert_eq!(examples.iter().map(tenant).collect::<HashSet<_>>().len(), 500);
        assert_eq!(ExampleRequest::combinations(&Condition::default()).count(), 1);
    }
}
