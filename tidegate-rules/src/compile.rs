//! Compiling: from [`schema_types`](crate::schema_types) to a [`CompiledFile`], with a problem for every invalid value. Mistakes
//! that leave a file usable are left to the lints of `tidegate-rule-tools`, those that only the whole file shows to the
//! [checks](crate::file_checks).

mod anonymous;
mod concurrency;
mod condition;
mod cost;
mod exemption;
mod front_ends;
mod identify;
mod ledger;
mod limit;
mod on_failure;
mod penalty;
mod quota;
mod repeated;
mod route_table;
mod rule;

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use smol_str::SmolStr;
use tidegate::Limit;
use tidegate::attributes::{DEFAULT_MAX_BODY_BYTES, EscapedSlashes};
use tidegate::http::{ErrorFormat, HeaderPolicy, ResetFormat};
use tidegate::spi::Matcher;

use crate::compiled_file::CompiledFile;
use crate::identity::Identity;
use crate::index::Index;
use crate::problem::{MAX_PROBLEMS, Problem};
use crate::provenance::AuthenticatedNames;
use crate::read::Spanned;
use crate::request_matcher::RequestMatcher;
use crate::schema_types;
use crate::source_file::Span;
use crate::suggest::suggest;

pub(crate) use identify::IdentifySpans;
pub use rule::CompiledRule;

use ledger::LedgerFields;
use rule::PlanLimits;

/// The supported version of the file format.
const FORMAT_VERSION: u64 = 1;

/// The size of a body without a length: the longest that axum takes by default, and more than nginx does.
const DEFAULT_UNKNOWN_SIZE_BYTES: u64 = 2 * 1024 * 1024;

/// The longest body that rules read in a file with `cost.usage`, unless it says otherwise: prompts are longer than a login, for which the
/// default of other files is enough.
const DEFAULT_MAX_PROMPT_BYTES: usize = 1024 * 1024;

/// The range of `max_body`. Every such request is kept in memory before it is forwarded.
const MAX_BODY_BYTES_RANGE: RangeInclusive<u64> = 1024..=16 * 1024 * 1024;

/// The state of compiling: the problems so far, and the names that rules may use.
pub(crate) struct Compiler<'p> {
    problems: &'p mut Vec<Problem>,
    /// Names of values that a client cannot forge.
    authenticated: AuthenticatedNames,
    plans: Vec<SmolStr>,
    /// Whether plans were lost, so that an unknown one may be one of them.
    lost_plans: bool,
    /// Names from `identify` that were reported as invalid, so that they are not reported as unknown.
    lost_identities: Vec<SmolStr>,
    /// Every distinct `per`, of security rules and of others, shared between rules.
    pers: HashMap<(Vec<SmolStr>, bool), Arc<[Identity]>>,
    /// The format of refusals, if the file says something about it.
    error_format: Option<ErrorFormat>,
}

