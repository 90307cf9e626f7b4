//! The checklist for production: what a rule file and its deployment should have before they meet real traffic. It reads
//! what was compiled and decides nothing; what the file cannot tell is said to be unknown.

mod memory;

use std::time::Duration;

use tidegate::{Algorithm, RuleMode, attributes};

use crate::compile::Compiled;
use crate::identity::{Identity, Source};
use crate::lint::failure::Passing;
use crate::lint::{failure as policies, limits, named, security};
use crate::matching::TenantIn;
use crate::{RuleFile, quantity};

/// The most rules whose ids make good labels of a metric.
const MOST_LABELS: usize = 1_000;

/// A limit over so long a time is perhaps meant for a bill.
const LONG_PERIOD: Duration = Duration::from_secs(24 * 60 * 60);

/// What is known of the place where the rules will run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// Whether subjects are hashed with a secret of one's own.
    pub secret: bool,
    /// The store, as a URL or its scheme: `memory:`, `redis://…`. Nothing of it is repeated.
    pub store: Option<String>,
}

/// One line of the checklist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckItem {
    /// What is asked for.
    pub name: &'static str,
    /// Whether it is there.
    pub state: CheckState,
    /// Why, and what to do about it.
    pub detail: String,
}

/// Whether an item of the checklist is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckState {
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
    /// let items = file.checklist(&Deployment { secret: true, store: Some("memory:".into()) });
    /// let unmet: Vec<_> = items.iter().filter(|item| item.state == CheckState::Unmet).collect();
    /// assert_eq!(unmet.len(), 1);
    /// assert_eq!(unmet[0].detail, "what happens while the store fails is not written: search; say `on_failure` in each");
    /// # Ok::<(), tidegate_rules::Report>(())
    /// ```
    pub fn checklist(&self, facts: &Deployment) -> Vec<CheckItem> {
        let rules: Vec<&Compiled> = self.compiled.iter().filter(|rule| !rule.is_disabled()).collect();
        vec![
            explicit(&rules),
            fitting(&rules),
            keys(facts),
            lifetimes(&rules),
            tags(facts),
            scripts(facts),
            latency(),
            failure(&rules),
            shadow(&rules),
            answer(),
            labels(&rules),
            concurrency(facts),
            memory::item(&rules),
            hot_keys(&rules),
            billing(&rules),
        ]
    }
}

impl CheckState {
    /// `met`, `unmet` or `unknown`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Unmet => "unmet",
            Self::Unknown => "unknown",
        }
    }
}

impl CheckItem {
    fn met(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: CheckState::Met, detail: detail.into() }
    }

    fn unmet(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: CheckState::Unmet, detail: detail.into() }
    }

    fn unknown(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: CheckState::Unknown, detail: detail.into() }
    }
}

impl Deployment {
    /// The scheme alone: what follows may hold a password.
    fn scheme(&self) -> Option<&str> {
        self.store.as_deref().map(|store| store.split(':').next().unwrap_or(store))
    }
}

/// The ids of the rules that are so, if there are any.
fn those(rules: &[&Compiled], are: impl Fn(&Compiled) -> bool) -> Option<String> {
    let ids: Vec<&str> = rules.iter().filter(|rule| are(rule)).map(|rule| rule.matched.id.as_str()).collect();
    named(&ids)
}

fn explicit(rules: &[&Compiled]) -> CheckItem {
    const NAME: &str = "subject, action and cost are explicit";
    // Whom a rule counts by must be written, or the file is refused.
    if let Some(ids) = those(rules, |rule| rule.match_span == rule.id_span) {
        let detail = format!("no `match`, so every request is meant: {ids}; say `match: {{}}` if that is so");
        return CheckItem::unmet(NAME, detail);
    }
    if let Some(ids) = those(rules, |rule| !rule.has_cost) {
        let detail =
            format!("the caller may tell the cost, which is 1 otherwise: {ids}; write `cost: 1` where it may not");
        return CheckItem::unknown(NAME, detail);
    }
    CheckItem::met(NAME, "every rule says what it matches, whom it counts and what a request costs")
}

