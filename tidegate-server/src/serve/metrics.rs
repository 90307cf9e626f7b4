//! `Metrics`: what a server counts, in the words of Prometheus. Labels are rules and words of ours, never a subject.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tidegate::{Checked, Decision, Observer, Role, StoreError, StoreErrorKind};

/// From which share of a limit on a request counts as near it: four fifths.
const NEAR: (u64, u64) = (4, 5);

/// From a twentieth of a millisecond to a second.
const LATENCIES: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// What a server counts.
pub(crate) struct Metrics {
    registry: Registry,
    checks: Family<CheckLabels, Counter>,
    rejected: Family<RejectedLabels, Counter>,
    shadow_rejected: Family<RuleLabel, Counter>,
    near_limit: Family<RuleLabel, Counter>,
    no_rule: Counter,
    latency: Family<CallLabels, Histogram>,
    errors: Family<ErrorLabels, Counter>,
    reloads: Family<OutcomeLabel, Counter>,
}

/// What a store was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum StoreCall {
    Decide,
    Peek,
    Adjust,
    Forget,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckLabels {
    rule: String,
    algorithm: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectedLabels {
    rule: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabel {
    rule: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    script: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    script: &'static str,
    error_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let latency = Family::<CallLabels, Histogram>::new_with_constructor(|| Histogram::new(LATENCIES));
        let metrics = Self {
            checks: Family::default(),
            rejected: Family::default(),
            shadow_rejected: Family::default(),
            near_limit: Family::default(),
            no_rule: Counter::default(),
            latency,
            errors: Family::default(),
            reloads: Family::default(),
            registry: Registry::default(),
        };
        registry.register("rate_limit_checks", "Checks, by rule and outcome", metrics.checks.clone());
        registry.register("rate_limit_rejected", "Requests that a rule rejected", metrics.rejected.clone());
        let shadow = "Requests that a rule in shadow would have rejected";
        registry.register("rate_limit_shadow_rejected", shadow, metrics.shadow_rejected.clone());
        let near = "Requests that passed with at least four fifths of a limit used";
        registry.register("rate_limit_near_limit", near, metrics.near_limit.clone());
        registry.register("rate_limit_no_rule", "Requests that no rule applied to", metrics.no_rule.clone());
        registry.register("rate_limit_store_latency_seconds", "Time of a call to the store", metrics.latency.clone());
        registry.register("rate_limit_script_errors", "Calls to the store that failed", metrics.errors.clone());
        registry.register("rate_limit_rule_reloads", "Attempts to read the rules anew", metrics.reloads.clone());
        Self { registry, ..metrics }
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub(crate) fn store_called(&self, call: StoreCall, took: Duration, error: Option<&StoreError>) {
        let script = call.name();
        let outcome = if error.is_some() { "error" } else { "ok" };
        self.latency.get_or_create(&CallLabels { script, outcome }).observe(took.as_secs_f64());
        if let Some(error) = error {
            self.errors.get_or_create(&ErrorLabels { script, error_type: error_type(error.kind()) }).inc();
        }
    }

    pub(crate) fn reloaded(&self, fine: bool) {
        let outcome = if fine { "ok" } else { "refused" };
        self.reloads.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    fn checked(&self, check: &Checked, passed: bool) {
        let admitted = check.outcome().admitted;
        let outcome = match (check.role(), admitted) {
            (Role::Shadow, true) => "shadow_allowed",
            (Role::Shadow, false) => "shadow_rejected",
            (_, true) => "allowed",
            (_, false) => "rejected",
        };
        let rule = check.rule().to_owned();
        let labels = CheckLabels { rule: rule.clone(), algorithm: check.algorithm().as_str(), outcome };
        self.checks.get_or_create(&labels).inc();
        match outcome {
            "shadow_rejected" => _ = self.shadow_rejected.get_or_create(&RuleLabel { rule }).inc(),
            "rejected" => {
                let reason = if check.outcome().is_permanent() { "permanent" } else { "limit" };
                self.rejected.get_or_create(&RejectedLabels { rule, reason }).inc();
            }
            "allowed" if passed && is_near(check) => _ = self.near_limit.get_or_create(&RuleLabel { rule }).inc(),
            _ => {}
        }
    }
}

impl Observer for Metrics {
    fn decided(&self, decision: &Decision) {
        decision.checks().iter().for_each(|check| self.checked(check, decision.is_allowed()));
    }

    fn no_rule(&self) {
        self.no_rule.inc();
    }
}

impl StoreCall {
    const fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Peek => "peek",
            Self::Adjust => "adjust",
            Self::Forget => "forget",
        }
    }
}

fn is_near(check: &Checked) -> bool {
    let outcome = check.outcome();
    let used = u128::from(outcome.limit.saturating_sub(outcome.remaining));
    outcome.limit > 0 && used * u128::from(NEAR.1) >= u128::from(outcome.limit) * u128::from(NEAR.0)
}

fn error_type(kind: StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::Unavailable => "unavailable",
        StoreErrorKind::Refused => "refused",
        StoreErrorKind::Denied => "denied",
        StoreErrorKind::Unreadable => "unreadable",
        StoreErrorKind::Unsupported => "unsupported",
        _ => "unexpected",
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
