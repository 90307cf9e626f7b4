//! Compiling `ledger` and `keep_names`: a rule has one ledger, for all of its quotas and plans.

use std::collections::HashMap;

use smol_str::SmolStr;
use tidegate::Limit;
use tidegate::rules::LedgerMode;

use super::{CompiledRule, Compiler, PlanLimits};
use crate::problem::Problem;
use crate::read::Spanned;
use crate::request_matcher::TenantUse;
use crate::schema_types::{LedgerSpec, QuotaSpec, RuleSpec};
use crate::source_file::Span;

/// The code of errors about the ledger.
const CODE: &str = "ledger";

/// The ledger of a rule, with its position.
#[derive(Clone, Debug)]
pub(super) struct CompiledLedger {
    pub(super) mode: LedgerMode,
    /// Whether it keeps the names of tenants in clear text.
    pub(super) keep_names: bool,
    /// The position of the mode.
    pub(super) span: Span,
}

/// What a quota says about the ledger.
#[derive(Clone, Debug, Default)]
pub(super) struct LedgerFields {
    mode: Option<(LedgerMode, Span)>,
    /// The position of `ledger: none`.
    none: Option<Span>,
    keep_names: Option<(bool, Span)>,
    /// Whether one of these fields was invalid, and so was removed.
    is_damaged: bool,
}

impl LedgerFields {
    pub(super) fn new(quota: &Spanned<QuotaSpec>) -> Self {
        let mode = |at: &Spanned<LedgerSpec>| match at.value {
            LedgerSpec::Sync => Some((LedgerMode::Sync, at.span.clone())),
            LedgerSpec::Async => Some((LedgerMode::Async, at.span.clone())),
            LedgerSpec::None => None,
        };
        let is_none = |at: &&Spanned<LedgerSpec>| at.value == LedgerSpec::None;
        Self {
            mode: quota.ledger.as_ref().and_then(mode),
            none: quota.ledger.as_ref().filter(is_none).map(|at| at.span.clone()),
            keep_names: quota.keep_names.as_ref().map(|at| (at.value, at.span.clone())),
            is_damaged: quota.has_lost(&["ledger", "keep_names"]),
        }
    }
}

/// The position of the first quota of a rule without a ledger that does not say so by `ledger: none`. A plan has the ledger of its rule,
/// unless the rule itself has no quota.
pub(super) fn unrecorded_quota(spec: &RuleSpec, plans: &[PlanLimits]) -> Option<Span> {
    let says_nothing = |fields: &LedgerFields| fields.mode.is_none() && fields.none.is_none();
    let own = || spec.quota.iter().chain(spec.limits.values().filter_map(|limit| limit.quota.as_ref()));
    if own().next().is_some() {
        return own().find(|quota| says_nothing(&LedgerFields::new(quota))).map(|quota| quota.span.clone());
    }
    let is_quota = |plan: &&PlanLimits| plan.limits.iter().any(|(_, limit)| matches!(limit, Limit::Quota(_)));
    plans.iter().filter(is_quota).find(|plan| says_nothing(&plan.ledger)).map(|plan| plan.span.clone())
}

