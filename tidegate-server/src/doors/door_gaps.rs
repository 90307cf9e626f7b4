//! `DoorGapCounters`: counts requests that came in by a front end which never has what a rule of theirs reads, and logs such rules, and
//! those that never apply, when the server starts and when the first request comes.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tidegate::spi::Plan;
use tidegate::sync::RwLock;
use tidegate_rule_tools::{DoorGap, GapEffect, check_for_door, door_gaps};
use tidegate_rules::{FrontDoor, Report, RuleFile};

/// The front ends of a server that do not have everything, or never learn when a request ends. The others have what their callers send.
const DOORS: [FrontDoor; 3] = [FrontDoor::Gateway, FrontDoor::ForwardAuth, FrontDoor::Envoy];

/// The most rules that are logged for one door.
const MAX_LOGGED_RULES: usize = 100;

/// The most rules that one line names.
const MAX_NAMED_RULES: usize = 8;

/// The counters of rules that a front end cannot serve, found by the origin of a plan.
#[derive(Debug, Default)]
pub(crate) struct DoorGapCounters {
    family: Family<DoorGapLabels, Counter>,
    /// False for most files: then a request costs one load.
    has_gaps: AtomicBool,
    doors: RwLock<HashMap<&'static str, DoorGaps>>,
}

/// What one door lacks for the rules of a file.
#[derive(Debug, Default)]
struct DoorGaps {
    counters: HashMap<String, DoorGapCounter>,
    /// Rules that never apply at it. Those of the gateway are logged when it starts, the others at the first request.
    idle: Vec<DoorGap>,
    /// Whether the idle rules are logged.
    is_logged: AtomicBool,
}

#[derive(Debug)]
struct DoorGapCounter {
    /// Made when the first request comes, so that a door that nobody uses has no metrics.
    requests: OnceLock<Counter>,
    gap: DoorGap,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DoorGapLabels {
    rule: String,
    door: &'static str,
}

impl DoorGapCounters {
    /// Counters at zero, in `registry`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let counters = Self::default();
        let help = "Requests that a rule judged without what it reads, which their front end never has";
        registry.register("rate_limit_unavailable_source", help, counters.family.clone());
        counters
    }

    /// Follows the rules of a file. Counts of earlier files stay.
    pub(crate) fn follow(&self, file: &RuleFile) {
        let mut doors: HashMap<&'static str, DoorGaps> = HashMap::new();
        for gap in DOORS.into_iter().flat_map(|door| door_gaps(file, door)) {
            if is_counted(&gap) {
                let counter = DoorGapCounter { requests: OnceLock::new(), gap };
                let door = doors.entry(counter.gap.door().as_str()).or_default();
                door.counters.entry(counter.gap.rule().to_owned()).or_insert(counter);
            } else if gap.effect() == GapEffect::NeverApplies && gap.door() != FrontDoor::Gateway {
                doors.entry(gap.door().as_str()).or_default().idle.push(gap);
            }
        }
        let has_gaps = !doors.is_empty();
        *self.doors.write() = doors;
        self.has_gaps.store(has_gaps, Ordering::Release);
    }

    /// Counts a request, whether rules apply to it or not, once for each of its rules that its front end cannot serve. The first one of a
    /// rule is logged, and with the first one of a front end the rules that never apply there.
    pub(crate) fn count(&self, plan: &Plan<'_>) {
        if !self.has_gaps.load(Ordering::Acquire) {
            return;
        }
        let doors = self.doors.read();
        let Some(door) = doors.get(plan.origin().front_door()) else { return };
        door.log_idle_rules_once();
        let rules = || plan.checks().iter().map(|check| check.gate().rule().id.as_str());
        for (index, rule) in rules().enumerate() {
            // A rule may have several limits.
            if rules().take(index).any(|earlier| earlier == rule) {
                continue;
            }
            let Some(counter) = door.counters.get(rule) else { continue };
            let labels = || DoorGapLabels { rule: rule.to_owned(), door: counter.gap.door().as_str() };
            if counter.requests.get_or_init(|| self.family.get_or_create(&labels()).clone()).inc() == 0 {
                log_in_use(&counter.gap);
            }
        }
    }
}

