//! `Explanation`: what a rule file makes of one request, and why: which rules apply and why the others do not, whom each
//! counts, under which key, and what the next decisions would be.

use std::fmt::{self, Write};

use tidegate::spi::Match;
use tidegate::{Limit, OnFailure, Request, RuleMode, RuleSet, Secret};

use crate::compile::CompiledRule;
use crate::condition::ConditionMismatch;
use crate::request_view::RequestView;
use crate::timeline::{Timeline, timeline};
use crate::{RuleFile, quantity};

/// What a rule file makes of a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The address of the client, as far as those who tell it are trusted.
    pub client_ip: Option<String>,
    /// The tenant, if one is known.
    pub tenant: Option<String>,
    /// The plan, empty if there is none.
    pub plan: String,
    /// The line of the exemption that applies.
    pub exempt: Option<usize>,
    /// Every rule of the file, in order.
    pub rules: Vec<RuleExplanation>,
    /// What would happen if the request came again and again from now on.
    pub timeline: Timeline,
}

/// What one rule has to do with the request.
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
    /// It does.
    Applies(RuleEffect),
    /// The request is not what it asks for.
    Differs {
        /// What differs: `method`, `path`, `header x-beta`.
        field: String,
        /// What the rule asks for.
        wanted: String,
        /// What the request has, if anything.
        found: Option<String>,
    },
    /// An exemption lifts it.
    Exempt,
    /// It is disabled.
    Disabled,
}

/// A rule that applies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleEffect {
    /// Whom it counts, part by part; empty if everybody shares it.
    pub subject: Vec<SubjectPart>,
    /// The subject as stores, logs and metrics see it.
    pub subject_hash: String,
    /// Whether nobody vouches for it.
    pub anonymous: bool,
    /// What the request costs.
    pub cost: u64,
    /// What happens to the request while the store fails, as far as this rule is concerned.
    pub on_failure: OnFailure,
    /// How much one instance lets pass then, in words, if that is [static](OnFailure::Static).
    pub emergency: Option<String>,
    /// Its limits, with the keys under which they are counted.
    pub limits: Vec<LimitExplanation>,
}

/// A part of whom a rule counts.
#[derive(Clone)]
#[non_exhaustive]
pub struct SubjectPart {
    /// Its name in the rule: `client`.
    pub name: String,
    /// Where it was found: `header:x-api-key`. None if nowhere: then everybody without it is counted as one.
    pub kind: Option<String>,
    /// What was found there.
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
    /// What it allows, in words.
    pub text: String,
    /// Its key, with what is not printable as `\x..`.
    pub key: String,
}

impl RuleFile {
    /// Explains what the rules make of `request`, with subjects hashed by `secret`.
    pub fn explain(&self, request: &Request<'_>, secret: &Secret) -> Explanation {
        let view = RequestView::new(request, &self.matcher);
        let rules = self.rules().clone().with_secret(secret);
        let exempt = self.matcher.exemption(&view);
        let explained = self.compiled.iter().map(|rule| RuleExplanation {
            id: rule.matcher.id.to_string(),
            mode: rule.mode,
            status: self.status(rule, &view, exempt.is_some(), &rules),
        });
        Explanation {
            client_ip: view.client().map(|ip| ip.to_string()),
            tenant: view.tenant().map(str::to_owned),
            plan: view.plan().to_owned(),
            exempt: exempt.map(|place| self.exempt_lines[place]),
            rules: explained.collect(),
            timeline: timeline(&rules, request),
        }
    }

    fn status(&self, rule: &CompiledRule, view: &RequestView<'_, '_>, exempt: bool, rules: &RuleSet) -> RuleStatus {
        if let Some(ConditionMismatch { field, wanted, found }) = rule.matcher.condition.mismatch(view) {
            return RuleStatus::Differs { field, wanted, found };
        }
        match (rule.is_disabled(), exempt) {
            (true, _) => RuleStatus::Disabled,
            (_, true) => RuleStatus::Exempt,
            _ => RuleStatus::Applies(self.effect(rule, view, rules)),
        }
    }

