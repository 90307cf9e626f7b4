//! `DoorGapCounters`: counts requests that came in by a front end which never has what a rule of theirs reads, and logs such rules
//! when the server starts and when the first request comes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidegate::spi::Plan;
use tidegate_rules::{DoorGap, FrontDoor, GapEffect, RuleFile};

/// The front ends of a server that do not have everything, or never learn when a request ends. The others have what their callers send.
const DOORS: [FrontDoor; 3] = [FrontDoor::Gateway, FrontDoor::ForwardAuth, FrontDoor::Envoy];

/// The most rules that are logged for one door.
const MAX_LOGGED_RULES: usize = 100;

/// The counters of rules that a front end cannot serve, found by the origin of a plan.
#[derive(Debug, Default)]
pub(crate) struct DoorGapCounters {
    family: Family<DoorGapLabels, Counter>,
    /// False for most files: then a request costs one load.
    has_gaps: AtomicBool,
    counters: RwLock<HashMap<&'static str, HashMap<String, DoorGapCounter>>>,
}

#[derive(Debug)]
struct DoorGapCounter {
    /// Made when the first request comes, so that a door that nobody uses has no metrics.
    requests: OnceLock<Counter>,
    gap: DoorGap,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DoorGapLabels {
    rule: String,
    door: &'static str,
}

impl DoorGapCounters {
    /// The counters, for a registry.
    pub(crate) fn family(&self) -> Family<DoorGapLabels, Counter> {
        self.family.clone()
    }

    /// Follows the rules of a file. Counts of earlier files stay.
    pub(crate) fn follow(&self, file: &RuleFile) {
        let mut counters: HashMap<&'static str, HashMap<String, DoorGapCounter>> = HashMap::new();
        for gap in DOORS.into_iter().flat_map(|door| file.door_gaps(door)).filter(is_counted) {
            let by_rule = counters.entry(gap.door().as_str()).or_default();
            let counter = DoorGapCounter { requests: OnceLock::new(), gap };
            by_rule.entry(counter.gap.rule().to_owned()).or_insert(counter);
        }
        let has_gaps = !counters.is_empty();
        *self.counters.write().unwrap_or_else(PoisonError::into_inner) = counters;
        self.has_gaps.store(has_gaps, Ordering::Release);
    }

    /// Counts a request once for each of its rules that its front end cannot serve. The first one of a rule is logged.
    pub(crate) fn count(&self, plan: &Plan<'_>) {
        if !self.has_gaps.load(Ordering::Acquire) {
            return;
        }
        let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        let Some(by_rule) = counters.get(plan.origin().front_door()) else { return };
        let rules = || plan.checks().iter().map(|check| check.gate().rule());
        for (index, rule) in rules().enumerate() {
            // A rule may have several limits.
            if rules().take(index).any(|earlier| earlier == rule) {
                continue;
            }
            let Some(counter) = by_rule.get(rule) else { continue };
            let labels = || DoorGapLabels { rule: rule.to_owned(), door: counter.gap.door().as_str() };
            if counter.requests.get_or_init(|| self.family.get_or_create(&labels()).clone()).inc() == 0 {
                log_in_use(&counter.gap);
            }
        }
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

fn log_in_use(gap: &DoorGap) {
    let (rule, door, help) = (gap.rule(), gap.door().as_str(), gap.help());
    tracing::warn!(target: "tidegate::server", rule, door, "a request came in: {gap}. Fix: {help}");
}

/// Logs which rules the front ends of a server cannot serve. Forward-auth and Envoy's service are open on every server, used or not, so
/// that their lines are no warnings until a request comes.
pub(crate) fn log_gaps(file: &RuleFile, has_gateway: bool) {
    for door in DOORS.into_iter().filter(|door| has_gateway || *door != FrontDoor::Gateway) {
        let gaps = file.door_gaps(door);
        let is_logged = |gap: &&DoorGap| is_counted(gap) || gap.effect() == GapEffect::UnverifiedClaim;
        let logged: Vec<&DoorGap> = gaps.iter().filter(is_logged).collect();
        for gap in logged.iter().take(MAX_LOGGED_RULES) {
            let (rule, door, help) = (gap.rule(), door.as_str(), gap.help());
            if gap.door() == FrontDoor::Gateway {
                tracing::warn!(target: "tidegate::server", rule, door, "{gap}. Fix: {help}");
            } else {
                tracing::info!(target: "tidegate::server", rule, door, "{gap}. Fix: {help}");
            }
        }
        let more = logged.len().saturating_sub(MAX_LOGGED_RULES);
        let never = gaps.iter().filter(|gap| gap.effect() == GapEffect::NeverApplies).count();
        let door = door.as_str();
        if more > 0 {
            tracing::warn!(target: "tidegate::server", door, "{more} more; `tidegate rules validate --door {door}` lists all");
        }
        if never > 0 {
            tracing::info!(
                target: "tidegate::server",
                door,
                rules = never,
                "some rules never apply at this front end; `tidegate rules validate --door {door}` lists them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::spi::Origin;
    use tidegate::{Limiter, MemoryStore, Request};

    use super::super::status_log::tests::logged_lines;
    use super::*;

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
        assert_eq!(lines.len(), 3, "each rule and door once: {lines:?}");
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
        let lines = logged_lines(|| log_gaps(&file, true));
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
            "INFO rule `login` counts by `body",
            "INFO rule `account` counts by `attr",
            "INFO some rules never apply at this front end; `tidegate rules validate --door forward-auth` lists them door=\"forward-auth\" rules=1",
        ];
        assert_eq!(logged_lines(|| log_gaps(&file, false)), forward_auth);
        let gateway = [
            "WARN rule `account` counts by `attr",
            "INFO some rules never apply at this front end; `tidegate rules validate --door gateway` lists them door=\"gateway\" rules=1",
        ];
        assert_eq!(logged_lines(|| log_gaps(&file, true)), [&gateway[..], &forward_auth[..]].concat());
        let claims = "version: 1\nidentify: { user: claim:sub, authenticated: authorization }\nrules:\n\
                      - { id: a, per: [user], fixed_window: { limit: 9, window: 1m } }\n";
        let claims = RuleFile::parse("rules.yaml", claims).unwrap();
        assert_eq!(logged_lines(|| log_gaps(&claims, true)), ["WARN rule `a` reads `claim"]);
        assert_eq!(logged_lines(|| log_gaps(&claims, false)), [""; 0]);
        let plain = RuleFile::parse("rules.yaml", super::super::start_page::EXAMPLE_RULES).unwrap();
        assert_eq!(logged_lines(|| log_gaps(&plain, true)), [""; 0]);
    }
}