impl DoorGaps {
    fn log_idle_rules_once(&self) {
        if self.idle.is_empty()
            || self.is_logged.load(Ordering::Relaxed)
            || self.is_logged.swap(true, Ordering::Relaxed)
        {
            return;
        }
        self.idle.iter().take(MAX_LOGGED_RULES).for_each(log_in_use);
        log_more(&self.idle);
    }
}

/// Whether a rule decides requests without what it reads, or without their end: slots are then held for the whole lease, and estimates are
/// never corrected. Not a rule that never applies; and a server cannot tell a call of a proxy from one of a client.
fn is_counted(gap: &DoorGap) -> bool {
    matches!(
        gap.effect(),
        GapEffect::SharedCount
            | GapEffect::CoarserCount
            | GapEffect::MissingInCost
            | GapEffect::HeldForLease
            | GapEffect::UnknownUsage
    )
}

/// Whether it is said once, at the start: what a rule decides does not depend on it, or it may be fine.
fn is_logged_only(gap: &DoorGap) -> bool {
    matches!(gap.effect(), GapEffect::UnverifiedClaim | GapEffect::AppliesAnyway)
}

fn log_in_use(gap: &DoorGap) {
    let (rule, door, help) = (gap.rule(), gap.door().as_str(), gap.help());
    tracing::warn!(target: "tidegate::server", rule, door, "a request came in: {gap}. Fix: {help}");
}

/// Refuses a file with a rule against guessing that never applies at the gateway, if it is one of `doors`: guesses would be unlimited.
pub(crate) fn check_gateway_rules(file: &RuleFile, doors: &[FrontDoor]) -> Result<(), Report> {
    if doors.contains(&FrontDoor::Gateway) { check_for_door(file, FrontDoor::Gateway) } else { Ok(()) }
}

/// Logs which rules the front ends of a server cannot serve. Forward-auth and Envoy's service are open unless they are off, used or not, so
/// that their lines are no warnings until a request comes.
pub(crate) fn log_gaps(file: &RuleFile, doors: &[FrontDoor]) {
    for door in DOORS.into_iter().filter(|door| doors.contains(door)) {
        let is_used = door == FrontDoor::Gateway;
        let (idle, gaps): (Vec<_>, Vec<_>) =
            door_gaps(file, door).into_iter().partition(|gap| gap.effect() == GapEffect::NeverApplies);
        let mut logged: Vec<DoorGap> = gaps.into_iter().filter(|gap| is_counted(gap) || is_logged_only(gap)).collect();
        if is_used {
            logged.splice(..0, idle);
        } else if !idle.is_empty() {
            let (names, door) = (rule_names(&idle), door.as_str());
            tracing::info!(
                target: "tidegate::server",
                door,
                rules = idle.len(),
                "rules that never apply at this front end: {names}; `tidegate rules validate --door {door}` says why"
            );
        }
        for gap in logged.iter().take(MAX_LOGGED_RULES) {
            let (rule, door, help) = (gap.rule(), door.as_str(), gap.help());
            if is_used {
                tracing::warn!(target: "tidegate::server", rule, door, "{gap}. Fix: {help}");
            } else {
                tracing::info!(target: "tidegate::server", rule, door, "{gap}. Fix: {help}");
            }
        }
        log_more(&logged);
    }
}

/// Says how many rules are not logged, if there are more than [`MAX_LOGGED_RULES`].
fn log_more(gaps: &[DoorGap]) {
    let more = gaps.len().saturating_sub(MAX_LOGGED_RULES);
    if let Some(gap) = gaps.first().filter(|_| more > 0) {
        let door = gap.door().as_str();
        tracing::warn!(target: "tidegate::server", door, "{more} more; `tidegate rules validate --door {door}` lists all");
    }
}

