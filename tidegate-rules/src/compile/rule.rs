//! Compiling a rule: everything about it that does not depend on a request.

use std::sync::Arc;

use smol_str::SmolStr;
use tidegate::{AnonymousBounds, Limit, PartitionBy, Rule, RuleMode};

use super::on_failure::CompiledPolicy;
use super::{Compiler, Overrides};
use crate::cost::Cost;
use crate::identity::Identity;
use crate::read::Spanned;
use crate::request_matcher::{RuleMatcher, TenantUse};
use crate::schema_types::{self, ModeSpec, ScopeSpec};
use crate::source_file::Span;
use crate::suggest::nearest;

/// A rule that is understood, with the places that lints speak of.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) matcher: RuleMatcher,
    pub(crate) limits: Vec<(SmolStr, Limit)>,
    pub(crate) plans: Vec<(SmolStr, Vec<(SmolStr, Limit)>)>,
    pub(crate) mode: RuleMode,
    /// Whether it says what happens while the store fails.
    pub(crate) has_policy: bool,
    /// What one instance lets pass where the policy is `static`.
    pub(crate) emergency: Option<Limit>,
    /// What becomes of strangers, if it is written.
    pub(crate) anonymous: Option<AnonymousBounds>,
    pub(crate) tag: PartitionBy,
    pub(crate) security: Option<bool>,
    pub(crate) message: Option<SmolStr>,
    pub(crate) budget: Option<SmolStr>,
    /// The header of a response that tells the actual cost, in lower case.
    pub(crate) actual: Option<SmolStr>,
    pub(crate) has_cost: bool,
    pub(crate) id_span: Span,
    pub(crate) match_span: Span,
    pub(crate) per_span: Span,
    /// Whom it counts by as it is written, with the place of each.
    pub(crate) per_places: Vec<(SmolStr, Span)>,
    /// Where each of its limits stands.
    pub(crate) limit_spans: Vec<Span>,
    pub(crate) cost_span: Span,
    pub(crate) on_failure_span: Span,
}

impl CompiledRule {
    pub(crate) fn is_disabled(&self) -> bool {
        self.mode == RuleMode::Disabled
    }

    /// The rule as the library takes it.
    pub(crate) fn rule(&self) -> Rule {
        let mut rule = Rule::from_limits(self.matcher.id.clone(), self.limits.clone())
            .with_per(self.matcher.names())
            .with_mode(self.mode)
            .with_partition_by(self.tag.clone())
            .with_on_failure(self.matcher.on_failure.otherwise);
        for (plan, limits) in &self.plans {
            rule = rule.with_plan(plan.clone(), limits.clone());
        }
        if let Some(cap) = self.emergency {
            rule = rule.with_static_limit(cap);
        }
        if let Some(anonymous) = self.anonymous {
            rule = rule.with_anonymous(anonymous);
        }
        if self.security == Some(true) {
            rule = rule.with_security();
        }
        if let Some(message) = &self.message {
            rule = rule.with_message(message.clone());
        }
        if let Some(header) = &self.actual {
            rule = rule.with_cost_header(header.clone());
        }
        match &self.budget {
            Some(budget) => rule.with_budget(budget.clone()),
            None => rule,
        }
    }
}