fn fitting(rules: &[&Compiled]) -> CheckItem {
    const NAME: &str = "the algorithm fits the invariant";
    let fixed = |rule: &Compiled| limits::all(rule).any(|(_, limit)| limit.algorithm() == Algorithm::FixedWindow);
    if let Some(ids) = those(rules, |rule| security::is_security(rule) && fixed(rule)) {
        let detail = format!("a fixed window lets twice as many guesses pass at a boundary: {ids}; use `sliding_log`");
        return CheckItem::unmet(NAME, detail);
    }
    if let Some(ids) = those(rules, |rule| limits::all(rule).any(|(_, limit)| limits::is_huge_log(limit))) {
        let detail = format!("a log of more than 1,000 requests weighs too much: {ids}; use `sliding_window`");
        return CheckItem::unmet(NAME, detail);
    }
    if let Some(ids) = those(rules, |rule| limits::dearest(rule).is_some()) {
        return CheckItem::unmet(NAME, format!("some request costs more than the whole limit: {ids}"));
    }
    CheckItem::met(NAME, "no fixed window against guessing, no log of more than 1,000, no cost above its limit")
}

fn keys(facts: &Deployment) -> CheckItem {
    const NAME: &str = "keys are versioned and subjects hashed";
    if facts.secret {
        return CheckItem::met(NAME, "every key carries the version; subjects are hashed with the secret");
    }
    let detail = "without a secret whoever reads the store can guess subjects; set TIDEGATE_SECRET to the same sixteen or \
                  more random bytes on every instance";
    CheckItem::unmet(NAME, detail)
}

fn lifetimes(rules: &[&Compiled]) -> CheckItem {
    let windows = rules.iter().flat_map(|rule| limits::all(rule)).map(|(_, limit)| limit.window_micros());
    let longest = quantity::show_duration(Duration::from_micros(windows.max().unwrap_or_default()));
    let detail =
        format!("every key expires by itself, 2 s after it stops mattering; the longest limit takes {longest}");
    CheckItem::met("every key has a lifetime", detail)
}

fn tags(facts: &Deployment) -> CheckItem {
    const NAME: &str = "keys have cluster tags";
    match facts.scheme() {
        Some("redis+cluster" | "rediss+cluster") => {
            let detail = "every key carries one; a decision whose keys lie in one slot is atomic, and one across slots never \
                          admits more than the limits say";
            CheckItem::met(NAME, detail)
        }
        _ => CheckItem::met(NAME, "every key carries one; on a single server every decision is atomic"),
    }
}

fn scripts(facts: &Deployment) -> CheckItem {
    let detail = match facts.scheme() {
        Some("memory") => "the memory store has no scripts",
        _ => "a server that has lost its scripts gets them again on the way",
    };
    CheckItem::met("scripts can be reloaded", detail)
}

fn latency() -> CheckItem {
    let detail = "the file cannot tell; look whether your monitoring shows the time of decisions and the failures of the \
                  store (`tidegate serve` has metrics of both), and whether somebody is woken by them";
    CheckItem::unknown("latency is monitored", detail)
}

fn failure(rules: &[&Compiled]) -> CheckItem {
    const NAME: &str = "every rule has a failure policy";
    if let Some(ids) = those(rules, |rule| !rule.has_policy) {
        let detail = format!("what happens while the store fails is not written: {ids}; say `on_failure` in each");
        return CheckItem::unmet(NAME, detail);
    }
    let open = |rule: &Compiled| security::is_security(rule) && policies::passing(rule) != Passing::None;
    if let Some(ids) = those(rules, open) {
        return CheckItem::unmet(NAME, format!("guesses pass while the store fails: {ids}; say `closed` or `local`"));
    }
    CheckItem::met(NAME, "every rule says what happens while the store fails")
}