    fn effect(&self, rule: &CompiledRule, view: &RequestView<'_, '_>, rules: &RuleSet) -> RuleEffect {
        let counted = rule.matcher.counted(view);
        let cost = rule.matcher.cost.of(view, &self.matcher);
        // By itself, since of rules that share a budget only the first has a check in the plan.
        let place = self.matcher.rules.iter().position(|matcher| matcher.id == rule.matcher.id).unwrap_or_default();
        let values = counted.values(&rule.matcher);
        let policy = rule.matcher.on_failure.of(view);
        let on_failure = policy.unwrap_or(rule.matcher.on_failure.otherwise);
        let plan = rules.resolve_match(Match {
            rule: place,
            plan: view.plan(),
            values: &values,
            cost,
            on_failure: policy,
            anonymous: counted.anonymous,
        });
        let checks = plan.checks();
        let mut subject: Vec<SubjectPart> = Vec::new();
        if let Some(tenant) = &counted.tenant {
            subject.push(SubjectPart { name: "tenant".into(), kind: None, value: Some(tenant.clone()) });
        }
        subject.extend(rule.matcher.per.iter().zip(&counted.found).map(|(identity, found)| SubjectPart {
            name: identity.name.to_string(),
            kind: found.as_ref().map(|found| found.kind.to_string()),
            value: found.as_ref().map(|found| found.value.to_string()),
        }));
        RuleEffect {
            subject,
            subject_hash: checks.first().map(|check| check.key().subject().to_string()).unwrap_or_default(),
            anonymous: counted.anonymous,
            cost,
            on_failure,
            emergency: rule.emergency.as_ref().filter(|_| on_failure == OnFailure::Static).map(describe_limit),
            limits: checks
                .iter()
                .map(|check| {
                    let gate = check.gate();
                    let mut key = Vec::new();
                    check.key().write_name("tg", &mut key);
                    LimitExplanation {
                        name: gate.limit_name().to_string(),
                        plan: gate.plan().to_string(),
                        text: describe_limit(gate.limit()),
                        key: key.escape_ascii().to_string(),
                    }
                })
                .collect(),
        }
    }
}

/// Shows the value to nobody: an explanation is for a person at a terminal, and its parts may end up in a log.
impl fmt::Debug for SubjectPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectPart").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// What a limit allows, in words.
pub fn describe_limit(limit: &Limit) -> String {
    let window = quantity::format_window(limit.window());
    match limit {
        Limit::TokenBucket(bucket) => {
            format!("token bucket: {} at once, then {}", bucket.capacity(), quantity::format_rate(bucket.refill()))
        }
        Limit::LeakyBucket(bucket) => {
            format!("leaky bucket: {}, up to {} wait", quantity::format_rate(bucket.drain()), bucket.queue())
        }
        Limit::FixedWindow(fixed) => format!("fixed window: {} in each {window}", fixed.limit()),
        Limit::SlidingLog(log) => format!("sliding log: {} in any {window}", log.limit()),
        Limit::SlidingWindow(sliding) => {
            format!("sliding window: about {} in any {window}, {} slices", sliding.limit(), sliding.slices())
        }
        other => {
            let mut text = String::new();
            let _ = write!(text, "{}: {} in {window}", other.algorithm().as_str(), other.amount());
            text
        }
    }
}

/// What rules are, for those who list them.
impl RuleFile {
    /// The ids of all rules, in order, those that are disabled too.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.compiled.iter().map(|rule| rule.matcher.id.as_str())
    }

    /// Each rule's id and what it counts by, as its `per` says; nothing if it counts everybody together.
    pub fn per_by_rule(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.compiled.iter().map(|rule| {
            let tenant = (rule.matcher.tenant == crate::request_matcher::TenantUse::Subject).then_some("tenant");
            let each = rule.matcher.per.iter().map(|identity| identity.name.as_str());
            (rule.matcher.id.as_str(), tenant.into_iter().chain(each).collect())
        })
    }

    /// Each rule's id and the path patterns that it matches, as the file has them; none if it matches every path.
    pub fn path_patterns(&self) -> impl Iterator<Item = (&str, Vec<String>)> {
        self.compiled.iter().map(|rule| {
            let patterns = rule.matcher.condition.paths.iter().map(ToString::to_string);
            (rule.matcher.id.as_str(), patterns.collect())
        })
    }
}
