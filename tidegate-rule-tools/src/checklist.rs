//! The checklist for production: what a rule file and its deployment should have before they serve real traffic. Items that the
//! file does not show are reported as unknown.

mod billing;
mod held;
mod memory;

use tidegate::{RuleMode, attributes};
use tidegate_rules::RuleFile;
use tidegate_rules::internals::{CompiledRule, Identity, Source, TenantUse, compiled, format_duration};

use crate::lint::failure_policy::UncountedRequests;
use crate::lint::{failure_policy, limits, list_names, security};

/// The most rules whose ids are suitable as labels of a metric.
const MAX_METRIC_LABELS: usize = 1_000;

/// What is known about the deployment of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deployment {
    /// Whether subjects are hashed with a secret.
    pub secret: bool,
    /// The store, as a URL or its scheme: `memory:`, `redis://…`. It appears in no output.
    pub store: Option<String>,
}

/// One line of the checklist.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChecklistItem {
    /// The requirement.
    pub name: &'static str,
    /// Whether it is met.
    pub state: ChecklistState,
    /// The reason, and what to do.
    pub detail: String,
}

/// Whether an item of the checklist is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecklistState {
    /// It is met.
    Met,
    /// It is not met: change the file or the deployment.
    Unmet,
    /// The file does not show it; the item says how to find out.
    Unknown,
}

/// Evaluates the checklist for production. Only [unmet](ChecklistState::Unmet) items need a change.
///
/// ```
/// use tidegate_rule_tools::{ChecklistState, Deployment, checklist};
/// use tidegate_rules::RuleFile;
///
/// let file = RuleFile::parse("rules.yaml", "
/// version: 1
/// rules:
///   - id: search
///     match: { path: /search }
///     per: []
///     cost: 1
///     token_bucket: { capacity: 20, refill: 10/s }
/// ")?;
/// let items = checklist(&file, &Deployment::new().with_secret(true).with_store("memory:"));
/// let unmet: Vec<_> = items.iter().filter(|item| item.state == ChecklistState::Unmet).collect();
/// assert_eq!(unmet.len(), 1);
/// assert_eq!(
///     unmet[0].detail,
///     "each instance admits the whole limit for everybody while the store fails: search; set `share`"
/// );
/// # Ok::<(), tidegate_rules::Report>(())
/// ```
pub fn checklist(file: &RuleFile, deployment: &Deployment) -> Vec<ChecklistItem> {
    let rules: Vec<&CompiledRule> = compiled(file).enabled_rules().collect();
    vec![
        explicit_rules(&rules),
        fitting_algorithm(&rules),
        keys(deployment),
        lifetimes(&rules),
        tags(deployment),
        scripts(deployment),
        latency(),
        failure(&rules),
        shadow(&rules),
        documented_response(),
        labels(&rules),
        concurrency(deployment),
        held::leases(&rules, deployment),
        held::penalties(&rules),
        memory::item(&rules),
        hot_keys(&rules),
        billing::item(&rules),
    ]
}

impl ChecklistState {
    /// `met`, `unmet` or `unknown`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Unmet => "unmet",
            Self::Unknown => "unknown",
        }
    }
}

impl ChecklistItem {
    fn met(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: ChecklistState::Met, detail: detail.into() }
    }

    fn unmet(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: ChecklistState::Unmet, detail: detail.into() }
    }

    fn unknown(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: ChecklistState::Unknown, detail: detail.into() }
    }
}

impl Deployment {
    /// A deployment about which nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether subjects are hashed with a secret.
    pub fn with_secret(self, secret: bool) -> Self {
        Self { secret, ..self }
    }

    /// Sets the store, as a URL or its scheme.
    pub fn with_store(self, store: impl Into<String>) -> Self {
        Self { store: Some(store.into()), ..self }
    }

    /// The scheme only: the rest may contain a password.
    fn scheme(&self) -> Option<&str> {
        self.store.as_deref().map(|store| store.split(':').next().unwrap_or(store))
    }
}

/// Lists the ids of the rules for which `condition` is true; `None` if there are none.
fn list_rules(rules: &[&CompiledRule], condition: impl Fn(&CompiledRule) -> bool) -> Option<String> {
    let ids: Vec<&str> = rules.iter().filter(|rule| condition(rule)).map(|rule| rule.id.as_str()).collect();
    list_names(&ids)
}

