//! Compiling: from the file as it is [written](crate::schema_types) to what a request is held against, with every problem that
//! the values have. What is only unwise is left to the [lints](crate::lint).

mod anonymous;
mod condition;
mod cost;
mod identify;
mod limit;
mod on_failure;
mod route_table;
mod rule;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smol_str::SmolStr;
use tidegate::Limit;
use tidegate::http::{HeaderPolicy, ResetFormat};

use crate::identity::Identity;
use crate::index::Index;
use crate::problem::{MAX_PROBLEMS, Problem};
use crate::provenance::AuthenticatedNames;
use crate::read::Spanned;
use crate::request_matcher::RequestMatcher;
use crate::schema_types;
use crate::source_file::Span;
use crate::suggest::suggest;

pub(crate) use rule::CompiledRule;

/// The version of the format.
const VERSION: u64 = 1;

/// A file whose values are all understood.
#[derive(Debug)]
pub(crate) struct CompiledFile {
    pub(crate) matcher: RequestMatcher,
    /// Every rule, the disabled ones too.
    pub(crate) rules: Vec<CompiledRule>,
    pub(crate) contract: HeaderPolicy,
    /// Where the exemptions stand.
    pub(crate) exempt: Vec<Span>,
    pub(crate) identify: identify::IdentifySpans,
}

/// What compiling goes through with: the problems so far, and the names that may be used.
pub(crate) struct Compiler<'p> {
    problems: &'p mut Vec<Problem>,
    /// What a client cannot forge.
    authenticated: AuthenticatedNames,
    plans: Vec<SmolStr>,
    /// Something was lost because it was wrong, so what is missing has been reported already.
    partial: bool,
    /// Whom rules count by, each list once.
    pers: HashMap<Vec<SmolStr>, Arc<[Identity]>>,
}

/// Compiles a file. There may be errors among the problems that this adds; then the result is good for lints only.
pub(crate) fn compile(file: &schema_types::RuleFileSpec, problems: &mut Vec<Problem>) -> CompiledFile {
    let partial = file.lost_rules;
    let mut compiler = Compiler {
        problems,
        authenticated: AuthenticatedNames::default(),
        plans: Vec::new(),
        partial,
        pers: HashMap::new(),
    };
    compiler.version(file.version.as_ref());
    let (identity_config, identities, identify) = compiler.identify(&file.identify);
    compiler.plans = plan_names(file);
    let contract = compiler.contract(&file.http);
    let exempt: Vec<_> = file.exempt.iter().map(|at| compiler.exemption(at)).collect();
    let named = |name: &str| identities.iter().find(|identity| identity.name == name).cloned();
    let (tenant, plan) = (named("tenant").unwrap_or_else(identify::attribute("tenant")), {
        named("plan").unwrap_or_else(identify::attribute("plan"))
    });
    let overrides = compiler.overrides(file);
    let mut rules: Vec<_> = file.rules.iter().filter_map(|rule| compiler.rule(rule, &identities, &overrides)).collect();
    compiler.unique_ids(file);
    compiler.known_rules(file);
    compiler.budgets(&rules);
    compiler.caps_of_budgets(&mut rules);
    let plan_of_tenant = compiler.tenants(file);
    let mut matcher: Vec<_> =
        rules.iter().filter(|rule| !rule.is_disabled()).map(|rule| rule.matcher.clone()).collect();
    let (exempt_index, exempt_rest) = Index::new(exempt.iter());
    let (index, rest) = Index::new(matcher.iter().map(|rule| &*rule.condition));
    matcher.iter_mut().zip(rest).for_each(|(rule, rest)| rule.rest = rest);
    let matcher = RequestMatcher {
        identity_config,
        identities,
        tenant,
        plan,
        plan_of_tenant,
        default_plan: file.default_plan.as_ref().map(|plan| SmolStr::new(&plan.value)).unwrap_or_default(),
        exempt,
        exempt_index,
        exempt_rest,
        index,
        rules: matcher,
    };
    let exempt = file.exempt.iter().map(|at| at.span.clone()).collect();
    CompiledFile { matcher, rules, contract, exempt, identify }
}

/// The names of plans: those with limits, and those that tenants have.
fn plan_names(file: &schema_types::RuleFileSpec) -> Vec<SmolStr> {
    let named = file.plans.keys().chain(file.tenants.values().map(|plan| &plan.value));
    let mut names: Vec<SmolStr> =
        named.chain(file.default_plan.as_ref().map(|plan| &plan.value)).map(SmolStr::new).collect();
    names.sort();
    names.dedup();
    names
}

/// The limits of a rule in each plan that has its own.
type Overrides = HashMap<SmolStr, Vec<(SmolStr, Vec<(SmolStr, Limit)>)>>;