impl Compiler<'_> {
    pub(super) fn rule(
        &mut self,
        at: &Spanned<schema_types::RuleSpec>,
        identities: &[Identity],
        overrides: &Overrides,
    ) -> Option<CompiledRule> {
        let written = &at.value;
        let id = SmolStr::new(&written.id.value);
        self.check_id(&written.id);
        let lost = std::mem::replace(&mut self.partial, written.damaged);
        let limits = self.limits(written, &written.id.span);
        self.partial = lost;
        let condition = written.r#match.as_ref().map(|asked| self.condition(&asked.value)).unwrap_or_default();
        let (per, tenant) = self.per(written, identities);
        let cost = written.cost.as_ref().map_or(Some(Cost::default()), |cost| self.cost(&cost.value));
        let failing =
            written.on_failure.as_ref().map_or(Some(CompiledPolicy::default()), |at| self.on_failure(&at.value));
        let anonymous = written.anonymous.as_ref().map_or(Some(None), |at| self.anonymous(&at.value).map(Some));
        let mut plans = overrides.get(&id).cloned().unwrap_or_default();
        if let Some([(name, _)]) = limits.as_deref() {
            // The same name means the same key: a tenant that changes its plan keeps what it has spent.
            plans.iter_mut().flat_map(|(_, limits)| limits).for_each(|(own, _)| *own = name.clone());
        }
        if let (Some(limits), false) = (&limits, plans.is_empty())
            && limits.len() > 1
        {
            let message = "a plan gives this rule another limit, but it has several";
            self.error("plan-of-several", &written.id.span, message).set_help("make a rule of each of its limits");
        }
        let span = |at: Option<Span>| at.unwrap_or_else(|| written.id.span.clone());
        let failing = failing?;
        Some(CompiledRule {
            matcher: RuleMatcher {
                id,
                condition: Box::new(condition),
                rest: None,
                per,
                tenant,
                cost: cost?,
                on_failure: failing.policy,
            },
            limits: limits?,
            plans,
            mode: written.mode.as_ref().map_or(RuleMode::Enabled, |mode| match mode.value {
                ModeSpec::Enabled => RuleMode::Enabled,
                ModeSpec::Disabled => RuleMode::Disabled,
                ModeSpec::Shadow => RuleMode::Shadow,
            }),
            has_policy: written.on_failure.as_ref().is_some_and(|policy| !policy.is_empty()),
            emergency: failing.cap,
            anonymous: anonymous?,
            tag: written.tag.as_ref().map_or(Some(PartitionBy::Usual), |tag| self.tag(tag, tenant))?,
            security: written.security.as_ref().map(|security| security.value),
            message: written.message.as_ref().map(|message| SmolStr::new(message.trim())),
            budget: written.budget.as_ref().map(|budget| SmolStr::new(&budget.value)),
            actual: actual(written),
            has_cost: written.cost.is_some(),
            id_span: written.id.span.clone(),
            match_span: span(written.r#match.as_ref().map(|asked| asked.span.clone())),
            per_span: written.per.span.clone(),
            per_places: written.per.value.0.iter().map(|at| (SmolStr::new(&at.value), at.span.clone())).collect(),
            limit_spans: limit_spans(written),
            cost_span: span(written.cost.as_ref().map(|cost| cost.span.clone())),
            on_failure_span: span(written.on_failure.as_ref().map(|policy| policy.span.clone())),
        })
    }

    fn check_id(&mut self, id: &Spanned<String>) {
        let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if id.is_empty() || id.len() > 64 || !id.chars().all(fits) {
            let message = "an id has 1 to 64 letters, digits, `-`, `_`, `.` or `/`";
            self.error("id", &id.span, message).set_help("it is part of keys, headers and metrics");
        }
    }

    /// What decides the partition of a rule's keys.
    fn tag(&mut self, at: &Spanned<String>, tenant: TenantUse) -> Option<PartitionBy> {
        match at.as_str() {
            "tenant" if tenant != TenantUse::No => Some(PartitionBy::Usual),
            "tenant" => {
                let message = "the rule does not count by tenant, so the tenant cannot decide where its keys are";
                self.error("tag", &at.span, message).set_help("leave it out, or add `tenant` to `per`");
                None
            }
            "subject" => Some(PartitionBy::Subject),
            "rule" => Some(PartitionBy::Rule),
            text => {
                let name = text.strip_prefix("const:").filter(|name| !name.is_empty() && name.len() <= 64);
                if name.is_none() {
                    let message = format!("`{text}` does not say what decides where the keys are");
                    self.error("tag", &at.span, message).set_help("write `tenant`, `subject`, `rule` or `const:NAME`");
                }
                name.map(|name| PartitionBy::Constant(name.into()))
            }
        }
    }

    /// Whom a rule counts by.
    fn per(&mut self, written: &schema_types::RuleSpec, identities: &[Identity]) -> (Arc<[Identity]>, TenantUse) {
        let mut per: Vec<Identity> = Vec::new();
        let mut by_tenant = false;
        for at in &written.per.value.0 {
            if at.as_str() == "tenant" {
                by_tenant = true;
            } else if per.iter().any(|known| known.name == at.as_str()) {
                self.error("per", &at.span, format!("`{}` stands here twice", at.value));
            } else if let Some(identity) = identities.iter().find(|identity| identity.name == at.as_str()) {
                per.push(identity.clone());
            } else {
                per.extend(self.direct(at, identities));
            }
        }
        let global = written.scope.as_ref().is_some_and(|scope| scope.value == ScopeSpec::Global);
        let tenant = match (by_tenant, global) {
            (true, _) => TenantUse::Subject,
            (false, false) if per.iter().any(Identity::may_belong_to_tenant) => TenantUse::Scope,
            (false, _) => TenantUse::No,
        };
        let names = per.iter().map(|identity| identity.name.clone()).collect();
        (Arc::clone(self.pers.entry(names).or_insert_with(|| per.into())), tenant)
    }

    /// A source that a rule counts by without a name for it.
    fn direct(&mut self, at: &Spanned<String>, identities: &[Identity]) -> Option<Identity> {
        let names = identities.iter().map(|identity| identity.name.as_str());
        if !at.contains(':')
            && let Some(name) = nearest(at, names)
            && crate::identity::Source::parse(at).is_err()
        {
            let message = format!("`{}` is neither a name from `identify` nor a source", at.value);
            self.error("per", &at.span, message).set_help(format!("did you mean `{name}`?"));
            return None;
        }
        let source = self.source(at)?;
        let name = SmolStr::new(&at.value);
        Some(Identity::new(name.clone(), vec![(source, name)], &self.authenticated))
    }
}

/// The places of the limits, in their order.
fn limit_spans(written: &schema_types::RuleSpec) -> Vec<Span> {
    if !written.limits.is_empty() {
        return written.limits.values().map(|limit| limit.span.clone()).collect();
    }
    let own = [
        written.token_bucket.as_ref().map(|at| &at.span),
        written.leaky_bucket.as_ref().map(|at| &at.span),
        written.fixed_window.as_ref().map(|at| &at.span),
        written.sliding_log.as_ref().map(|at| &at.span),
        written.sliding_window.as_ref().map(|at| &at.span),
    ];
    own.into_iter().flatten().cloned().collect()
}

fn actual(written: &schema_types::RuleSpec) -> Option<SmolStr> {
    let schema_types::CostSpec::Map(table) = &written.cost.as_ref()?.value else { return None };
    Some(SmolStr::new(table.actual.as_ref()?.to_ascii_lowercase()))
}
