//! `Explained`: an explanation for programs. Its members are public: they are added to, and not renamed.

use serde::Serialize;
use tidegate::RuleMode;
use tidegate_rules::{Explanation, RuleEffect, RuleExplanation, RuleStatus, TimelinePoint};
use tidegate_server::command::whole_millis;

#[derive(Serialize)]
pub(super) struct Explained<'e> {
    client_ip: Option<&'e str>,
    tenant: Option<&'e str>,
    plan: Option<&'e str>,
    exempt_line: Option<usize>,
    rules: Vec<Rule<'e>>,
    timeline: Vec<Happens<'e>>,
}

#[derive(Serialize)]
struct Rule<'e> {
    id: &'e str,
    mode: &'static str,
    applies: bool,
    /// Why it does not: `differs`, `exempt` or `disabled`.
    reason: Option<&'static str>,
    differs: Option<Differs<'e>>,
    subject: Option<Vec<Part<'e>>>,
    subject_hash: Option<&'e str>,
    /// Whether nobody vouches for the subject.
    anonymous: Option<bool>,
    cost: Option<u64>,
    on_failure: Option<&'static str>,
    /// What one instance lets pass while the store fails, if `on_failure` is `static`.
    emergency: Option<&'e str>,
    limits: Option<Vec<Limit<'e>>>,
}

#[derive(Serialize)]
struct Differs<'e> {
    field: &'e str,
    wanted: &'e str,
    found: Option<&'e str>,
}

#[derive(Serialize)]
struct Part<'e> {
    name: &'e str,
    source: Option<&'e str>,
    value: Option<&'e str>,
}

#[derive(Serialize)]
struct Limit<'e> {
    name: &'e str,
    plan: &'e str,
    text: &'e str,
    key: &'e str,
}

#[derive(Serialize)]
struct Happens<'e> {
    at_ms: u64,
    allowed: u64,
    longest_delay_ms: u64,
    denied_by: Option<&'e str>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
}

impl<'e> Explained<'e> {
    pub(super) fn new(explanation: &'e Explanation) -> Self {
        Self {
            client_ip: explanation.client_ip.as_deref(),
            tenant: explanation.tenant.as_deref(),
            plan: Some(explanation.plan.as_str()).filter(|plan| !plan.is_empty()),
            exempt_line: explanation.exempt,
            rules: explanation.rules.iter().map(Rule::new).collect(),
            timeline: explanation.timeline.points.iter().map(Happens::new).collect(),
        }
    }
}

impl<'e> Rule<'e> {
    fn new(rule: &'e RuleExplanation) -> Self {
        let mode = match rule.mode {
            RuleMode::Disabled => "disabled",
            RuleMode::Shadow => "shadow",
            _ => "enabled",
        };
        let (applied, reason, differs) = match &rule.status {
            RuleStatus::Applies(applied) => (Some(applied), None, None),
            RuleStatus::Differs { field, wanted, found } => {
                (None, Some("differs"), Some(Differs { field, wanted, found: found.as_deref() }))
            }
            RuleStatus::Exempt => (None, Some("exempt"), None),
            _ => (None, Some("disabled"), None),
        };
        Self {
            id: &rule.id,
            mode,
            applies: applied.is_some(),
            reason,
            differs,
            subject: applied.map(parts),
            subject_hash: applied.map(|applied| applied.subject_hash.as_str()),
            anonymous: applied.map(|applied| applied.anonymous),
            cost: applied.map(|applied| applied.cost),
            on_failure: applied.map(|applied| applied.on_failure.as_str()),
            emergency: applied.and_then(|applied| applied.emergency.as_deref()),
            limits: applied.map(limits),
        }
    }
}

fn parts(applied: &RuleEffect) -> Vec<Part<'_>> {
    let parts = applied.subject.iter();
    parts.map(|part| Part { name: &part.name, source: part.kind.as_deref(), value: part.value.as_deref() }).collect()
}

fn limits(applied: &RuleEffect) -> Vec<Limit<'_>> {
    let limits = applied.limits.iter();
    limits.map(|limit| Limit { name: &limit.name, plan: &limit.plan, text: &limit.text, key: &limit.key }).collect()
}

impl<'e> Happens<'e> {
    fn new(moment: &'e TimelinePoint) -> Self {
        let denied = moment.denied.as_ref();
        Self {
            at_ms: whole_millis(moment.at),
            allowed: moment.allowed,
            longest_delay_ms: whole_millis(moment.longest_delay),
            denied_by: denied.map(|denied| denied.rule.as_str()),
            retry_after_ms: denied.and_then(|denied| denied.retry_after).map(whole_millis),
            reset_after_ms: denied.map(|denied| whole_millis(denied.reset_after)),
        }
    }
}
