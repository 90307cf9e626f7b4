//! Compiling a rule.

use std::ops::Deref;
use std::sync::Arc;

use smol_str::SmolStr;
use tidegate::attributes::NormalForms;
use tidegate::http::ErrorFormat;
use tidegate::rules::{OnMissing, OnOverload, PartitionBy, UsageKind};
use tidegate::spi::DEFAULT_MAX_SUBJECTS;
use tidegate::{Limit, OnFailure, Rule, RuleMode};

use super::front_ends::FrontEnds;
use super::ledger::{LedgerFields, unrecorded_quota};
use super::limit::has_lost_limit;
use super::{Compiler, Overrides, error_format};
use crate::cost::Cost;
use crate::identity::Identity;
use crate::read::Spanned;
use crate::request_matcher::{RuleMatcher, TenantUse};
use crate::schema_types::{self, ModeSpec, OnMissingSpec, OnOverloadSpec, PolicyName, ScopeSpec, UsageSpec};
use crate::source_file::Span;
use crate::suggest::nearest;

/// The limits that a plan gives a rule.
#[derive(Clone, Debug)]
pub(super) struct PlanLimits {
    pub(super) plan: SmolStr,
    pub(super) limits: Vec<(SmolStr, Limit)>,
    pub(super) ledger: LedgerFields,
    pub(super) span: Span,
}

/// A [`Rule`] with its matcher and what the file says besides, with positions for lints.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct CompiledRule {
    pub matcher: RuleMatcher,
    /// The position of a quota without a ledger, if the file does not say that this is meant.
    pub unrecorded_quota: Option<Span>,
    /// The front ends that it is meant for.
    pub front_ends: FrontEnds,
    /// Whether the file has a failure policy for it.
    pub has_policy: bool,
    /// Whether the file says what applies to requests that match no route of that policy.
    pub says_default: bool,
    /// Whether that policy says `local` in so many words, for all requests or for some.
    pub says_local: bool,
    /// Whether the file says that it is a security rule, or that it is none.
    pub says_security: bool,
    pub has_cost: bool,
    pub id_span: Span,
    pub match_span: Span,
    pub per_span: Span,
    /// The texts in `per`, without normal forms, with their positions.
    pub per_spans: Vec<(SmolStr, Span)>,
    /// The positions of its limits.
    pub limit_spans: Vec<Span>,
    /// The positions of the limits that each of its plans has.
    pub plan_spans: Vec<Span>,
    /// The position of its penalty.
    pub penalty_span: Option<Span>,
    /// The position of the mode of its ledger.
    pub ledger_span: Option<Span>,
    pub cost_span: Span,
    pub on_failure_span: Span,
    pub on_overload_span: Span,
}

impl Deref for CompiledRule {
    type Target = Rule;

    fn deref(&self) -> &Rule {
        &self.matcher.rule
    }
}

impl CompiledRule {
    pub fn is_disabled(&self) -> bool {
        self.mode == RuleMode::Disabled
    }

    /// The rule, to change it before others have it.
    pub fn rule_mut(&mut self) -> &mut Rule {
        Arc::make_mut(&mut self.matcher.rule)
    }
}

