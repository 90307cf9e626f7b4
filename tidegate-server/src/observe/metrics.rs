//! `Metrics`: the counters and histograms of a server. Labels are names of rules and constants, never a subject.

pub(crate) mod histogram;
mod labels;
pub(crate) mod metrics_format;
mod process;
mod rule_counters;
pub(crate) mod scrape;
pub(crate) mod untrusted_forwarded;

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry};
use tidegate::spi::{CheckResult, Observer, Plan, Role};
use tidegate::sync::RwLock;
use tidegate::{Clock, Decision, StoreError, StoreErrorKind, SystemClock, Timestamp};
use tidegate_rules::RuleFile;

use self::histogram::Histogram;
use self::labels::{
    CallLabels, CheckLabels, DegradedLabels, ErrorLabels, FallbackLabels, OverloadedLabels, RejectedLabels,
};
pub(crate) use self::labels::{OutcomeLabel, RuleLabel, StoreCall};
use self::rule_counters::{CheckOutcome, ExtraCounter, RuleCounters};
use self::untrusted_forwarded::UntrustedForwarded;
use crate::doors::check::acquire_calls::AcquireMetrics;
use crate::doors::door_gaps::DoorGapCounters;
use crate::listen::AddressStats;
use crate::tokens::reservations::ReservationMetrics;

/// The metrics of a server.
pub(crate) struct Metrics {
    registry: Registry,
    checks: Family<CheckLabels, Counter>,
    rejected: Family<RejectedLabels, Counter>,
    shadow_rejected: Family<RuleLabel, Counter>,
    near_limit: Family<RuleLabel, Counter>,
    grace: Family<RuleLabel, Counter>,
    lost_holds: Family<RuleLabel, Counter>,
    fallback: Family<FallbackLabels, Counter>,
    degraded: Family<DegradedLabels, Counter>,
    overloaded: Family<OverloadedLabels, Counter>,
    overflow: Family<RuleLabel, Counter>,
    denial_cache_hits: Family<RuleLabel, Counter>,
    shadow_skipped: Family<RuleLabel, Counter>,
    no_rule: Counter,
    latency: Family<CallLabels, Histogram>,
    errors: Family<ErrorLabels, Counter>,
    reloads: Family<OutcomeLabel, Counter>,
    ledger_confirm: Family<OutcomeLabel, Histogram>,
    /// The counters of checks, found without building labels.
    rule_counters: RuleCounters,
    /// The durations of successful calls, by the call.
    successful: [OnceLock<Histogram>; StoreCall::COUNT],
    /// What each rule counts by.
    subject_types: RwLock<HashMap<String, String>>,
    /// The share of a limit from which on a request counts as near it.
    near: f64,
    started: Timestamp,
    addresses: AddressStats,
    door_gaps: DoorGapCounters,
    untrusted_forwarded: UntrustedForwarded,
    acquire: AcquireMetrics,
    reservations: ReservationMetrics,
}

impl Metrics {
    /// New metrics at zero. A request counts as near a limit from this share of it on.
    pub(crate) fn new(near: f64) -> Self {
        let mut registry = Registry::default();
        // In the order of the page.
        Self {
            acquire: AcquireMetrics::new(&mut registry),
            reservations: ReservationMetrics::new(&mut registry),
            checks: register(&mut registry, "rate_limit_checks", "Checks, by rule and outcome"),
            rejected: register(&mut registry, "rate_limit_rejected", "Requests that a rule rejected"),
            shadow_rejected: register(
                &mut registry,
                "rate_limit_shadow_rejected",
                "Requests that a shadow rule would have rejected",
            ),
            near_limit: register(&mut registry, "rate_limit_near_limit", "Requests that passed near a limit"),
            grace: register(&mut registry, "rate_limit_grace", "Requests that passed in the grace of a quota"),
            lost_holds: register(
                &mut registry,
                "rate_limit_lost_holds",
                "Holds of reservations at the gateway that the store had lost at the end of the request",
            ),
            fallback: register(
                &mut registry,
                "rate_limit_fallback",
                "Checks that the store could not decide, by the on_failure of the rule",
            ),
            degraded: register(
                &mut registry,
                "rate_limit_degraded",
                "Requests decided without the store, by outcome and by the error of the store",
            ),
            overloaded: register(
                &mut registry,
                "rate_limit_overloaded",
                "Requests under a rule that the store did not decide, since this instance was overloaded",
            ),
            overflow: register(
                &mut registry,
                "rate_limit_overflow",
                "Checks of new subjects in a shared overflow bucket",
            ),
            denial_cache_hits: register(
                &mut registry,
                "rate_limit_denial_cache_hits",
                "Requests that a rule rejected without a call to the store, which had denied the same a moment ago",
            ),
            shadow_skipped: register(
                &mut registry,
                "rate_limit_shadow_skipped",
                "Checks of shadow rules that were not decided: the request was rejected without the store, or the store failed",
            ),
            door_gaps: DoorGapCounters::new(&mut registry),
            no_rule: register(&mut registry, "rate_limit_no_rule", "Requests that matched no rule"),
            latency: register(&mut registry, "rate_limit_store_latency_seconds", "Duration of calls to the store"),
            errors: register(&mut registry, "rate_limit_script_errors", "Calls to the store that failed"),
            reloads: register(&mut registry, "rate_limit_rule_reloads", "Attempts to reload the rules"),
            ledger_confirm: register(
                &mut registry,
                "rate_limit_ledger_confirm_seconds",
                "Time that decisions under `ledger: sync` waited until they were durable",
            ),
            untrusted_forwarded: UntrustedForwarded::new(&mut registry),
            rule_counters: RuleCounters::default(),
            successful: Default::default(),
            subject_types: RwLock::default(),
            near,
            started: SystemClock::new().now(),
            addresses: AddressStats::default(),
            registry,
        }
    }

