//! `ConditionMismatch`: why a rule does not apply to a request.

use std::fmt;

use tidegate::attributes;
use tidegate_rules::internals::{Condition, RequestView};

/// Why a condition does not match: the field, the wanted value, and the value of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionMismatch {
    pub(crate) field: String,
    pub(crate) wanted: String,
    pub(crate) found: Option<String>,
}

/// The first field that does not match.
pub(crate) fn mismatch(condition: &Condition, view: &RequestView<'_, '_>) -> Option<ConditionMismatch> {
    let mismatch_in = |field: &str, part: Condition, wanted: String, found: Option<String>| {
        (!part.matches(view)).then(|| ConditionMismatch { field: field.to_owned(), wanted, found })
    };
    let to_owned = |text: Option<&str>| text.map(str::to_owned);
    let none = Condition::default;
    mismatch_in("action", Condition { actions: condition.actions.clone(), ..none() }, list(&condition.actions), {
        Some(view.request.action().to_owned()).filter(|action| !action.is_empty())
    })
    .or_else(|| {
        let part = Condition { methods: condition.methods.clone(), ..none() };
        mismatch_in("method", part, list(&condition.methods), to_owned(view.method()))
    })
    .or_else(|| {
        let part = Condition { paths: condition.paths.clone(), ..none() };
        mismatch_in("path", part, list(&condition.paths), to_owned(view.path()))
    })
    .or_else(|| {
        let part = Condition { hosts: condition.hosts.clone(), ..none() };
        mismatch_in("host", part, list(&condition.hosts), to_owned(view.host()))
    })
    .or_else(|| {
        let part = Condition { tenants: condition.tenants.clone(), ..none() };
        mismatch_in("tenant", part, list(&condition.tenants), to_owned(view.tenant()))
    })
    .or_else(|| {
        let part = Condition { plans: condition.plans.clone(), ..none() };
        mismatch_in("plan", part, list(&condition.plans), to_owned(Some(view.plan()).filter(|plan| !plan.is_empty())))
    })
    .or_else(|| {
        condition.headers.iter().find_map(|header| {
            let part = Condition { headers: vec![header.clone()], ..none() };
            let wanted = if header.1.is_empty() { "any value".into() } else { list(&header.1) };
            mismatch_in(
                &header.0.replacen(attributes::HEADER_PREFIX, "header ", 1),
                part,
                wanted,
                to_owned(view.attribute(&header.0)),
            )
        })
    })
    .or_else(|| {
        let part = Condition { networks: condition.networks.clone(), ..none() };
        mismatch_in("ip", part, list(&condition.networks), view.client().map(|ip| ip.to_string()))
    })
}

fn list(values: &[impl fmt::Display]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