impl Compiler<'_> {
    pub(super) fn rule(
        &mut self,
        at: &Spanned<schema_types::RuleSpec>,
        identities: &[Identity],
        overrides: &Overrides,
    ) -> Option<CompiledRule> {
        let spec = &at.value;
        // Without an id or a `per`, the other fields are compiled for their errors.
        let id_span = spec.id.as_ref().map_or(&at.span, |id| &id.span);
        if let Some(id) = spec.id.as_ref() {
            self.check_id(id);
        }
        let id = spec.id.as_ref().map(|id| SmolStr::new(&id.value));
        let limits = self.limits(at, id_span);
        if let Some(limits) = &limits {
            self.check_denial_cache(spec, limits);
        }
        let condition = spec.r#match.as_ref().map(|condition| self.condition(&condition.value)).unwrap_or_default();
        let (per, tenant) = self.per(spec, identities);
        let cost = spec.cost.as_ref().map_or(Some(Cost::default()), |cost| self.cost(&cost.value));
        let penalty = spec.penalty.as_ref().map_or(Some(None), |at| self.penalty(spec, at).map(Some));
        let anonymous = spec.anonymous.as_ref().map_or(Some(None), |at| self.anonymous(&at.value).map(Some));
        let max_subjects =
            spec.authenticated.as_ref().map_or(Some(DEFAULT_MAX_SUBJECTS), |at| self.authenticated_bound(&at.value));
        let mut plans: Vec<PlanLimits> = id.as_ref().and_then(|id| overrides.get(id)).cloned().unwrap_or_default();
        if let Some([(name, _)]) = limits.as_deref() {
            // The same name gives the same key: usage carries over when a tenant changes its plan.
            plans.iter_mut().flat_map(|plan| &mut plan.limits).for_each(|(own, _)| *own = name.clone());
        }
        if let (Some(limits), false) = (&limits, plans.is_empty())
            && limits.len() > 1
        {
            let message = "a plan overrides the limit of this rule, which has several";
            self.error("plan-of-several", id_span, message).set_help("split it into one rule for each limit");
        }
        let ledger = self.ledger(spec, has_lost_limit(at), tenant, &plans);
        let unrecorded_quota = if ledger.is_none() { unrecorded_quota(spec, &plans) } else { None };
        let front_ends = self.front_ends(spec);
        // What costs money does not pass uncounted unless the file says so.
        let default_policy = if ledger.is_some() { OnFailure::Closed } else { OnFailure::default() };
        let policy = self.on_failure(spec.on_failure.as_ref().map(|at| &at.value), default_policy);
        let own_limits = limits.iter().flatten();
        self.check_usage(spec, own_limits.chain(plans.iter().flat_map(|plan| &plan.limits)).map(|(_, limit)| limit));
        let partition_by = spec.tag.as_ref().map_or(Some(PartitionBy::Auto), |tag| self.partition_by(tag, tenant));
        let span = |at: Option<Span>| at.unwrap_or_else(|| id_span.clone());
        let (policy, per_field) = (policy?, spec.per.as_ref()?);
        let (plans, plan_spans) = plans.into_iter().map(|plan| ((plan.plan, plan.limits), plan.span)).unzip();

        let mut rule = Rule::from_limits(id?, limits?);
        rule.per = tenant.subject_names(&per);
        rule.plans = plans;
        rule.penalty = penalty?;
        rule.mode = mode(spec);
        rule.budget = spec.budget.as_ref().map(|budget| SmolStr::new(&budget.value));
        rule.on_failure = policy.policy.otherwise;
        rule.on_overload = on_overload(spec);
        rule.on_missing = on_missing(spec, ledger.is_some());
        rule.denial_cache = spec.denial_cache.as_ref().is_none_or(|at| at.value);
        rule.static_limit = policy.static_limit;
        rule.anonymous = anonymous?;
        rule.max_subjects = max_subjects?;
        rule.partition_by = partition_by?;
        rule.security = spec.security.as_ref().is_some_and(|security| security.value);
        rule.message = spec.message.as_ref().map(|message| SmolStr::new(message.trim()));
        rule.cost_header = cost_header(spec);
        rule.usage = usage(spec);
        // What the file says precedes the default of `cost.usage`.
        let of_usage = rule.usage.map(|_| ErrorFormat::OpenAi);
        rule.error_format = error_format(spec.error_format.as_ref()).or(self.error_format).or(of_usage);
        // A cost that is corrected after the response is one that a caller may commit.
        rule.computed_cost = spec.cost.is_some() && rule.cost_header.is_none() && rule.usage.is_none();
        rule.ledger = ledger.as_ref().map(|ledger| ledger.mode);
        rule.ledger_names = ledger.as_ref().is_some_and(|ledger| ledger.keep_names);
        Some(CompiledRule {
            matcher: RuleMatcher {
                rule: rule.into(),
                condition: Box::new(condition),
                rest: None,
                per,
                tenant,
                cost: cost?,
                on_failure: policy.policy,
            },
            unrecorded_quota,
            front_ends,
            has_policy: spec.on_failure.as_ref().is_some_and(|policy| !policy.is_empty()),
            says_default: spec.on_failure.as_ref().is_some_and(|policy| policy.has_default()),
            says_local: spec.on_failure.as_ref().is_some_and(|policy| policy.contains(PolicyName::Local)),
            says_security: spec.security.is_some(),
            has_cost: spec.cost.is_some(),
            id_span: id_span.clone(),
            match_span: span(spec.r#match.as_ref().map(|condition| condition.span.clone())),
            per_span: per_field.span.clone(),
            per_spans: per_field.value.0.iter().map(|at| (SmolStr::new(without_forms(at)), at.span.clone())).collect(),
            limit_spans: limit_spans(spec),
            plan_spans,
            penalty_span: spec.penalty.as_ref().map(|penalty| penalty.span.clone()),
            ledger_span: ledger.map(|ledger| ledger.span),
            cost_span: span(spec.cost.as_ref().map(|cost| cost.span.clone())),
            on_failure_span: span(spec.on_failure.as_ref().map(|policy| policy.span.clone())),
            on_overload_span: span(spec.on_overload.as_ref().map(|policy| policy.span.clone())),
        })
    }

    fn check_id(&mut self, id: &Spanned<String>) {
        let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if id.is_empty() || id.len() > 64 || !id.chars().all(fits) {
            let message = "an id must have 1 to 64 letters, digits, `-`, `_`, `.` or `/`";
            self.error("id", &id.span, message).set_help("it is part of keys, headers and metrics");
        }
    }

    /// By what the keys of the rule are partitioned, as its `tag` says.
    fn partition_by(&mut self, at: &Spanned<String>, tenant: TenantUse) -> Option<PartitionBy> {
        match at.as_str() {
            "tenant" if tenant != TenantUse::No => Some(PartitionBy::Auto),
            "tenant" => {
                let message = "the rule does not count by tenant, so its keys cannot be partitioned by tenant";
                self.error("tag", &at.span, message).set_help("leave it out, or add `tenant` to `per`");
                None
            }
            "subject" => Some(PartitionBy::Subject),
            "rule" => Some(PartitionBy::Rule),
            text => {
                let name = text.strip_prefix("const:").filter(|name| !name.is_empty() && name.len() <= 64);
                if name.is_none() {
                    let message = format!("`{text}` is not a way to partition keys");
                    self.error("tag", &at.span, message).set_help("write `tenant`, `subject`, `rule` or `const:NAME`");
                }
                name.map(|name| PartitionBy::Constant(name.into()))
            }
        }
    }

    /// The identities in `per`, and how the rule uses the tenant.
    fn per(&mut self, spec: &schema_types::RuleSpec, identities: &[Identity]) -> (Arc<[Identity]>, TenantUse) {
        // What a lost `per` may have named is not missed.
        let mut by_tenant = spec.per.is_none();
        let mut per: Vec<Identity> = Vec::new();
        let fields = spec.per.as_ref().map_or(&[][..], |per| &per.value.0);
        for at in fields {
            let Some((name, forms)) = self.split_forms(at) else { continue };
            if matches!(name, "tenant" | "plan") && forms.is_some() {
                let message = format!("the {name} has one normal form for all rules");
                self.error("normal-form", &at.span, message)
                    .set_help(format!("give it to the sources of `{name}` below `identify`"));
            }
            if name == "tenant" {
                by_tenant = true;
            } else if per.iter().any(|known| known.name == name) {
                self.error("per", &at.span, format!("`{name}` is listed twice"));
            } else if let Some(identity) = identities.iter().find(|identity| identity.name == name) {
                let identity = identity.clone();
                per.push(match forms {
                    Some(forms) => identity.with_forms(&forms),
                    None => identity,
                });
            } else {
                per.extend(self.direct(name, forms, &at.span, identities));
            }
        }
        let is_security = spec.security.as_ref().is_some_and(|security| security.value);
        if is_security {
            per = per.into_iter().map(Identity::with_account_forms).collect();
        }
        let global = spec.scope.as_ref().is_some_and(|scope| scope.value == ScopeSpec::Global);
        let tenant = match (by_tenant, global) {
            (true, _) => TenantUse::Subject,
            (false, false) if per.iter().any(Identity::may_belong_to_tenant) => TenantUse::Scope,
            (false, _) => TenantUse::No,
        };
        let texts = fields.iter().map(|at| SmolStr::new(&at.value)).collect();
        (Arc::clone(self.pers.entry((texts, is_security)).or_insert_with(|| per.into())), tenant)
    }

    /// A source that `per` names directly.
    fn direct(
        &mut self,
        text: &str,
        forms: Option<NormalForms>,
        span: &Span,
        identities: &[Identity],
    ) -> Option<Identity> {
        if self.lost_identities.iter().any(|name| name == text) {
            return None;
        }
        let names = identities.iter().map(|identity| identity.name.as_str());
        if !text.contains(':')
            && let Some(name) = nearest(text, names)
            && crate::identity::Source::parse(text).is_err()
        {
            let message = format!("`{text}` is neither a name from `identify` nor a source");
            self.error("per", span, message).set_help(format!("did you mean `{name}`?"));
            return None;
        }
        let source = self.source(text, forms, span)?;
        Some(Identity::new(text.into(), vec![source]))
    }
}