impl Compiler<'_> {
    /// The ledger of a rule, after checks that all quotas of the rule and of its plans agree. `lost_quota` is whether a limit was reported
    /// and removed.
    pub(super) fn ledger(
        &mut self,
        spec: &RuleSpec,
        lost_quota: bool,
        tenant: TenantUse,
        plans: &[PlanLimits],
    ) -> Option<CompiledLedger> {
        let quotas = spec.quota.iter().chain(spec.limits.values().filter_map(|limit| limit.quota.as_ref()));
        let quotas: Vec<(LedgerFields, &Span)> = quotas.map(|at| (LedgerFields::new(at), &at.span)).collect();
        let ledger = quotas.iter().find_map(|(fields, _)| {
            let (mode, span) = fields.mode.clone()?;
            let keep_names = fields.keep_names.as_ref().is_some_and(|(keep, _)| *keep);
            Some(CompiledLedger { mode, keep_names, span })
        });
        if let (Some(_), Some(at)) = (&ledger, &spec.anonymous) {
            let message = "the rule has a ledger, which has no accounts for unauthenticated subjects";
            let help = "remove `anonymous`, and count by a tenant or a key";
            self.error(CODE, &at.span, message).set_help(help);
        }
        // A field was reported and removed, and may be the one that would be missing here.
        if lost_quota || quotas.iter().any(|(fields, _)| fields.is_damaged) {
            return ledger;
        }
        let Some(ledger) = ledger else {
            self.check_no_ledger(&quotas, plans);
            return None;
        };
        for (fields, span) in &quotas {
            self.check_same_mode(fields, &ledger, span);
            self.check_same_names(fields, &ledger, span);
        }
        for plan in plans {
            self.check_plan_ledger(plan, &ledger);
        }
        self.check_names_of_tenants(&quotas, tenant);
        Some(ledger)
    }

    /// Reports fields that need a ledger, in a rule without one.
    fn check_no_ledger(&mut self, quotas: &[(LedgerFields, &Span)], plans: &[PlanLimits]) {
        let of_plans = plans.iter().map(|plan| &plan.ledger);
        for fields in quotas.iter().map(|(fields, _)| fields).chain(of_plans.clone()) {
            if let (None, Some((_, span))) = (&fields.mode, &fields.keep_names) {
                let message = "`keep_names` is about the ledger, and the rule has none";
                self.error(CODE, span, message).set_help("add `ledger: sync` or `ledger: async`, or remove the field");
            }
        }
        for (mode, span) in of_plans.filter_map(|fields| fields.mode.as_ref()) {
            let message = "the plan has a ledger, and its rule has none";
            let help = format!(
                "a rule has one ledger for all plans: give the rule itself a quota with `ledger: {}`",
                mode.as_str()
            );
            self.error(CODE, span, message).set_help(help);
        }
    }

    fn check_same_mode(&mut self, fields: &LedgerFields, ledger: &CompiledLedger, quota: &Span) {
        let expected = ledger.mode.as_str();
        let (message, span) = match (&fields.mode, &fields.none) {
            (Some((mode, _)), _) if *mode == ledger.mode => return,
            (Some((mode, span)), _) => {
                (format!("this quota has `ledger: {}`, and another one of the rule `{expected}`", mode.as_str()), span)
            }
            (None, Some(span)) => {
                (format!("this quota has `ledger: none`, and another one of the rule `{expected}`"), span)
            }
            (None, None) => {
                (format!("this quota has no ledger, and another one of the rule `ledger: {expected}`"), quota)
            }
        };
        let help = format!("a rule has one ledger: write `ledger: {expected}`, or move the quota to another rule");
        self.error(CODE, span, message).set_help(help);
    }

    fn check_same_names(&mut self, fields: &LedgerFields, ledger: &CompiledLedger, quota: &Span) {
        if fields.keep_names.as_ref().is_some_and(|(keep, _)| *keep) == ledger.keep_names {
            return;
        }
        let span = fields.keep_names.as_ref().map_or(quota, |(_, span)| span);
        let message = "one quota of the rule keeps names in the ledger, and another one does not";
        self.error(CODE, span, message).set_help("write the same `keep_names` in all quotas of the rule");
    }

    /// A quota of a plan has the ledger of its rule; it may repeat it.
    fn check_plan_ledger(&mut self, plan: &PlanLimits, ledger: &CompiledLedger) {
        let other = plan.ledger.mode.as_ref().filter(|(mode, _)| *mode != ledger.mode);
        let other = other.map(|(mode, span)| (mode.as_str(), span));
        if let Some((own, span)) = other.or(plan.ledger.none.as_ref().map(|span| ("none", span))) {
            let expected = ledger.mode.as_str();
            let message = format!("the plan has `ledger: {own}`, and its rule `ledger: {expected}`");
            let help = "a rule has one ledger for all plans: remove it here";
            self.error(CODE, span, message).set_help(help);
        }
        if let Some((keep, span)) = plan.ledger.keep_names.as_ref().filter(|(keep, _)| *keep != ledger.keep_names) {
            let message =
                format!("the plan has `keep_names: {keep}`, and its rule `keep_names: {}`", ledger.keep_names);
            self.error(CODE, span, message).set_help("a rule has one ledger for all plans: remove it here");
        }
    }

    fn check_names_of_tenants(&mut self, quotas: &[(LedgerFields, &Span)], tenant: TenantUse) {
        let mut keeping = quotas.iter().filter_map(|(fields, _)| fields.keep_names.as_ref()).filter(|(keep, _)| *keep);
        if let (true, Some((_, span))) = (tenant != TenantUse::Subject, keeping.next()) {
            let message = "the ledger keeps names of tenants, and the rule does not count by tenant";
            self.error(CODE, span, message).set_help("add `tenant` to `per`, or remove `keep_names`");
        }
    }

    /// Reports rules that share a budget and record it differently: they have one account.
    pub(super) fn check_budget_ledgers(&mut self, rules: &[CompiledRule]) {
        let mut first: HashMap<&SmolStr, &CompiledRule> = HashMap::new();
        for rule in rules {
            let Some(budget) = &rule.budget else { continue };
            let other = *first.entry(budget).or_insert(rule);
            if (other.ledger, other.ledger_names) == (rule.ledger, rule.ledger_names) {
                continue;
            }
            let what = match other.ledger {
                None => "has no ledger".to_owned(),
                Some(mode) if rule.ledger == Some(mode) => format!("has `keep_names: {}`", other.ledger_names),
                Some(mode) => format!("has `ledger: {}`", mode.as_str()),
            };
            let id = &other.id;
            let message = format!("this rule shares budget `{budget}` with rule `{id}`, which {what}");
            // A rule without a ledger lacks it in its quota.
            let span = rule.ledger_span.as_ref().or(rule.limit_spans.first());
            let problem = Problem::error("budget", message, span.unwrap_or(&rule.id_span).clone());
            self.problems.push(problem.with_help("give both rules the same `ledger` and `keep_names`"));
        }
    }
}
