//! The checklist for production: what a rule file and its deployment should have before they meet real traffic. It reads
//! what was compiled and decides nothing; what the file cannot tell is said to be unknown.

mod memory;

use std::time::Duration;

use tidegate::{Algorithm, RuleMode, attributes};

use crate::compile::CompiledRule;
use crate::identity::{Identity, Source};
use crate::lint::failure_policy::UncountedRequests;
use crate::lint::{failure_policy, limits, named, security};
use crate::request_matcher::TenantUse;
use crate::{RuleFile, quantity};

/// The most rules whose ids make good labels of a metric.
const MAX_METRIC_LABELS: usize = 1_000;

/// A limit over so long a time is perhaps meant for a bill.
const BILLING_PERIOD: Duration = Duration::from_secs(24 * 60 * 60);

/// What is known of the place where the rules will run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deployment {
    /// Whether subjects are hashed with a secret of one's own.
    pub secret: bool,
    /// The store, as a URL or its scheme: `memory:`, `redis://…`. Nothing of it is repeated.
    pub store: Option<String>,
}

/// One line of the checklist.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChecklistItem {
    /// What is asked for.
    pub name: &'static str,
    /// Whether it is there.
    pub state: ChecklistState,
    /// Why, and what to do about it.
    pub detail: String,
}

/// Whether an item of the checklist is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecklistState {
    /// It is.
    Met,
    /// It is not: the file or the deployment should be changed.
    Unmet,
    /// The file cannot tell; the item says how to find out.
    Unknown,
}

/// The checklist
impl RuleFile {
    /// Goes through the checklist for production. Only what is [unmet](CheckState::Unmet) speaks against the file.
    ///
    /// ```
    /// use tidegate_rules::{CheckState, Deployment, RuleFile};
    ///
    /// let file = RuleFile::parse("rules.yaml", "
    /// version: 1
    /// rules:
    ///   - id: search
    ///     match: { path: /search }
    ///     per: [ip]
    ///     cost: 1
    ///     token_bucket: { capacity: 20, refill: 10/s }
    /// ")?;
    /// let items = file.checklist(&Deployment::new().with_secret(true).with_store("memory:"));
    /// let unmet: Vec<_> = items.iter().filter(|item| item.state == CheckState::Unmet).collect();
    /// assert_eq!(unmet.len(), 1);
    /// assert_eq!(unmet[0].detail, "what happens while the store fails is not written: search; say `on_failure` in each");
    /// # Ok::<(), tidegate_rules::Report>(())
    /// ```
    pub fn checklist(&self, deployment: &Deployment) -> Vec<ChecklistItem> {
        let rules: Vec<&CompiledRule> = self.compiled.iter().filter(|rule| !rule.is_disabled()).collect();
        vec![
            explicit(&rules),
            fitting(&rules),
            keys(deployment),
            lifetimes(&rules),
            tags(deployment),
            scripts(deployment),
            latency(),
            failure(&rules),
            shadow(&rules),
            answer(),
            labels(&rules),
            concurrency(deployment),
            memory::item(&rules),
            hot_keys(&rules),
            billing(&rules),
        ]
    }
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

    /// The scheme alone: what follows may hold a password.
    fn scheme(&self) -> Option<&str> {
        self.store.as_deref().map(|store| store.split(':').next().unwrap_or(store))
    }
}

/// The ids of the rules that are so, if there are any.
fn those(rules: &[&CompiledRule], are: impl Fn(&CompiledRule) -> bool) -> Option<String> {
    let ids: Vec<&str> = rules.iter().filter(|rule| are(rule)).map(|rule| rule.matcher.id.as_str()).collect();
    named(&ids)
}