    /// When the server started.
    pub(crate) const fn started(&self) -> Timestamp {
        self.started
    }

    /// The counters of the addresses.
    pub(crate) const fn addresses(&self) -> &AddressStats {
        &self.addresses
    }

    /// The metrics about callers that wait.
    pub(crate) const fn acquire(&self) -> &AcquireMetrics {
        &self.acquire
    }

    /// The counters of `/v1/quotas`.
    pub(crate) const fn reservations(&self) -> &ReservationMetrics {
        &self.reservations
    }

    /// The counters of forwarded headers that are ignored.
    pub(crate) const fn untrusted_forwarded(&self) -> &UntrustedForwarded {
        &self.untrusted_forwarded
    }

    /// Sets the subject types of the rules of a file, and what front ends lack for them.
    pub(crate) fn follow(&self, file: &RuleFile) {
        self.door_gaps.follow(file);
        let types = file.per_by_rule().map(|(rule, names)| (rule.to_owned(), subject_type(&names))).collect();
        *self.subject_types.write() = types;
        self.rule_counters.clear();
    }

    /// The metrics that are counted, in the text format of `OpenMetrics`. A [`Scrape`](scrape::Scrape) has those that are read.
    pub(crate) fn open_metrics(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub(crate) fn store_called(&self, call: StoreCall, duration: Duration, error: Option<&StoreError>) {
        let script = call.name();
        let histogram = |outcome| self.latency.get_or_create(&CallLabels { script, outcome }).clone();
        let Some(error) = error else {
            return self.successful[call as usize].get_or_init(|| histogram("ok")).observe(duration);
        };
        histogram("error").observe(duration);
        self.errors.get_or_create(&ErrorLabels { script, error_type: error.kind().as_str() }).inc();
    }

    /// Records how long a decision waited for the ledger.
    pub(crate) fn ledger_confirmed(&self, duration: Duration, success: bool) {
        let outcome = if success { "ok" } else { "error" };
        self.ledger_confirm.get_or_create(&OutcomeLabel { outcome }).observe(duration);
    }

    pub(crate) fn reloaded(&self, success: bool) {
        let outcome = if success { "ok" } else { "refused" };
        self.reloads.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    fn count(&self, check: &CheckResult, decision: &Decision) {
        let (passed, degraded) = (decision.is_allowed(), decision.degraded().is_some());
        let (rule, algorithm) = (check.rule(), check.algorithm().as_str());
        let outcome = match (check.role(), check.outcome().admitted) {
            (Role::Shadow, true) => CheckOutcome::ShadowAllowed,
            (Role::Shadow, false) => CheckOutcome::ShadowRejected,
            (_, true) => CheckOutcome::Allowed,
            (_, false) => CheckOutcome::Rejected,
        };
        let extra = match outcome {
            // The share of one instance does not show the usage of the whole limit.
            CheckOutcome::Allowed if passed && !degraded && self.is_near(check) => Some(ExtraCounter::NearLimit),
            // One of two quotas is used up, and the other let the request pass.
            CheckOutcome::Rejected if passed => None,
            CheckOutcome::Rejected if !degraded && check.outcome().is_permanent() => Some(ExtraCounter::Permanent),
            CheckOutcome::Rejected => Some(ExtraCounter::Limit),
            CheckOutcome::ShadowRejected => Some(ExtraCounter::Shadow),
            CheckOutcome::Allowed | CheckOutcome::ShadowAllowed => None,
        };
        if check.is_overflowed() {
            self.overflow.get_or_create(&RuleLabel { rule: rule.to_owned() }).inc();
        }
        self.rule_counters.with(rule, algorithm, |counters| {
            let labels = || CheckLabels { rule: rule.to_owned(), algorithm, outcome: outcome.name() };
            counters.outcome(outcome, || self.checks.get_or_create(&labels()).clone()).inc();
            if let Some(extra) = extra {
                counters.extra(extra, || self.extra(extra, rule.to_owned())).inc();
            }
            if passed && outcome == CheckOutcome::Allowed && check.outcome().in_grace {
                counters.extra(ExtraCounter::Grace, || self.extra(ExtraCounter::Grace, rule.to_owned())).inc();
            }
            if decision.known_denial().is_some() {
                let known = ExtraCounter::KnownDenial;
                counters.extra(known, || self.extra(known, rule.to_owned())).inc();
            }
        });
    }

    /// Counts a request once for each of its rules that are enforced.
    fn count_overload(&self, plan: &Plan<'_>, outcome: &'static str) {
        let checks = plan.checks();
        for (index, check) in checks.iter().enumerate() {
            let rule = check.gate().rule().id.as_str();
            let is_counted = checks[..index].iter().any(|earlier| earlier.gate().rule().id == rule);
            if check.gate().role() != Role::Shadow && !is_counted {
                self.overloaded.get_or_create(&OverloadedLabels { rule: rule.to_owned(), outcome }).inc();
            }
        }
    }

    fn extra(&self, extra: ExtraCounter, rule: String) -> Counter {
        match extra {
            ExtraCounter::NearLimit => self.near_limit.get_or_create(&RuleLabel { rule }).clone(),
            ExtraCounter::Grace => self.grace.get_or_create(&RuleLabel { rule }).clone(),
            ExtraCounter::Shadow => self.shadow_rejected.get_or_create(&RuleLabel { rule }).clone(),
            ExtraCounter::KnownDenial => self.denial_cache_hits.get_or_create(&RuleLabel { rule }).clone(),
            ExtraCounter::Limit => self.rejected(rule, "limit"),
            ExtraCounter::Permanent => self.rejected(rule, "permanent"),
        }
    }

    fn is_near(&self, check: &CheckResult) -> bool {
        let outcome = check.outcome();
        let used = outcome.limit.saturating_sub(outcome.remaining);
        outcome.limit > 0 && used as f64 >= outcome.limit as f64 * self.near
    }

    fn rejected(&self, rule: String, reason: &'static str) -> Counter {
        let types = self.subject_types.read();
        // A name that is not in the rule file is that of a limit in Envoy's configuration.
        let subject_type = types.get(&rule).map_or("descriptor", String::as_str).to_owned();
        self.rejected.get_or_create(&RejectedLabels { rule, subject_type, reason }).clone()
    }
}

/// A metric at zero, in `registry`.
fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// What a rule counts by, as one label.
pub(crate) fn subject_type(names: &[&str]) -> String {
    if names.is_empty() { "everybody".to_owned() } else { names.join("+") }
}

impl Observer for Metrics {
    fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
        decision.checks().iter().for_each(|check| self.count(check, decision));
        self.door_gaps.count(plan);
        for gate in decision.skipped_shadow(plan) {
            self.shadow_skipped.get_or_create(&RuleLabel { rule: gate.rule().id.to_string() }).inc();
        }
        if let Some(reason) = decision.degraded() {
            let (outcome, reason) = (if decision.is_allowed() { "allowed" } else { "rejected" }, reason.as_str());
            self.degraded.get_or_create(&DegradedLabels { outcome, reason }).inc();
        }
        if decision.degraded() == Some(StoreErrorKind::Overloaded) {
            self.count_overload(plan, if decision.is_allowed() { "allowed" } else { "rejected" });
        }
    }

    fn no_rule(&self, plan: &Plan<'_>) {
        self.no_rule.inc();
        self.door_gaps.count(plan);
    }

    fn undecided(&self, plan: &Plan<'_>, error: &StoreError) {
        for (rule, policy) in plan.policies(error) {
            self.fallback.get_or_create(&FallbackLabels { rule: rule.to_owned(), policy: policy.as_str() }).inc();
        }
        // No decision follows.
        if error.kind() == StoreErrorKind::Overloaded && plan.fails_closed(error) {
            self.count_overload(plan, "refused");
        }
    }

    fn hold_lost(&self, rule: &str) {
        self.lost_holds.get_or_create(&RuleLabel { rule: rule.to_owned() }).inc();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests;