impl Compiler<'_> {
    fn error(&mut self, code: &'static str, span: &Span, message: impl Into<String>) -> &mut Problem {
        self.problems.push(Problem::error(code, message, span.clone()));
        let last = self.problems.len() - 1;
        &mut self.problems[last]
    }

    fn version(&mut self, version: Option<&Spanned<u64>>) {
        match version {
            Some(version) if version.value == VERSION => {}
            Some(version) => {
                let message = format!("version {} is not known here", version.value);
                self.error("version", &version.span, message).set_help(format!("write `version: {VERSION}`"));
            }
            None => {
                let message = "the file does not say its version";
                self.error("version", &(0..0), message).set_help(format!("begin it with `version: {VERSION}`"));
            }
        }
    }

    fn contract(&mut self, http: &schema_types::HttpSpec) -> HeaderPolicy {
        let mut contract = HeaderPolicy::new();
        if let Some(draft) = &http.ratelimit {
            match draft.as_str() {
                "off" => contract = contract.with_ratelimit(None),
                text => match text.parse() {
                    Ok(draft) => contract = contract.with_ratelimit(Some(draft)),
                    Err(_) => {
                        self.error("draft", &draft.span, format!("`{text}` is no revision of the draft that is known"))
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
            contract = contract.with_x_ratelimit(reset(form));
        }
        if let Some(form) = &http.ratelimit_trio {
            contract = contract.with_legacy_ratelimit(reset(form));
        }
        contract.with_retry_after_ms(http.retry_after_ms.as_ref().is_some_and(|on| on.value))
    }

    /// Every plan's limits, by rule.
    fn overrides(&mut self, file: &schema_types::RuleFileSpec) -> Overrides {
        let mut overrides = Overrides::new();
        for (plan, rules) in &file.plans {
            for (rule, limits) in rules {
                if let Some(limit) = self.limit(&limits.value, &limits.span) {
                    let own = overrides.entry(SmolStr::new(rule)).or_default();
                    own.push((SmolStr::new(plan), vec![(SmolStr::default(), limit)]));
                }
            }
        }
        overrides
    }

    fn unique_ids(&mut self, file: &schema_types::RuleFileSpec) {
        let mut taken = HashSet::new();
        for rule in &file.rules {
            if !taken.insert(rule.id.as_str()) {
                let message = format!("the id `{}` is taken by an earlier rule", rule.id.value);
                self.error("duplicate-id", &rule.id.span, message).set_help("give each rule its own");
            }
        }
    }

    /// Plans must speak of rules that are there.
    fn known_rules(&mut self, file: &schema_types::RuleFileSpec) {
        let known: HashSet<&str> = file.rules.iter().map(|rule| rule.id.as_str()).collect();
        for (plan, named) in &file.plans {
            for (id, limits) in named {
                if self.problems.len() < MAX_PROBLEMS && !self.partial && !known.contains(id.as_str()) {
                    let help = suggest(id, file.rules.iter().map(|rule| rule.id.as_str()));
                    let message = format!("plan `{plan}` has a limit for rule `{id}`, which is not there");
                    self.error("unknown-rule", &limits.span, message).set_help(help);
                }
            }
        }
    }

    /// Rules that share a budget must agree on what the tenant has to do with it, or they would share only some of it.
    fn budgets(&mut self, rules: &[CompiledRule]) {
        let mut first: HashMap<&SmolStr, &CompiledRule> = HashMap::new();
        for rule in rules {
            let Some(budget) = &rule.budget else { continue };
            let other = first.entry(budget).or_insert(rule);
            if other.matcher.tenant != rule.matcher.tenant {
                let message = format!(
                    "it shares budget `{budget}` with rule `{}`, which counts by something else",
                    other.matcher.id
                );
                self.problems.push(
                    Problem::error("budget", message, rule.per_span.clone())
                        .with_help("give both the same `per` and `scope`"),
                );
            }
        }
    }

    /// Where rules that share a budget meet, the first stands for all, so it must know the cap of any.
    fn caps_of_budgets(&mut self, rules: &mut [CompiledRule]) {
        let mut caps: HashMap<SmolStr, (Limit, SmolStr)> = HashMap::new();
        for rule in &*rules {
            let (Some(budget), Some(cap)) = (&rule.budget, rule.emergency) else { continue };
            let (known, other) = caps.entry(budget.clone()).or_insert_with(|| (cap, rule.matcher.id.clone()));
            if *known != cap {
                let message =
                    format!("it shares budget `{budget}` with rule `{other}`, which has another `static` cap");
                let problem = Problem::error("budget", message, rule.on_failure_span.clone());
                self.problems.push(problem.with_help("give both the same cap"));
            }
        }
        for rule in rules {
            let shared = rule.budget.as_ref().and_then(|budget| caps.get(budget));
            rule.emergency = rule.emergency.or(shared.map(|(cap, _)| *cap));
        }
    }

    fn tenants(&mut self, file: &schema_types::RuleFileSpec) -> HashMap<SmolStr, SmolStr> {
        let known: HashSet<&str> = file.plans.keys().map(String::as_str).collect();
        let in_rules = |name: &str| {
            let asked = |rule: &Spanned<schema_types::RuleSpec>| {
                rule.r#match.as_ref().is_some_and(|asked| asked.plan.0.iter().any(|plan| plan.as_str() == name))
            };
            file.rules.iter().any(asked)
        };
        for plan in file.tenants.values().chain(&file.default_plan) {
            if !known.contains(plan.as_str()) && !in_rules(plan) {
                let message = format!("plan `{}` has no limits, and no rule asks for it", plan.value);
                self.error("unknown-plan", &plan.span, message).set_help(suggest(plan, known.iter().copied()));
            }
        }
        let entry = |(tenant, plan): (&String, &Spanned<String>)| (SmolStr::new(tenant), SmolStr::new(&plan.value));
        file.tenants.iter().map(entry).collect()
    }
}
