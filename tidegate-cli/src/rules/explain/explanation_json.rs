//! `ExplanationJson`: an explanation as JSON. The field names are public: fields may be added, not renamed.

use serde::Serialize;
use tidegate::RuleMode;
use tidegate::rules::UsageKind;
use tidegate_rule_tools::{
    ClaimUse, Explanation, LimitExplanation, PeriodExplanation, RuleEffect, RuleExplanation, RuleStatus, TimelinePoint,
};
use tidegate_server::command::whole_millis;

#[derive(Serialize)]
pub(super) struct ExplanationJson<'e> {
    client_ip: Option<&'e str>,
    tenant: Option<&'e str>,
    /// Whether nobody authenticates it, so that it separates no subjects and selects no plan.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tenant_is_ignored: bool,
    plan: Option<&'e str>,
    /// The claims by which the request is judged.
    claims: Vec<ClaimJson<'e>>,
    /// The ways in which servers may read the path, as written first.
    path_readings: &'e [String],
    exempt_line: Option<usize>,
    /// Why the request is refused whatever its limits are.
    problem: Option<String>,
    rules: Vec<RuleJson<'e>>,
    timeline: Vec<TimelinePointJson<'e>>,
}

#[derive(Serialize)]
struct ClaimJson<'e> {
    identity: &'e str,
    claim: &'e str,
    /// The header with the token.
    header: &'e str,
    /// Who must verify the token, as the file states: always `in front`, since Tidegate does not.
    verified: &'static str,
}

#[derive(Serialize)]
struct RuleJson<'e> {
    id: &'e str,
    mode: &'static str,
    applies: bool,
    /// Why it does not apply: `differs`, `exempt` or `disabled`.
    reason: Option<&'static str>,
    /// The line of the exemption from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    exempt_line: Option<usize>,
    differs: Option<DifferenceJson<'e>>,
    subject: Option<Vec<SubjectPartJson<'e>>>,
    subject_hash: Option<&'e str>,
    /// Whether the subject is not authenticated.
    anonymous: Option<bool>,
    cost: Option<u64>,
    /// Which tokens of a language model are the actual cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'static str>,
    /// The response header with the actual cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    actual: Option<&'e str>,
    /// How the quotas of the rule reach the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<&'static str>,
    on_failure: Option<&'static str>,
    on_overload: Option<&'static str>,
    /// The limit of one instance while the store fails, if `on_failure` is `static`.
    #[serde(rename = "emergency")]
    static_limit: Option<&'e str>,
    error_format: Option<&'static str>,
    limits: Option<Vec<LimitJson<'e>>>,
}

#[derive(Serialize)]
struct DifferenceJson<'e> {
    field: &'e str,
    wanted: &'e str,
    found: Option<&'e str>,
}

#[derive(Serialize)]
struct SubjectPartJson<'e> {
    name: &'e str,
    source: Option<&'e str>,
    value: Option<&'e str>,
}

#[derive(Serialize)]
struct LimitJson<'e> {
    name: &'e str,
    plan: &'e str,
    text: &'e str,
    key: &'e str,
    /// The running period of a quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<PeriodJson<'e>>,
}

#[derive(Serialize)]
struct PeriodJson<'e> {
    begins: &'e str,
    ends: &'e str,
    timezone: &'e str,
}

#[derive(Serialize)]
struct TimelinePointJson<'e> {
    at_ms: u64,
    allowed: u64,
    /// How many of them in the grace of a quota.
    in_grace: u64,
    longest_delay_ms: u64,
    denied_by: Option<&'e str>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    /// Whether the next one passes when one of those before it ends.
    until_release: bool,
}