/// The ids of the rules, up to [`MAX_NAMED_RULES`].
fn rule_names(gaps: &[DoorGap]) -> String {
    let names: Vec<&str> = gaps.iter().take(MAX_NAMED_RULES).map(DoorGap::rule).collect();
    let more = gaps.len().saturating_sub(MAX_NAMED_RULES);
    let names = names.join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

#[cfg(test)]
mod tests {
    use tidegate::spi::Origin;
    use tidegate::{Limiter, MemoryStore, Request};

    use super::*;
    use crate::observe::log::status_log::tests::logged_lines;

    const RULES: &str = "
version: 1
rules:
  - { id: login, match: { path: /login }, per: ['body:email'], limits: { minute: { fixed_window: { limit: 9, window: 1m } }, hour: { fixed_window: { limit: 99, window: 1h } } } }
  - { id: account, per: ['attr:account'], fixed_window: { limit: 9, window: 1m } }
  - { id: address, per: [ip], fixed_window: { limit: 9, window: 1m } }
  - { id: job, match: { action: job }, per: ['attr:queue'], fixed_window: { limit: 9, window: 1m } }
";

    fn counted(counters: &DoorGapCounters, rule: &str, door: &'static str) -> u64 {
        counters.family.get_or_create(&DoorGapLabels { rule: rule.to_owned(), door }).get()
    }

    #[test]
    fn requests_at_a_door_that_lacks_what_a_rule_reads_are_counted_once_for_each_rule() {
        let file = RuleFile::parse("rules.yaml", RULES).unwrap();
        let counters = DoorGapCounters::default();
        let limiter = Limiter::new(file.rules().clone(), MemoryStore::new());
        let request = Request::new("").with_attribute("path", "/login").with_attribute("ip", "192.0.2.1");
        let count = |door| counters.count(&limiter.plan(&request).with_origin(Origin::new(door)));
        count("forward-auth");
        assert_eq!(counted(&counters, "login", "forward-auth"), 0, "no file is followed");
        counters.follow(&file);
        let lines = logged_lines(|| {
            for door in ["forward-auth", "gateway", "check", "envoy", "", "forward-auth"] {
                count(door);
            }
        });
        assert_eq!(lines.len(), 4, "each rule and door once: {lines:?}");
        assert!(lines[0].starts_with("WARN a request came in"), "it never applies at forward-auth: {lines:?}");
        assert_eq!(counted(&counters, "login", "forward-auth"), 2);
        assert_eq!(counted(&counters, "login", "gateway"), 0, "the gateway reads bodies");
        assert_eq!((counted(&counters, "account", "forward-auth"), counted(&counters, "account", "gateway")), (2, 1));
        assert_eq!(counted(&counters, "address", "forward-auth"), 0);
        counters.follow(&RuleFile::parse("rules.yaml", "version: 1\nrules: []\n").unwrap());
        count("forward-auth");
        assert_eq!(counted(&counters, "login", "forward-auth"), 2, "the rule is gone");
    }

    /// These doors do not learn when a request ends.
    #[test]
    fn requests_whose_slots_are_held_for_the_whole_lease_are_counted_and_logged() {
        let text = "version: 1\nrules: [{ id: exports, per: [], concurrency: { max: 3, lease: 30s } }]\n";
        let file = RuleFile::parse("rules.yaml", text).unwrap();
        let lines = logged_lines(|| log_gaps(&file, &DOORS));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines.iter().all(|line| line.starts_with("INFO rule `exports` holds slots")), "{lines:?}");
        let counters = DoorGapCounters::default();
        counters.follow(&file);
        let limiter = Limiter::new(file.rules().clone(), MemoryStore::new());
        let lines = logged_lines(|| {
            for door in ["gateway", "check", "forward-auth", "envoy", "envoy"] {
                counters.count(&limiter.plan(&Request::new("")).with_origin(Origin::new(door)));
            }
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(["forward-auth", "envoy", "gateway"].map(|door| counted(&counters, "exports", door)), [1, 2, 0]);
    }

    #[test]
    fn a_server_logs_the_rules_that_its_doors_cannot_serve() {
        let file = RuleFile::parse("rules.yaml", RULES).unwrap();
        let forward_auth = [
            "INFO rules that never apply at this front end",
            "INFO rule `login` counts by `body",
            "INFO rule `account` counts by `attr",
        ];
        assert_eq!(logged_lines(|| log_gaps(&file, &DOORS[1..])), forward_auth);
        let gateway =
            ["WARN rule `job` matches by `action`, which the gateway never has", "WARN rule `account` counts by `attr"];
        assert_eq!(logged_lines(|| log_gaps(&file, &DOORS)), [&gateway[..], &forward_auth[..]].concat());
        assert_eq!(logged_lines(|| log_gaps(&file, &[FrontDoor::Check])), [""; 0], "the others are off");
        let claims = "version: 1\nidentify: { user: claim:sub, authenticated: authorization }\nrules:\n\
                      - { id: a, per: [user], fixed_window: { limit: 9, window: 1m } }\n";
        let claims = RuleFile::parse("rules.yaml", claims).unwrap();
        assert_eq!(logged_lines(|| log_gaps(&claims, &DOORS)), ["WARN rule `a` reads `claim"]);
        assert_eq!(logged_lines(|| log_gaps(&claims, &DOORS[1..])), [""; 0]);
        let plain = RuleFile::parse("rules.yaml", crate::lifecycle::start_page::EXAMPLE_RULES).unwrap();
        assert_eq!(logged_lines(|| log_gaps(&plain, &DOORS)), [""; 0]);
    }

    /// No rule applies to any of these requests, so no rule shows that the front end is in use.
    #[test]
    fn rules_that_never_apply_are_logged_with_the_first_request_even_if_no_rule_applies_to_it() {
        let job = |number: usize| {
            format!(
                "- {{ id: job{number}, match: {{ action: a{number} }}, per: [ip], fixed_window: {{ limit: {}, window: 1m }} }}\n",
                number + 1
            )
        };
        let text = |rules: usize| format!("version: 1\nrules:\n{}", (0..rules).map(job).collect::<String>());
        let file = RuleFile::parse("rules.yaml", &text(2)).unwrap();
        let counters = DoorGapCounters::default();
        counters.follow(&file);
        let limiter = Limiter::new(file.rules().clone(), MemoryStore::new());
        let request = Request::new("").with_attribute("path", "/login");
        let ask = |door| {
            let plan = limiter.plan(&request).with_origin(Origin::new(door));
            assert!(plan.checks().is_empty());
            logged_lines(|| counters.count(&plan)).len()
        };
        assert_eq!(["gateway", "check", "envoy", "forward-auth", "forward-auth"].map(ask), [0, 0, 0, 2, 0]);
        counters.follow(&file);
        assert_eq!(ask("forward-auth"), 2, "after a reload");
        let meant = text(2).replace("per:", "front_ends: [check], per:");
        counters.follow(&RuleFile::parse("rules.yaml", &meant).unwrap());
        assert_eq!(ask("forward-auth"), 0);
        let path = RuleFile::parse("rules.yaml", &meant.replace("action: a", "path: /a")).unwrap();
        let applies = "WARN rule `job0` applies at the gateway, which its `front_ends` leave out";
        assert_eq!(logged_lines(|| log_gaps(&path, &DOORS))[0], applies, "a statement is no condition");
        counters.follow(&RuleFile::parse("rules.yaml", &text(MAX_LOGGED_RULES + 50)).unwrap());
        assert_eq!(ask("forward-auth"), MAX_LOGGED_RULES + 1, "a line for the others");
    }
}