/// A text of `per` without its normal forms.
fn without_forms(text: &str) -> &str {
    text.split('|').next().unwrap_or_default().trim()
}

fn mode(spec: &schema_types::RuleSpec) -> RuleMode {
    spec.mode.as_ref().map_or(RuleMode::Enabled, |mode| match mode.value {
        ModeSpec::Enabled => RuleMode::Enabled,
        ModeSpec::Disabled => RuleMode::Disabled,
        ModeSpec::Shadow => RuleMode::Shadow,
    })
}

fn on_overload(spec: &schema_types::RuleSpec) -> OnOverload {
    spec.on_overload.as_ref().map_or(OnOverload::default(), |at| match at.value {
        OnOverloadSpec::Policy => OnOverload::Policy,
        OnOverloadSpec::Local => OnOverload::Local,
        OnOverloadSpec::Open => OnOverload::Open,
    })
}

fn on_missing(spec: &schema_types::RuleSpec, has_ledger: bool) -> OnMissing {
    match spec.on_missing.as_ref().map(|at| at.value) {
        Some(OnMissingSpec::Error) => OnMissing::Error,
        // An account of nobody is not paid.
        None if has_ledger => OnMissing::Error,
        Some(OnMissingSpec::Shared) | None => OnMissing::Shared,
    }
}

