//! `Explanation`: which rules of a file apply to a request and why the others do not, the subject and keys under each, and
//! the next decisions.

use std::fmt;

use tidegate::attributes::{PATH, PathReadings, header_name};
use tidegate::http::ErrorFormat;
use tidegate::spi::{Gate, Match};
use tidegate::{
    Clock, LedgerMode, Limit, OnFailure, OnOverload, Request, RequestProblem, RequestProblemKind, RuleMode, RuleSet,
    Secret, SystemClock, Timestamp, UsageKind,
};
use tidegate_rules::RuleFile;
use tidegate_rules::internals::{CompiledFile, CompiledRule, RequestView, RuleIndices, compiled, line};

use crate::condition_mismatch::{ConditionMismatch, mismatch};
use crate::describe_limit::{describe_ledger, describe_limit};
use crate::timeline::{Timeline, timeline};

/// The effect of a rule file on a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The address of the client, according to the trusted proxies.
    pub client_ip: Option<String>,
    /// The tenant, if one is known.
    pub tenant: Option<String>,
    /// Whether nobody authenticates it, so that it separates no subjects and selects no plan.
    pub tenant_is_ignored: bool,
    /// The plan, empty if there is none.
    pub plan: String,
    /// The claims by which the request is judged: by its tenant, its plan, and what the rules that apply count by.
    pub claims: Vec<ClaimUse>,
    /// The ways in which servers may read the path, as written first. The request must pass the rules of each.
    pub path_readings: Vec<String>,
    /// The line of the exemption from all rules that applies, if every reading of the path is exempt.
    pub exempt: Option<usize>,
    /// Why the request is refused whatever its limits are: a path with too many readings, a value that comes more than once, or is
    /// too long. For a path, there are no rules.
    pub problem: Option<RequestProblem>,
    /// Every rule of the file, in order. A rule that counts the readings of the path separately is listed once for each.
    pub rules: Vec<RuleExplanation>,
    /// The decisions if the request were repeated from now on.
    pub timeline: Timeline,
}

/// A claim by which a request is judged. Tidegate reads tokens and does not verify them: a file with claims can be loaded only if it
/// states, by listing the header of the token below `authenticated`, that the proxy or application in front does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimUse {
    /// The identity that it is the value of, as in `per`: `user`, `tenant`, `claim:sub`.
    pub identity: String,
    /// The claim: `claim:sub`.
    pub claim: String,
    /// The header with the token, which must be verified before Tidegate reads it.
    pub header: String,
}

/// Whether and how one rule applies to the request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleExplanation {
    /// The id of the rule.
    pub id: String,
    /// Its mode.
    pub mode: RuleMode,
    /// Whether it applies, and if not, why.
    pub status: RuleStatus,
}

/// Whether a rule applies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RuleStatus {
    /// It applies.
    Applies(RuleEffect),
    /// The request does not match its condition.
    Differs {
        /// The field that differs: `method`, `path`, `header x-beta`.
        field: String,
        /// The value that the rule wants.
        wanted: String,
        /// The value of the request, if any.
        found: Option<String>,
    },
    /// The request is exempt from it, by the entry in this line.
    Exempt {
        /// The line of the entry.
        line: usize,
    },
    /// It is disabled.
    Disabled,
}

/// The effect of a rule that applies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleEffect {
    /// The parts of the subject; empty if all requests share the limit.
    pub subject: Vec<SubjectPart>,
    /// The subject as stores, logs and metrics see it.
    pub subject_hash: String,
    /// Whether no part of the subject is authenticated.
    pub anonymous: bool,
    /// The cost of the request.
    pub cost: u64,
    /// The tokens of a language model that are the actual cost.
    pub usage: Option<UsageKind>,
    /// The response header with the actual cost.
    pub actual: Option<String>,
    /// The failure policy that applies to the request while the store fails.
    pub on_failure: OnFailure,
    /// Whether the policy is a default: the file says nothing about this request. With a ledger it is [closed](OnFailure::Closed).
    pub is_default_policy: bool,
    /// What happens to the request while an instance is overloaded.
    pub on_overload: OnOverload,
    /// The limit of one instance in words, if the policy is [static](OnFailure::Static).
    pub static_limit: Option<String>,
    /// The format of responses that name the rule.
    pub error_format: ErrorFormat,
    /// The ledger of its quotas. A rule in shadow mode writes none.
    pub ledger: Option<LedgerExplanation>,
    /// Its limits, with their keys.
    pub limits: Vec<LimitExplanation>,
}

/// How a ledger records what the quotas of a rule consume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerExplanation {
    /// When the ledger has it.
    pub mode: LedgerMode,
    /// Whether the ledger keeps the tenant's name in clear text, beside the hash.
    pub keep_names: bool,
}

/// A part of a subject.
#[derive(Clone)]
#[non_exhaustive]
pub struct SubjectPart {
    /// Its name in the rule: `client`.
    pub name: String,
    /// The source of the value: `header:x-api-key`. `None` if there is no value: all such requests are one subject.
    pub kind: Option<String>,
    /// The value in its normal form, without a password.
    pub value: Option<String>,
}

/// A limit that applies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimitExplanation {
    /// Its name within the rule, often empty.
    pub name: String,
    /// The plan whose limit it is, often empty.
    pub plan: String,
    /// A description, in words.
    pub text: String,
    /// Its key after the namespace, with unprintable bytes as `\x..`.
    pub key: String,
    /// The running period, if it is a quota.
    pub period: Option<PeriodExplanation>,
}

/// The running period of a quota, in its time zone: `2026-03-29T00:00:00+01:00`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeriodExplanation {
    /// Its first instant.
    pub begins: String,
    /// The first instant of the next one.
    pub ends: String,
    /// The name of the time zone.
    pub time_zone: String,
}

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

/// Omits the value, which may be personal: debug output may end up in a log.
impl fmt::Debug for SubjectPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectPart").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}