fn explicit(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "subject, action and cost are explicit";
    // Whom a rule counts by must be written, or the file is refused.
    if let Some(ids) = those(rules, |rule| rule.match_span == rule.id_span) {
        let detail = format!("no `match`, so every request is meant: {ids}; say `match: {{}}` if that is so");
        return ChecklistItem::unmet(NAME, detail);
    }
    if let Some(ids) = those(rules, |rule| !rule.has_cost) {
        let detail =
            format!("the caller may tell the cost, which is 1 otherwise: {ids}; write `cost: 1` where it may not");
        return ChecklistItem::unknown(NAME, detail);
    }
    ChecklistItem::met(NAME, "every rule says what it matches, whom it counts and what a request costs")
}

fn fitting(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "the algorithm fits the invariant";
    let fixed = |rule: &CompiledRule| limits::all(rule).any(|(_, limit)| limit.algorithm() == Algorithm::FixedWindow);
    if let Some(ids) = those(rules, |rule| security::is_security(rule) && fixed(rule)) {
        let detail = format!("a fixed window lets twice as many guesses pass at a boundary: {ids}; use `sliding_log`");
        return ChecklistItem::unmet(NAME, detail);
    }
    if let Some(ids) = those(rules, |rule| limits::all(rule).any(|(_, limit)| limits::is_huge_log(limit))) {
        let detail = format!("a log of more than 1,000 requests weighs too much: {ids}; use `sliding_window`");
        return ChecklistItem::unmet(NAME, detail);
    }
    if let Some(ids) = those(rules, |rule| limits::dearest(rule).is_some()) {
        return ChecklistItem::unmet(NAME, format!("some request costs more than the whole limit: {ids}"));
    }
    ChecklistItem::met(NAME, "no fixed window against guessing, no log of more than 1,000, no cost above its limit")
}

fn keys(deployment: &Deployment) -> ChecklistItem {
    const NAME: &str = "keys are versioned and subjects hashed";
    if deployment.secret {
        return ChecklistItem::met(NAME, "every key carries the version; subjects are hashed with the secret");
    }
    let detail = "without a secret whoever reads the store can guess subjects; set TIDEGATE_SECRET to the same sixteen or \
                  more random bytes on every instance";
    ChecklistItem::unmet(NAME, detail)
}

fn lifetimes(rules: &[&CompiledRule]) -> ChecklistItem {
    let windows = rules.iter().flat_map(|rule| limits::all(rule)).map(|(_, limit)| limit.max_window());
    let longest = quantity::format_duration(windows.max().unwrap_or_default());
    let detail =
        format!("every key expires by itself, 2 s after it stops mattering; the longest limit takes {longest}");
    ChecklistItem::met("every key has a lifetime", detail)
}

fn tags(deployment: &Deployment) -> ChecklistItem {
    const NAME: &str = "keys have cluster tags";
    match deployment.scheme() {
        Some("redis+cluster" | "rediss+cluster") => {
            let detail = "every key carries one; a decision whose keys lie in one slot is atomic, and one across slots never \
                          admits more than the limits say";
            ChecklistItem::met(NAME, detail)
        }
        _ => ChecklistItem::met(NAME, "every key carries one; on a single server every decision is atomic"),
    }
}

fn scripts(deployment: &Deployment) -> ChecklistItem {
    let detail = match deployment.scheme() {
        Some("memory") => "the memory store has no scripts",
        _ => "a server that has lost its scripts gets them again on the way",
    };
    ChecklistItem::met("scripts can be reloaded", detail)
}

fn latency() -> ChecklistItem {
    let detail = "the file cannot tell; look whether your monitoring shows the time of decisions and the failures of the \
                  store (`tidegate serve` has metrics of both), and whether somebody is woken by them";
    ChecklistItem::unknown("latency is monitored", detail)
}

fn failure(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "every rule has a failure policy";
    if let Some(ids) = those(rules, |rule| !rule.has_policy) {
        let detail = format!("what happens while the store fails is not written: {ids}; say `on_failure` in each");
        return ChecklistItem::unmet(NAME, detail);
    }
    let open = |rule: &CompiledRule| {
        security::is_security(rule) && failure_policy::uncounted_requests(rule) != UncountedRequests::None
    };
    if let Some(ids) = those(rules, open) {
        return ChecklistItem::unmet(
            NAME,
            format!("guesses pass while the store fails: {ids}; say `closed` or `local`"),
        );
    }
    ChecklistItem::met(NAME, "every rule says what happens while the store fails")
}