fn shadow(rules: &[&Compiled]) -> CheckItem {
    let detail = match those(rules, |rule| rule.mode == RuleMode::Shadow) {
        Some(ids) => format!("in shadow now, so that they refuse nobody: {ids}"),
        None => "`mode: shadow` tries a new rule without refusing anybody; none is in shadow now".to_owned(),
    };
    CheckItem::met("rules can be tried in shadow", detail)
}

fn answer() -> CheckItem {
    let detail = "the file cannot tell whether your callers know what a refusal looks like; docs/http.md describes it, so \
                  link it from the documentation of your API";
    CheckItem::unknown("the answer to a refused request is documented", detail)
}

fn labels(rules: &[&Compiled]) -> CheckItem {
    const NAME: &str = "no metric has many labels";
    let count = rules.len();
    if count > MOST_LABELS {
        let detail =
            format!("a label for the rule has {count} values; count by groups of rules where you observe them");
        return CheckItem::unknown(NAME, detail);
    }
    CheckItem::met(NAME, format!("observers see rules, {count} here, and hashed subjects, which are no labels"))
}

fn concurrency(facts: &Deployment) -> CheckItem {
    const NAME: &str = "concurrency is proven";
    match facts.scheme() {
        None => CheckItem::unknown(NAME, "it depends on the store, which was not named; instances must share one"),
        Some("memory") => {
            let detail = "decisions are atomic within a process, but every instance counts for itself; run one, or give \
                          them a store to share";
            CheckItem::unknown(NAME, detail)
        }
        Some("redis+cluster" | "rediss+cluster") => {
            let detail = "a decision is one script call for each slot, atomic there; the tests of Tidegate show that any number \
                          of instances never admit more than the limit";
            CheckItem::met(NAME, detail)
        }
        Some("redis" | "rediss" | "redis+sentinel" | "rediss+sentinel") => {
            let detail = "a decision is one script call, atomic on the server; the tests of Tidegate show that any number \
                          of instances admit exactly the limit";
            CheckItem::met(NAME, detail)
        }
        // Nothing is proven of what this version cannot open.
        Some(_) => {
            let detail =
                "this version knows no such store; name one that instances share, such as `redis://127.0.0.1:6379`";
            CheckItem::unmet(NAME, detail)
        }
    }
}

fn hot_keys(rules: &[&Compiled]) -> CheckItem {
    const NAME: &str = "hot keys are evaluated";
    let told = |source: &Source| matches!(source, Source::Constant(_) | Source::Action) || *source == method();
    let few = |identity: &Identity| identity.name == "plan" || identity.sources.iter().any(told);
    let shared = |rule: &Compiled| rule.matched.tenant != TenantIn::Subject && rule.matched.per.iter().all(few);
    let by_tenant = |rule: &Compiled| rule.matched.tenant == TenantIn::Subject && rule.matched.per.iter().all(few);
    let found = [
        those(rules, shared).map(|ids| format!("everybody shares one key, or few: {ids}")),
        those(rules, by_tenant).map(|ids| format!("a large tenant is one key: {ids}")),
    ];
    let found: Vec<String> = found.into_iter().flatten().collect();
    if found.is_empty() {
        return CheckItem::met(NAME, "every rule counts by more than a handful of subjects");
    }
    let detail = "the file cannot tell how busy they are; compare their traffic with the time of one decision in \
                  docs/figures.md";
    CheckItem::unknown(NAME, format!("{}; {detail}", found.join("; ")))
}

fn method() -> Source {
    Source::Attribute(attributes::METHOD.into())
}

fn billing(rules: &[&Compiled]) -> CheckItem {
    const NAME: &str = "quotas and billing have a truth of their own";
    let day = LONG_PERIOD.as_micros();
    let long = |rule: &Compiled| limits::all(rule).any(|(_, limit)| u128::from(limit.window_micros()) >= day);
    match those(rules, long) {
        Some(ids) => {
            let detail = format!(
                "these count for a day or longer: {ids}; the store may lose what it counts, so keep what you bill in a \
                 database of your own"
            );
            CheckItem::unknown(NAME, detail)
        }
        None => CheckItem::met(NAME, "no limit is longer than a day, so none looks like a bill"),
    }
}