/// Compiles a file and appends its problems. If there are errors among them, the result must not be used for requests.
pub(crate) fn compile(file: &Spanned<schema_types::RuleFileSpec>, problems: &mut Vec<Problem>) -> CompiledFile {
    let mut compiler = Compiler {
        problems,
        authenticated: AuthenticatedNames::default(),
        plans: plan_names(file),
        lost_plans: file.has_lost_plan_names(),
        lost_identities: Vec::new(),
        pers: HashMap::new(),
        error_format: error_format(file.http.error_format.as_ref()),
    };
    if !file.has_lost(&["version"]) {
        compiler.version(file.version.as_ref());
    }
    let (identity_config, identities, identify) = compiler.identify(&file.identify);
    let header_policy = compiler.header_policy(&file.http);
    let (mut exempt, exempt_rules): (Vec<_>, Vec<_>) =
        file.exempt.iter().map(|at| compiler.exemption(at, file)).unzip();
    let named = |name: &str| identities.iter().find(|identity| identity.name == name).cloned();
    let (tenant, plan) = (named("tenant").unwrap_or_else(identify::attribute("tenant")), {
        named("plan").unwrap_or_else(identify::attribute("plan"))
    });
    let overrides = compiler.overrides(file);
    let mut rules: Vec<_> = file.rules.iter().filter_map(|rule| compiler.rule(rule, &identities, &overrides)).collect();
    compiler.check_unique_ids(file);
    compiler.check_plan_rules(file);
    compiler.check_budgets(&rules);
    compiler.check_budget_ledgers(&rules);
    compiler.share_static_limits(&mut rules);
    let plan_of_tenant = compiler.tenants(file, &tenant);
    // The file names tenants in any spelling, as requests do.
    let conditions = rules.iter_mut().map(|rule| &mut *rule.matcher.condition).chain(&mut exempt);
    for name in conditions.flat_map(|condition| &mut condition.tenants) {
        *name = tenant.normal_name(name);
    }
    let max_body_bytes = compiler.max_body_bytes(file, &rules);
    let mut rule_matchers: Vec<_> =
        rules.iter().filter(|rule| !rule.is_disabled()).map(|rule| rule.matcher.clone()).collect();
    let (exempt_index, exempt_rest) = Index::new(exempt.iter());
    let (index, rest) = Index::new(rule_matchers.iter().map(|rule| &*rule.condition));
    rule_matchers.iter_mut().zip(rest).for_each(|(rule, rest)| rule.rest = rest);
    let mut matcher = RequestMatcher {
        identity_config,
        identities,
        scope: tenant.authenticated_only(&compiler.authenticated),
        tenant,
        plan,
        plan_of_tenant,
        default_plan: file.default_plan.as_ref().map(|plan| SmolStr::new(&plan.value)).unwrap_or_default(),
        exempt,
        exempt_rules,
        exempt_index,
        exempt_rest,
        index,
        rules: rule_matchers,
        unknown_size: file.unknown_size.as_ref().map_or(DEFAULT_UNKNOWN_SIZE_BYTES, |size| size.value.0),
        max_body_bytes,
        reads: HashSet::new(),
        body_fields: Vec::new(),
    };
    matcher.body_fields = matcher.find_body_fields();
    matcher.reads = matcher.reads().into_iter().map(SmolStr::from).collect();
    let exempt = file.exempt.iter().map(|at| at.span.clone()).collect();
    let escaped_slashes = escaped_slashes(file.identify.escaped_slashes.as_ref());
    CompiledFile { matcher: Arc::new(matcher), rules, header_policy, escaped_slashes, exempt, identify }
}

fn escaped_slashes(spec: Option<&Spanned<schema_types::EscapedSlashesSpec>>) -> EscapedSlashes {
    match spec.map(|spec| spec.value) {
        Some(schema_types::EscapedSlashesSpec::Both) => EscapedSlashes::Both,
        Some(schema_types::EscapedSlashesSpec::Reject) => EscapedSlashes::Reject,
        Some(schema_types::EscapedSlashesSpec::Decode) => EscapedSlashes::Decode,
        None => EscapedSlashes::default(),
    }
}

fn error_format(spec: Option<&Spanned<schema_types::ErrorFormatSpec>>) -> Option<ErrorFormat> {
    Some(match spec?.value {
        schema_types::ErrorFormatSpec::Json => ErrorFormat::Json,
        schema_types::ErrorFormatSpec::Problem => ErrorFormat::Problem,
        schema_types::ErrorFormatSpec::Openai => ErrorFormat::OpenAi,
    })
}

/// The names of plans: those with limits, and those of tenants.
fn plan_names(file: &schema_types::RuleFileSpec) -> Vec<SmolStr> {
    let named = file.plans.keys().chain(file.tenants.values().map(|plan| &plan.value));
    let mut names: Vec<SmolStr> =
        named.chain(file.default_plan.as_ref().map(|plan| &plan.value)).map(SmolStr::new).collect();
    names.sort();
    names.dedup();
    names
}

/// The limits of each rule by plan, where a plan overrides them.
type Overrides = HashMap<SmolStr, Vec<PlanLimits>>;

