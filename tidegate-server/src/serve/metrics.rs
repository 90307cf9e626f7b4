//! `Metrics`: what a server counts, in the words of Prometheus. Labels are rules and words of ours, never a subject.

use std::collections::HashMap;
use std::fmt;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tidegate::spi::{Observer, Plan, Role};
use tidegate::{CheckResult, Decision, StoreError};
use tidegate_rules::RuleFile;

use super::shared::Shared;
use super::tally::{Beside, Outcome, Tally};
use super::times::Times;
use crate::store::AnyStore;

/// What a server counts.
pub(crate) struct Metrics {
    registry: Registry,
    checks: Family<CheckLabels, Counter>,
    rejected: Family<RejectedLabels, Counter>,
    shadow_rejected: Family<RuleLabel, Counter>,
    near_limit: Family<RuleLabel, Counter>,
    fallback: Family<FallbackLabels, Counter>,
    degraded: Family<DegradedLabels, Counter>,
    overflow: Family<RuleLabel, Counter>,
    no_rule: Counter,
    latency: Family<CallLabels, Times>,
    errors: Family<ErrorLabels, Counter>,
    reloads: Family<OutcomeLabel, Counter>,
    /// The counters of the checks, at hand for the next ones.
    tally: Tally,
    /// The times of calls that went well, by the call.
    fine: [OnceLock<Times>; 4],
    /// What rules count by.
    subject_types: RwLock<HashMap<String, String>>,
    /// From which share of a limit on a request is near it.
    near: f64,
}