fn explicit_rules(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "subject, action and cost are explicit";
    // A rule without `per` is an error already.
    if let Some(ids) = list_rules(rules, |rule| rule.match_span == rule.id_span) {
        let detail = format!("no `match`, so all requests match: {ids}; write `match: {{}}` if that is intended");
        return ChecklistItem::unmet(NAME, detail);
    }
    if let Some(ids) = list_rules(rules, |rule| !rule.has_cost) {
        let detail =
            format!("the caller may set the cost, which is 1 otherwise: {ids}; write `cost: 1` where it must not");
        return ChecklistItem::unknown(NAME, detail);
    }
    ChecklistItem::met(NAME, "every rule has `match`, `per` and `cost`")
}

fn fitting_algorithm(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "the algorithm fits the invariant";
    let fixed =
        |rule: &CompiledRule| limits::all(rule).any(|(_, limit)| security::doubles_at_boundary(limit.algorithm()));
    if let Some(ids) = list_rules(rules, |rule| security::is_security(rule) && fixed(rule)) {
        let detail = format!(
            "a fixed window or a quota lets twice as many guesses pass at a boundary: {ids}; use `sliding_log`"
        );
        return ChecklistItem::unmet(NAME, detail);
    }
    if let Some(ids) = list_rules(rules, |rule| limits::all(rule).any(|(_, limit)| limits::is_huge_log(limit))) {
        let detail = format!("a log of more than 1,000 requests takes too much memory: {ids}; use `sliding_window`");
        return ChecklistItem::unmet(NAME, detail);
    }
    if let Some(ids) = list_rules(rules, |rule| limits::cost_above_limit(rule).is_some()) {
        return ChecklistItem::unmet(NAME, format!("a request can cost more than the whole limit: {ids}"));
    }
    ChecklistItem::met(
        NAME,
        "no fixed window or quota against guessing, no log of more than 1,000, no cost above its limit",
    )
}

fn keys(deployment: &Deployment) -> ChecklistItem {
    const NAME: &str = "keys are versioned and subjects hashed";
    if deployment.secret {
        return ChecklistItem::met(NAME, "every key contains the version; subjects are hashed with the secret");
    }
    let detail = "without a secret, anyone who can read the store can guess subjects; set TIDEGATE_SECRET to the same sixteen or \
                  more random bytes on every instance";
    ChecklistItem::unmet(NAME, detail)
}

fn lifetimes(rules: &[&CompiledRule]) -> ChecklistItem {
    let windows = rules.iter().flat_map(|rule| limits::all(rule)).map(|(_, limit)| limit.max_window());
    let longest = format_duration(windows.max().unwrap_or_default());
    let detail =
        format!("every key expires by itself, 2 s after its limit no longer needs it; the longest window is {longest}");
    ChecklistItem::met("every key has a lifetime", detail)
}

fn tags(deployment: &Deployment) -> ChecklistItem {
    const NAME: &str = "keys have cluster tags";
    match deployment.scheme() {
        Some("redis+cluster" | "rediss+cluster") => {
            let detail = "every key has one; a decision whose keys are in one slot is atomic, and one across slots never admits \
                          more than the limits allow";
            ChecklistItem::met(NAME, detail)
        }
        _ => ChecklistItem::met(NAME, "every key has one; on a single server every decision is atomic"),
    }
}

fn scripts(deployment: &Deployment) -> ChecklistItem {
    let detail = match deployment.scheme() {
        Some("memory") => "the memory store has no scripts",
        _ => "a server without the scripts gets them again with the next call",
    };
    ChecklistItem::met("scripts can be reloaded", detail)
}

fn latency() -> ChecklistItem {
    let detail = "the file does not show it; check that your monitoring shows the latency of decisions and the failures of \
                  the store (`tidegate serve` has metrics of both) and alerts on them";
    ChecklistItem::unknown("latency is monitored", detail)
}

