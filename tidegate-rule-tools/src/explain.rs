//! Explaining a request: resolves it as a limiter does, and asks every rule why it applies or not.

use tidegate::attributes::{PATH, PathReadings, header_name};
use tidegate::spi::{Gate, Match, RequestProblemKind};
use tidegate::{Clock, Limit, OnFailure, Request, RuleMode, RuleSet, Secret, SystemClock, Timestamp};
use tidegate_rules::RuleFile;
use tidegate_rules::internals::{CompiledFile, CompiledRule, RequestView, RuleIndices, compiled, line};

use crate::condition_mismatch::{ConditionMismatch, mismatch};
use crate::describe_limit::{describe_ledger, describe_limit};
use crate::explanation::{
    ClaimUse, Explanation, LedgerExplanation, LimitExplanation, PeriodExplanation, RuleEffect, RuleExplanation,
    RuleStatus, SubjectPart,
};
use crate::timeline::timeline;

/// Explains which rules apply to `request` and how, with subjects hashed by `secret`.
pub fn explain(file: &RuleFile, request: &Request<'_>, secret: &Secret) -> Explanation {
    explain_at(file, request, secret, SystemClock::new().now())
}

/// The same at the time `now`, on which the periods of quotas depend.
pub fn explain_at(file: &RuleFile, request: &Request<'_>, secret: &Secret, now: Timestamp) -> Explanation {
    let explainer = Explainer { file, compiled: compiled(file), rules: file.rules().clone().with_secret(secret), now };
    explainer.explain(request)
}

/// What an explanation depends on, besides the request.
struct Explainer<'f> {
    file: &'f RuleFile,
    compiled: &'f CompiledFile,
    rules: RuleSet,
    now: Timestamp,
}

impl Explainer<'_> {
    fn explain(&self, request: &Request<'_>) -> Explanation {
        let (rules, matcher) = (&self.rules, &*self.compiled.matcher);
        let path = request.attribute(PATH);
        let problem = rules.resolve(request).problem().cloned();
        let is_path_refused =
            problem.as_ref().is_some_and(|problem| matches!(problem.kind(), RequestProblemKind::Path(_)));
        let readings = path.and_then(|path| rules.path_readings(path).ok());
        let readings: Vec<String> = readings.iter().flat_map(PathReadings::iter).map(str::to_owned).collect();
        let requests = with_paths(request, &readings);
        let views: Vec<_> = requests.iter().map(|request| RequestView::new(request, matcher)).collect();
        let exemptions: Vec<_> = views.iter().map(|view| matcher.exemptions(view)).collect();
        let explained = self.compiled.rules.iter().filter(|_| !is_path_refused).flat_map(|rule| {
            let status = |(view, exemptions): (&RequestView<'_, '_>, &RuleIndices)| {
                let exempt = matcher.exemption_from(&rule.id, exemptions);
                self.status(rule, view, exempt)
            };
            unite_statuses(views.iter().zip(&exemptions).map(status)).into_iter().map(|status| RuleExplanation {
                id: rule.id.to_string(),
                mode: rule.mode,
                status,
            })
        });
        let explained: Vec<RuleExplanation> = explained.collect();
        let exempt: Option<Vec<_>> =
            exemptions.iter().map(|exemptions| matcher.exemption_from_all(exemptions)).collect();
        Explanation {
            client_ip: views[0].client().map(|ip| ip.to_string()),
            tenant: views[0].tenant().map(str::to_owned),
            tenant_is_ignored: views[0].tenant() != views[0].scope().map(|scope| &*scope.value),
            plan: views[0].plan().to_owned(),
            exempt: exempt.map(|indices| self.exempt_line(indices[0])),
            problem,
            claims: self.claims(&views[0], &explained),
            rules: explained,
            timeline: timeline(rules, request, self.now),
            path_readings: readings,
        }
    }

    /// The line of an exemption.
    fn exempt_line(&self, index: usize) -> usize {
        line(self.file, &self.compiled.exempt[index])
    }

    fn status(&self, rule: &CompiledRule, view: &RequestView<'_, '_>, exempt: Option<usize>) -> RuleStatus {
        if let Some(ConditionMismatch { field, wanted, found }) = mismatch(&rule.matcher.condition, view) {
            return RuleStatus::Differs { field, wanted, found };
        }
        match (rule.is_disabled(), exempt) {
            (true, _) => RuleStatus::Disabled,
            (_, Some(index)) => RuleStatus::Exempt { line: self.exempt_line(index) },
            _ => RuleStatus::Applies(self.effect(rule, view)),
        }
    }

    /// The claims that the tenant, the plan and the subjects of the rules that apply come from.
    fn claims(&self, view: &RequestView<'_, '_>, rules: &[RuleExplanation]) -> Vec<ClaimUse> {
        let matcher = &*self.compiled.matcher;
        let applies =
            |id: &str| rules.iter().any(|rule| rule.id == id && matches!(rule.status, RuleStatus::Applies(_)));
        let rules = matcher.rules.iter().filter(|matcher| applies(&matcher.rule.id));
        let identities = [&matcher.tenant, &matcher.plan].into_iter();
        let token = &matcher.identity_config.token;
        let mut claims: Vec<ClaimUse> = Vec::new();
        for identity in identities.chain(rules.flat_map(|rule| rule.per.iter())) {
            let Some(claim) = identity.claim_in_use(view) else { continue };
            let claim = ClaimUse {
                identity: identity.name.to_string(),
                claim: claim.to_string(),
                header: header_name(token).unwrap_or(token).to_owned(),
            };
            if !claims.contains(&claim) {
                claims.push(claim);
            }
        }
        claims
    }

    fn effect(&self, rule: &CompiledRule, view: &RequestView<'_, '_>) -> RuleEffect {
        let (rules, matcher) = (&self.rules, &*self.compiled.matcher);
        let rule_subject = rule.matcher.subject(view);
        let cost = rule.matcher.cost.units(view, matcher);
        // Resolved alone: of rules that share a budget only the first has a check in the plan.
        let index = matcher.rules.iter().position(|matcher| matcher.rule.id == rule.id).unwrap_or_default();
        let values = rule_subject.values(&rule.matcher);
        let policy = rule.matcher.on_failure.find(view);
        let on_failure = policy.unwrap_or(rule.matcher.on_failure.otherwise);
        let plan = rules.resolve_match(Match {
            rule: index,
            plan: view.plan(),
            values: &values,
            cost,
            on_failure: policy,
            anonymous: rule_subject.anonymous,
            address: rule_subject.address,
        });
        let checks = plan.checks();
        let mut subject: Vec<SubjectPart> = Vec::new();
        if let Some(tenant) = &rule_subject.tenant {
            subject.push(SubjectPart { name: "tenant".into(), kind: None, value: Some(tenant.clone()) });
        }
        subject.extend(rule.matcher.per.iter().zip(&rule_subject.identities).map(|(identity, value)| SubjectPart {
            name: identity.name.to_string(),
            kind: value.as_ref().map(|value| value.kind.to_string()),
            value: value.as_ref().map(|value| without_password(&value.value)),
        }));
        RuleEffect {
            subject,
            subject_hash: checks.first().map(|check| check.key().subject().to_string()).unwrap_or_default(),
            anonymous: rule_subject.anonymous,
            cost,
            usage: rule.usage,
            actual: rule.cost_header.as_ref().map(ToString::to_string),
            on_failure,
            is_default_policy: policy.is_none() && !rule.says_default,
            on_overload: rule.on_overload,
            static_limit: rule.static_limit.as_ref().filter(|_| on_failure == OnFailure::Static).map(describe_limit),
            error_format: rule.error_format.unwrap_or(rules.header_policy().error_format()),
            ledger: rule
                .ledger
                .filter(|_| rule.mode != RuleMode::Shadow)
                .map(|mode| LedgerExplanation { mode, keep_names: rule.ledger_names }),
            limits: checks
                .iter()
                .map(|check| {
                    let gate = check.gate();
                    let mut key = Vec::new();
                    check.key().write_name("", &mut key);
                    LimitExplanation {
                        name: gate.limit_name().to_string(),
                        plan: gate.plan().to_string(),
                        text: describe_gate(gate),
                        key: key.escape_ascii().to_string(),
                        period: PeriodExplanation::of_limit(gate.limit(), self.now),
                    }
                })
                .collect(),
        }
    }
}