/// What a store was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum StoreCall {
    Decide,
    Peek,
    Adjust,
    Forget,
    Ping,
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
    subject_type: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FallbackLabels {
    rule: String,
    policy: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DegradedLabels {
    outcome: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RuleLabel {
    pub(crate) rule: String,
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
    /// Nothing counted yet. A request is near a limit from this share of it on. The servers of `store` are asked for whenever
    /// somebody looks.
    pub(crate) fn new(near: f64, store: AnyStore) -> Self {
        let mut registry = Registry::default();
        let metrics = Self {
            checks: Family::default(),
            rejected: Family::default(),
            shadow_rejected: Family::default(),
            near_limit: Family::default(),
            fallback: Family::default(),
            degraded: Family::default(),
            overflow: Family::default(),
            no_rule: Counter::default(),
            latency: Family::default(),
            errors: Family::default(),
            reloads: Family::default(),
            tally: Tally::default(),
            fine: Default::default(),
            subject_types: RwLock::default(),
            near,
            registry: Registry::default(),
        };
        registry.register("rate_limit_checks", "Checks, by rule and outcome", metrics.checks.clone());
        registry.register("rate_limit_rejected", "Requests that a rule rejected", metrics.rejected.clone());
        let shadow = "Requests that a rule in shadow would have rejected";
        registry.register("rate_limit_shadow_rejected", shadow, metrics.shadow_rejected.clone());
        let near_limit = "Requests that passed with most of a limit used";
        registry.register("rate_limit_near_limit", near_limit, metrics.near_limit.clone());
        let fallback = "Checks that the store could not decide, by what the rule asks for then";
        registry.register("rate_limit_fallback", fallback, metrics.fallback.clone());
        let degraded = "Requests that were judged without the store, by what came of it and how the store failed";
        registry.register("rate_limit_degraded", degraded, metrics.degraded.clone());
        let overflow = "Checks of new subjects that shared a bucket, since there were too many of them";
        registry.register("rate_limit_overflow", overflow, metrics.overflow.clone());
        registry.register("rate_limit_no_rule", "Requests that no rule applied to", metrics.no_rule.clone());
        registry.register("rate_limit_store_latency_seconds", "Time of a call to the store", metrics.latency.clone());
        registry.register("rate_limit_script_errors", "Calls to the store that failed", metrics.errors.clone());
        registry.register("rate_limit_rule_reloads", "Attempts to read the rules anew", metrics.reloads.clone());
        registry.register_collector(Box::new(Shared(store)));
        Self { registry, ..metrics }
    }

    /// Learns what the rules of a file count by.
    pub(crate) fn follow(&self, file: &RuleFile) {
        let kind = |names: Vec<&str>| if names.is_empty() { "everybody".to_owned() } else { names.join("+") };
        let kinds = file.counted_by().map(|(rule, names)| (rule.to_string(), kind(names))).collect();
        *self.subject_types.write().unwrap_or_else(PoisonError::into_inner) = kinds;
        self.tally.clear();
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
        let times = |outcome| self.latency.get_or_create(&CallLabels { script, outcome }).clone();
        let Some(error) = error else {
            return self.fine[call as usize].get_or_init(|| times("ok")).add(took);
        };
        times("error").add(took);
        self.errors.get_or_create(&ErrorLabels { script, error_type: error.kind().as_str() }).inc();
    }

    pub(crate) fn reloaded(&self, fine: bool) {
        let outcome = if fine { "ok" } else { "refused" };
        self.reloads.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    fn checked(&self, check: &CheckResult, passed: bool, degraded: bool) {
        let (rule, algorithm) = (check.rule(), check.algorithm().as_str());
        let outcome = match (check.role(), check.outcome().admitted) {
            (Role::Shadow, true) => Outcome::ShadowAllowed,
            (Role::Shadow, false) => Outcome::ShadowRejected,
            (_, true) => Outcome::Allowed,
            (_, false) => Outcome::Rejected,
        };
        let beside = match outcome {
            // A share that is used up says nothing of the whole.
            Outcome::Allowed if passed && !degraded && self.is_near(check) => Some(Beside::Near),
            // A check that did not pass beside another that did, as of two quotas, rejected nothing.
            Outcome::Rejected if passed => None,
            Outcome::Rejected if !degraded && check.outcome().is_permanent() => Some(Beside::Permanent),
            Outcome::Rejected => Some(Beside::Limit),
            Outcome::ShadowRejected => Some(Beside::Shadow),
            Outcome::Allowed | Outcome::ShadowAllowed => None,
        };
        if check.is_overflowed() {
            self.overflow.get_or_create(&RuleLabel { rule: rule.to_owned() }).inc();
        }
        self.tally.of(rule, algorithm, |counters| {
            let labels = || CheckLabels { rule: rule.to_owned(), algorithm, outcome: outcome.name() };
            counters.outcome(outcome, || self.checks.get_or_create(&labels()).clone()).inc();
            if let Some(beside) = beside {
                counters.beside(beside, || self.beside(beside, rule.to_owned())).inc();
            }
        });
    }

    fn beside(&self, beside: Beside, rule: String) -> Counter {
        match beside {
            Beside::Near => self.near_limit.get_or_create(&RuleLabel { rule }).clone(),
            Beside::Shadow => self.shadow_rejected.get_or_create(&RuleLabel { rule }).clone(),
            Beside::Limit => self.rejected(rule, "limit"),
            Beside::Permanent => self.rejected(rule, "permanent"),
        }
    }

    fn is_near(&self, check: &CheckResult) -> bool {
        let outcome = check.outcome();
        let used = outcome.limit.saturating_sub(outcome.remaining);
        outcome.limit > 0 && used as f64 >= outcome.limit as f64 * self.near
    }

    fn rejected(&self, rule: String, reason: &'static str) -> Counter {
        let known = self.subject_types.read().unwrap_or_else(PoisonError::into_inner);
        // What is not among the rules is a limit for Envoy.
        let subject_type = known.get(&rule).map_or("descriptor", String::as_str).to_owned();
        self.rejected.get_or_create(&RejectedLabels { rule, subject_type, reason }).clone()
    }
}

impl Observer for Metrics {
    fn decided(&self, _: &Plan<'_>, decision: &Decision) {
        let (passed, degraded) = (decision.is_allowed(), decision.degraded().is_some());
        decision.checks().iter().for_each(|check| self.checked(check, passed, degraded));
        if let Some(reason) = decision.degraded() {
            let (outcome, reason) = (if decision.is_allowed() { "allowed" } else { "rejected" }, reason.as_str());
            self.degraded.get_or_create(&DegradedLabels { outcome, reason }).inc();
        }
    }

    fn no_rule(&self) {
        self.no_rule.inc();
    }

    fn undecided(&self, plan: &Plan<'_>, _: &StoreError) {
        for (rule, policy) in plan.policies() {
            self.fallback.get_or_create(&FallbackLabels { rule: rule.to_owned(), policy: policy.as_str() }).inc();
        }
    }
}

impl StoreCall {
    const fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Peek => "peek",
            Self::Adjust => "adjust",
            Self::Forget => "forget",
            Self::Ping => "ping",
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
