//! `Example`: a request that a condition describes, made up to see which rules meet on it. It must not leave the lints.

use smol_str::SmolStr;
use tidegate::Request;

use crate::condition::{Condition, Host};
use crate::facts::Facts;
use crate::matching::Matching;
use crate::path::Pattern;

/// A value that nobody asked for in particular.
const ANYTHING: &str = "x";

/// What looking at a rule takes besides its values.
const PER_RULE: usize = 4;

/// What a request needs to have; the first of everything that is possible.
pub(super) struct Example {
    action: SmolStr,
    attributes: Vec<(SmolStr, String)>,
}

impl Example {
    pub(super) fn of(condition: &Condition) -> Self {
        let mut attributes = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            attributes.extend(value.map(|value| (SmolStr::new(name), value)));
        };
        let first = |values: &[SmolStr]| values.first().map(ToString::to_string);
        add("method", first(&condition.methods));
        add("path", condition.paths.first().map(Pattern::example));
        let host = condition.hosts.first().map(|host| match host {
            Host::Exactly(host) => host.to_string(),
            Host::Below(host) => format!("{ANYTHING}.{host}"),
        });
        add("host", host);
        add("tenant", first(&condition.tenants));
        add("plan", first(&condition.plans));
        add("ip", condition.networks.first().map(|network| network.addr().to_string()));
        for (name, values) in &condition.headers {
            add(name, first(values).or_else(|| Some(ANYTHING.to_owned())));
        }
        Self { action: condition.actions.first().cloned().unwrap_or_default(), attributes }
    }

    /// The places of the rules that apply to it, the exemptions aside; and how much was compared to find them.
    ///
    /// Whatever covers the condition is among them: it applies to every such request, so to this one too.
    pub(super) fn rules(&self, matching: &Matching) -> (Vec<usize>, usize) {
        let mut request = Request::new(&self.action);
        for (name, value) in &self.attributes {
            request = request.attribute(name, value);
        }
        let facts = Facts::new(&request, matching);
        let mut candidates = Vec::new();
        matching.index.candidates(&facts, &mut candidates);
        let condition = |place: &u32| -> &Condition { &matching.rules[*place as usize].condition };
        let looked_at = candidates.iter().map(|place| PER_RULE + weight(condition(place))).sum();
        candidates.retain(|place| condition(place).fits(&facts));
        (candidates.into_iter().map(|place| place as usize).collect(), looked_at)
    }
}

/// How many values a condition names, and one more.
pub(super) fn weight(condition: &Condition) -> usize {
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