fn shadow(rules: &[&CompiledRule]) -> ChecklistItem {
    let detail = match those(rules, |rule| rule.mode == RuleMode::Shadow) {
        Some(ids) => format!("in shadow now, so that they refuse nobody: {ids}"),
        None => "`mode: shadow` tries a new rule without refusing anybody; none is in shadow now".to_owned(),
    };
    ChecklistItem::met("rules can be tried in shadow", detail)
}

fn answer() -> ChecklistItem {
    let detail = "the file cannot tell whether your callers know what a refusal looks like; docs/http.md describes it, so \
                  link it from the documentation of your API";
    ChecklistItem::unknown("the answer to a refused request is documented", detail)
}

fn labels(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "no metric has many labels";
    let count = rules.len();
    if count > MAX_METRIC_LABELS {
        let detail =
            format!("a label for the rule has {count} values; count by groups of rules where you observe them");
        return ChecklistItem::unknown(NAME, detail);
    }
    ChecklistItem::met(NAME, format!("observers see rules, {count} here, and hashed subjects, which are no labels"))
}

fn concurrency(deployment: &Deployment) -> ChecklistItem {
    const NAME: &str = "concurrency is proven";
    match deployment.scheme() {
        None => ChecklistItem::unknown(NAME, "it depends on the store, which was not named; instances must share one"),
        Some("memory") => {
            let detail = "decisions are atomic within a process, but every instance counts for itself; run one, or give \
                          them a store to share";
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
        // Nothing is proven of what this version cannot open.
        Some(_) => {
            let detail =
                "this version knows no such store; name one that instances share, such as `redis://127.0.0.1:6379`";
            ChecklistItem::unmet(NAME, detail)
        }
    }
}

fn hot_keys(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "hot keys are evaluated";
    let has_few_values =
        |source: &Source| matches!(source, Source::Constant(_) | Source::Action) || *source == method();
    let few = |identity: &Identity| identity.name == "plan" || identity.sources.iter().any(has_few_values);
    let shared = |rule: &CompiledRule| rule.matcher.tenant != TenantUse::Subject && rule.matcher.per.iter().all(few);
    let by_tenant = |rule: &CompiledRule| rule.matcher.tenant == TenantUse::Subject && rule.matcher.per.iter().all(few);
    let found = [
        those(rules, shared).map(|ids| format!("everybody shares one key, or few: {ids}")),
        those(rules, by_tenant).map(|ids| format!("a large tenant is one key: {ids}")),
    ];
    let found: Vec<String> = found.into_iter().flatten().collect();
    if found.is_empty() {
        return ChecklistItem::met(NAME, "every rule counts by more than a handful of subjects");
    }
    let detail = "the file cannot tell how busy they are; compare their traffic with the time of one decision in \
                  docs/figures.md";
    ChecklistItem::unknown(NAME, format!("{}; {detail}", found.join("; ")))
}

fn method() -> Source {
    Source::Attribute(attributes::METHOD.into())
}

fn billing(rules: &[&CompiledRule]) -> ChecklistItem {
    const NAME: &str = "quotas and billing have a truth of their own";
    let long = |rule: &CompiledRule| limits::all(rule).any(|(_, limit)| limit.max_window() >= BILLING_PERIOD);
    match those(rules, long) {
        Some(ids) => {
            let detail = format!(
                "these count for a day or longer: {ids}; the store may lose what it counts, so keep what you bill in a \
                 database of your own"
            );
            ChecklistItem::unknown(NAME, detail)
        }
        None => ChecklistItem::met(NAME, "no limit is longer than a day, so none looks like a bill"),
    }
}