impl<'e> ExplanationJson<'e> {
    pub(super) fn new(explanation: &'e Explanation) -> Self {
        Self {
            client_ip: explanation.client_ip.as_deref(),
            tenant: explanation.tenant.as_deref(),
            tenant_is_ignored: explanation.tenant_is_ignored,
            plan: Some(explanation.plan.as_str()).filter(|plan| !plan.is_empty()),
            claims: explanation.claims.iter().map(ClaimJson::new).collect(),
            path_readings: &explanation.path_readings,
            exempt_line: explanation.exempt,
            problem: explanation.problem.as_ref().map(ToString::to_string),
            rules: explanation.rules.iter().map(RuleJson::new).collect(),
            timeline: explanation.timeline.points.iter().map(TimelinePointJson::new).collect(),
        }
    }
}

impl<'e> ClaimJson<'e> {
    fn new(claim: &'e ClaimUse) -> Self {
        Self { identity: &claim.identity, claim: &claim.claim, header: &claim.header, verified: "in front" }
    }
}

impl<'e> RuleJson<'e> {
    fn new(rule: &'e RuleExplanation) -> Self {
        let mode = match rule.mode {
            RuleMode::Disabled => "disabled",
            RuleMode::Shadow => "shadow",
            _ => "enabled",
        };
        let (effect, reason, differs) = match &rule.status {
            RuleStatus::Applies(effect) => (Some(effect), None, None),
            RuleStatus::Differs { field, wanted, found } => {
                (None, Some("differs"), Some(DifferenceJson { field, wanted, found: found.as_deref() }))
            }
            RuleStatus::Exempt { .. } => (None, Some("exempt"), None),
            _ => (None, Some("disabled"), None),
        };
        let exempt_line = if let RuleStatus::Exempt { line } = rule.status { Some(line) } else { None };
        Self {
            id: &rule.id,
            mode,
            applies: effect.is_some(),
            reason,
            exempt_line,
            differs,
            subject: effect.map(parts),
            subject_hash: effect.map(|effect| effect.subject_hash.as_str()),
            anonymous: effect.map(|effect| effect.anonymous),
            cost: effect.map(|effect| effect.cost),
            usage: effect.and_then(|effect| effect.usage).map(UsageKind::as_str),
            actual: effect.and_then(|effect| effect.actual.as_deref()),
            ledger: effect.and_then(|effect| effect.ledger.as_ref()).map(|ledger| ledger.mode.as_str()),
            on_failure: effect.map(|effect| effect.on_failure.as_str()),
            on_overload: effect.map(|effect| effect.on_overload.as_str()),
            static_limit: effect.and_then(|effect| effect.static_limit.as_deref()),
            error_format: effect.map(|effect| effect.error_format.as_str()),
            limits: effect.map(limits),
        }
    }
}

fn parts(effect: &RuleEffect) -> Vec<SubjectPartJson<'_>> {
    let parts = effect.subject.iter();
    parts
        .map(|part| SubjectPartJson { name: &part.name, source: part.kind.as_deref(), value: part.value.as_deref() })
        .collect()
}

fn limits<'e>(effect: &'e RuleEffect) -> Vec<LimitJson<'e>> {
    let period = |period: &'e PeriodExplanation| PeriodJson {
        begins: &period.begins,
        ends: &period.ends,
        timezone: &period.time_zone,
    };
    let limit = |limit: &'e LimitExplanation| LimitJson {
        name: &limit.name,
        plan: &limit.plan,
        text: &limit.text,
        key: &limit.key,
        period: limit.period.as_ref().map(period),
    };
    effect.limits.iter().map(limit).collect()
}

impl<'e> TimelinePointJson<'e> {
    fn new(point: &'e TimelinePoint) -> Self {
        let denied = point.denied.as_ref();
        Self {
            at_ms: whole_millis(point.at),
            allowed: point.allowed,
            in_grace: point.in_grace,
            longest_delay_ms: whole_millis(point.longest_delay),
            denied_by: denied.map(|denied| denied.rule.as_str()),
            retry_after_ms: denied.and_then(|denied| denied.retry_after).map(whole_millis),
            reset_after_ms: denied.map(|denied| whole_millis(denied.reset_after)),
            until_release: denied.is_some_and(|denied| denied.until_release),
        }
    }
}