impl Compiler<'_> {
    fn error(&mut self, code: &'static str, span: &Span, message: impl Into<String>) -> &mut Problem {
        self.problems.push(Problem::error(code, message, span.clone()));
        let last = self.problems.len() - 1;
        &mut self.problems[last]
    }

    fn version(&mut self, version: Option<&Spanned<u64>>) {
        match version {
            Some(version) if version.value == FORMAT_VERSION => {}
            Some(version) => {
                let message = format!("version {} is not supported", version.value);
                self.error("version", &version.span, message).set_help(format!("write `version: {FORMAT_VERSION}`"));
            }
            None => {
                let message = "the file has no version";
                self.error("version", &(0..0), message)
                    .set_help(format!("add `version: {FORMAT_VERSION}` as the first line"));
            }
        }
    }

    fn header_policy(&mut self, http: &schema_types::HttpSpec) -> HeaderPolicy {
        let mut header_policy = HeaderPolicy::new();
        if let Some(draft) = &http.ratelimit {
            match draft.as_str() {
                "off" => header_policy = header_policy.with_ratelimit(None),
                text => match text.parse() {
                    Ok(draft) => header_policy = header_policy.with_ratelimit(Some(draft)),
                    Err(_) => {
                        self.error("draft", &draft.span, format!("`{text}` is not a supported revision of the draft"))
                            .set_help("write `draft-11`, or `off`");
                    }
                },
            }
        }
        let reset = |form: &Spanned<schema_types::ResetFormSpec>| match form.value {
            schema_types::ResetFormSpec::Epoch => Some(ResetFormat::Epoch),
            schema_types::ResetFormSpec::Delta => Some(ResetFormat::Delta),
            schema_types::ResetFormSpec::Off => None,
        };
        if let Some(form) = &http.x_ratelimit {
            header_policy = header_policy.with_x_ratelimit(reset(form));
        }
        if let Some(form) = &http.ratelimit_trio {
            header_policy = header_policy.with_legacy_ratelimit(reset(form));
        }
        header_policy
            .with_retry_after_ms(http.retry_after_ms.as_ref().is_none_or(|on| on.value))
            .with_error_format(self.error_format.unwrap_or_default())
    }

    fn max_body_bytes(&mut self, file: &schema_types::RuleFileSpec, rules: &[CompiledRule]) -> usize {
        let Some(at) = &file.max_body else {
            let has_usage = rules.iter().any(|rule| rule.usage.is_some());
            return if has_usage { DEFAULT_MAX_PROMPT_BYTES } else { DEFAULT_MAX_BODY_BYTES };
        };
        let bytes = at.value.0;
        if !MAX_BODY_BYTES_RANGE.contains(&bytes) {
            let (least, most) = (MAX_BODY_BYTES_RANGE.start(), MAX_BODY_BYTES_RANGE.end());
            let message = format!("{bytes} is out of range: it must be {least} to {most} bytes");
            self.error("max-body", &at.span, message)
                .set_help("each request whose body rules read takes as much memory");
        }
        usize::try_from(bytes).unwrap_or(DEFAULT_MAX_BODY_BYTES)
    }

    /// The limits of every plan, by rule.
    fn overrides(&mut self, file: &schema_types::RuleFileSpec) -> Overrides {
        let mut overrides = Overrides::new();
        for (plan, rules) in &file.plans.value {
            for (rule, limits) in rules {
                if let Some(limit) = self.limit(&limits.value, &limits.span, !limits.removed.is_empty()) {
                    let own = overrides.entry(SmolStr::new(rule)).or_default();
                    own.push(PlanLimits {
                        plan: SmolStr::new(plan),
                        limits: vec![(SmolStr::default(), limit)],
                        ledger: limits.quota.as_ref().map(LedgerFields::new).unwrap_or_default(),
                        span: limits.span.clone(),
                    });
                }
            }
        }
        overrides
    }

    fn check_unique_ids(&mut self, file: &schema_types::RuleFileSpec) {
        let mut taken = HashSet::new();
        for id in file.rules.iter().filter_map(|rule| rule.id.as_ref()) {
            if !taken.insert(id.as_str()) {
                let message = format!("an earlier rule has the id `{}` already", id.value);
                self.error("duplicate-id", &id.span, message).set_help("give each rule its own id");
            }
        }
    }

    /// Reports plans with limits for rules that do not exist.
    fn check_plan_rules(&mut self, file: &schema_types::RuleFileSpec) {
        let (has_lost_ids, rule_ids): (_, HashSet<&str>) = (file.has_lost_ids(), file.rule_ids().collect());
        for (plan, named) in &file.plans.value {
            for (id, limits) in named {
                if self.problems.len() < MAX_PROBLEMS && !has_lost_ids && !rule_ids.contains(id.as_str()) {
                    let help = suggest(id, file.rule_ids());
                    let message = format!("plan `{plan}` has a limit for rule `{id}`, which does not exist");
                    self.error("unknown-rule", &limits.span, message).set_help(help);
                }
            }
        }
    }

    /// Reports rules that share a budget but use the tenant differently: they would share only part of it.
    fn check_budgets(&mut self, rules: &[CompiledRule]) {
        let mut first: HashMap<&SmolStr, &CompiledRule> = HashMap::new();
        for rule in rules {
            let Some(budget) = &rule.budget else { continue };
            let other = first.entry(budget).or_insert(rule);
            let forms = |rule: &CompiledRule| -> Vec<Vec<_>> {
                let each = |identity: &Identity| identity.sources.iter().map(|one| one.forms.clone()).collect();
                rule.matcher.per.iter().map(each).collect()
            };
            if other.matcher.tenant == rule.matcher.tenant && forms(other) != forms(rule) {
                let message = format!(
                    "this rule shares budget `{budget}` with rule `{}`, which counts in other normal forms",
                    other.id
                );
                let help = "give both rules the same `per` and `security`: accounts of security rules are trimmed and lower-cased";
                self.problems.push(Problem::error("budget", message, rule.per_span.clone()).with_help(help));
            }
            if other.matcher.tenant != rule.matcher.tenant {
                let message = format!(
                    "this rule shares budget `{budget}` with rule `{}`, which counts by another subject",
                    other.id
                );
                self.problems.push(
                    Problem::error("budget", message, rule.per_span.clone())
                        .with_help("give both rules the same `per` and `scope`"),
                );
            }
        }
    }

    /// Gives all rules of a budget the same static limit: if several apply, only the first one has a check.
    fn share_static_limits(&mut self, rules: &mut [CompiledRule]) {
        let mut limits_by_budget: HashMap<SmolStr, (Limit, SmolStr)> = HashMap::new();
        for rule in &*rules {
            let (Some(budget), Some(limit)) = (&rule.budget, rule.static_limit) else { continue };
            let (known, other) = limits_by_budget.entry(budget.clone()).or_insert_with(|| (limit, rule.id.clone()));
            if *known != limit {
                let message =
                    format!("this rule shares budget `{budget}` with rule `{other}`, which has another `static` limit");
                let problem = Problem::error("budget", message, rule.on_failure_span.clone());
                self.problems.push(problem.with_help("give both rules the same limit"));
            }
        }
        for rule in rules {
            let shared = rule.budget.as_ref().and_then(|budget| limits_by_budget.get(budget));
            if let (None, Some((limit, _))) = (rule.static_limit, shared) {
                rule.rule_mut().static_limit = Some(*limit);
            }
        }
    }

    /// The plan of each tenant.
    fn tenants(
        &mut self,
        file: &Spanned<schema_types::RuleFileSpec>,
        identity: &Identity,
    ) -> HashMap<SmolStr, SmolStr> {
        let is_lost = file.has_lost_plan_uses();
        let plan_names: HashSet<&str> = file.plans.keys().map(String::as_str).collect();
        let is_matched = |name: &str| {
            let matches_plan = |rule: &Spanned<schema_types::RuleSpec>| {
                rule.r#match.as_ref().is_some_and(|condition| condition.plan.0.iter().any(|plan| plan.as_str() == name))
            };
            file.rules.iter().any(matches_plan)
        };
        for plan in file.tenants.values().chain(&file.default_plan) {
            if !is_lost && !plan_names.contains(plan.as_str()) && !is_matched(plan) {
                let message = format!("plan `{}` has no limits, and no rule matches it", plan.value);
                self.error("unknown-plan", &plan.span, message).set_help(suggest(plan, plan_names.iter().copied()));
            }
        }
        let mut plans: HashMap<SmolStr, SmolStr> = HashMap::new();
        for (name, plan) in &file.tenants.value {
            let other = plans.insert(identity.normal_name(name), SmolStr::new(&plan.value));
            if other.is_some_and(|other| other != plan.as_str()) {
                let message = format!("`{name}` has another plan in another spelling");
                self.error("normal-form", &plan.span, message)
                    .set_help("name each tenant once: they are compared in their normal form");
            }
        }
        plans
    }
}