/// The request under each reading of its path; itself if there is none.
pub(crate) fn with_paths<'q>(request: &Request<'q>, readings: &'q [String]) -> Vec<Request<'q>> {
    if readings.is_empty() {
        return vec![request.clone()];
    }
    readings.iter().map(|path| request.clone().with_replaced_attribute(PATH, path)).collect()
}

/// Describes the limit of a gate and its ledger.
fn describe_gate(gate: &Gate) -> String {
    let limit = describe_limit(gate.limit());
    match gate.ledger() {
        Some(mode) => format!("{limit}, {}", describe_ledger(mode)),
        None => limit,
    }
}

impl PeriodExplanation {
    fn of_limit(limit: &Limit, now: Timestamp) -> Option<Self> {
        let Limit::Quota(quota) = limit else { return None };
        let periods = quota.periods();
        let [_, begins, ends, _] =
            periods.bounds_at(now).starts.map(|at| periods.local_time(Timestamp::from_micros(at)));
        Some(Self { begins, ends, time_zone: periods.time_zone().to_owned() })
    }
}

/// A value that is counted by, without the password of decoded credentials.
fn without_password(value: &str) -> String {
    match value.strip_prefix("basic ").and_then(|decoded| decoded.split_once(':')) {
        Some((user, _)) => format!("basic {user}:…"),
        None => value.to_owned(),
    }
}

/// The statuses of a rule under the readings of a path: how it applies to each subject, at the largest cost, or else why it does
/// not apply to the path as written.
fn unite_statuses(statuses: impl Iterator<Item = RuleStatus>) -> Vec<RuleStatus> {
    let mut effects: Vec<RuleEffect> = Vec::new();
    let mut otherwise = None;
    for status in statuses {
        match status {
            RuleStatus::Applies(effect) => {
                match effects.iter_mut().find(|known| known.subject_hash == effect.subject_hash) {
                    Some(known) if known.cost < effect.cost => *known = effect,
                    Some(_) => {}
                    None => effects.push(effect),
                }
            }
            status => otherwise = otherwise.or(Some(status)),
        }
    }
    match otherwise {
        Some(status) if effects.is_empty() => vec![status],
        _ => effects.into_iter().map(RuleStatus::Applies).collect(),
    }
}