fn failure(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "every rule has a failure policy";
    let open = |rule: &CompiledRule| {
        security::is_security(rule) && failure_policy::uncounted_requests(rule) != UncountedRequests::None
    };
    if let Some(ids) = list_rules(rules, open) {
        return ChecklistItem::unmet(
            NAME,
            format!("guesses are not limited while the store fails: {ids}; set `share` or `closed`"),
        );
    }
    if let Some(ids) = list_rules(rules, failure_policy::is_local_for_everybody) {
        let detail =
            format!("each instance admits the whole limit for everybody while the store fails: {ids}; set `share`");
        return ChecklistItem::unmet(NAME, detail);
    }
    let defaults = [
        list_rules(rules, |rule| !rule.has_policy && rule.ledger.is_none())
            .map(|ids| format!("`local`, the default, applies to {ids}")),
        list_rules(rules, |rule| !rule.has_policy && rule.ledger.is_some())
            .map(|ids| format!("`closed`, the default with a ledger, applies to {ids}")),
    ];
    let defaults: Vec<String> = defaults.into_iter().flatten().collect();
    match defaults.as_slice() {
        [] => ChecklistItem::met(NAME, "every rule has `on_failure`"),
        defaults => ChecklistItem::met(NAME, defaults.join("; ")),
    }
}

fn shadow(rules: &[&CompiledRule]) -> ChecklistItem {
    let detail = match list_rules(rules, |rule| rule.mode == RuleMode::Shadow) {
        Some(ids) => format!("in shadow mode, so they refuse no request: {ids}"),
        None => "`mode: shadow` tests a new rule without refusing requests; no rule is in shadow mode".to_owned(),
    };
    ChecklistItem::met("rules can be tried in shadow mode", detail)
}

fn documented_response() -> ChecklistItem {
    let detail = "the file does not show whether your callers know the response; docs/http.md describes it, so link it from \
                  the documentation of your API";
    ChecklistItem::unknown("the response to a denied request is documented", detail)
}

fn labels(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "no metric label has too many values";
    let count = rules.len();
    if count > MAX_METRIC_LABELS {
        let detail = format!("a label for the rule has {count} values; use a label for groups of rules instead");
        return ChecklistItem::unknown(NAME, detail);
    }
    ChecklistItem::met(
        NAME,
        format!("observers see the rule, of which there are {count}, and hashed subjects, which are not labels"),
    )
}

fn concurrency(deployment: &Deployment) -> ChecklistItem {
    const NAME: &str = "instances share one count";
    match deployment.scheme() {
        None => ChecklistItem::unknown(NAME, "it depends on the store, which is not given; instances must share one"),
        Some("memory") => {
            let detail = "decisions are atomic within a process, but every instance counts alone; run one instance, or give them a \
                          shared store";
            ChecklistItem::unknown(NAME, detail)
        }
        Some("redis+cluster" | "rediss+cluster") => {
            let detail = "a decision is one script call for each slot, atomic there; the tests of Tidegate show that any number \
                          of instances never admit more than the limit";
            ChecklistItem::met(NAME, detail)
        }
        Some("redis" | "rediss" | "redis+sentinel" | "rediss+sentinel") => {
            let detail = "a decision is one script call, atomic on the server; the tests of Tidegate show that any number \
                          of instances admit exactly the limit";
            ChecklistItem::met(NAME, detail)
        }
        // An unknown store proves nothing.
        Some(_) => {
            let detail = "this version does not support the store; give a shared one, such as `redis://127.0.0.1:6379`";
            ChecklistItem::unmet(NAME, detail)
        }
    }
}

fn hot_keys(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "hot keys are evaluated";
    let has_few_values =
        |source: &Source| matches!(source, Source::Constant(_) | Source::Action) || *source == method();
    let few = |identity: &Identity| identity.name == "plan" || identity.each_source().any(has_few_values);
    let shared = |rule: &CompiledRule| rule.matcher.tenant != TenantUse::Subject && rule.matcher.per.iter().all(few);
    let by_tenant = |rule: &CompiledRule| rule.matcher.tenant == TenantUse::Subject && rule.matcher.per.iter().all(few);
    let found = [
        list_rules(rules, shared).map(|ids| format!("all subjects share one key or a few: {ids}")),
        list_rules(rules, by_tenant).map(|ids| format!("a large tenant is one key: {ids}")),
    ];
    let found: Vec<String> = found.into_iter().flatten().collect();
    if found.is_empty() {
        return ChecklistItem::met(NAME, "every rule counts by many subjects");
    }
    let detail = "the file does not show their traffic; compare it with the time of one decision in docs/figures.md";
    ChecklistItem::unknown(NAME, format!("{}; {detail}", found.join("; ")))
}

fn method() -> Source {
    Source::Attribute(attributes::METHOD.into())
}