/// The positions of the limits, in order.
fn limit_spans(spec: &schema_types::RuleSpec) -> Vec<Span> {
    if !spec.limits.is_empty() {
        return spec.limits.values().map(|limit| limit.span.clone()).collect();
    }
    let own = [
        spec.token_bucket.as_ref().map(|at| &at.span),
        spec.leaky_bucket.as_ref().map(|at| &at.span),
        spec.fixed_window.as_ref().map(|at| &at.span),
        spec.sliding_log.as_ref().map(|at| &at.span),
        spec.sliding_window.as_ref().map(|at| &at.span),
        spec.concurrency.as_ref().map(|at| &at.span),
        spec.quota.as_ref().map(|at| &at.span),
    ];
    own.into_iter().flatten().cloned().collect()
}

fn usage(spec: &schema_types::RuleSpec) -> Option<UsageKind> {
    let schema_types::CostSpec::Map(table) = &spec.cost.as_ref()?.value else { return None };
    Some(match table.usage.as_ref()?.value {
        UsageSpec::Total => UsageKind::Total,
        UsageSpec::Input => UsageKind::Input,
        UsageSpec::Output => UsageKind::Output,
    })
}

fn cost_header(spec: &schema_types::RuleSpec) -> Option<SmolStr> {
    let schema_types::CostSpec::Map(table) = &spec.cost.as_ref()?.value else { return None };
    Some(SmolStr::new(table.actual.as_ref()?.to_ascii_lowercase()))
}
