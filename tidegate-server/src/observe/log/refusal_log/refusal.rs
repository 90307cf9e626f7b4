//! `Refusal`: a refused request, as the log tells it.

use tidegate::spi::{CheckResult, CountedSubject, Origin, Plan, Role, Subject};
use tidegate::{Decision, StoreErrorKind};

/// The fields of a line that depend on the request.
pub(crate) struct Refusal<'a> {
    pub(crate) rule: &'a str,
    pub(crate) plan: &'a str,
    pub(crate) algorithm: &'static str,
    pub(crate) subject: Subject,
    /// The subject as the plan has counted it.
    pub(crate) counted: Option<CountedSubject>,
    /// `None` for a penalty.
    pub(crate) limit: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) reason: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) degraded: Option<&'static str>,
    pub(crate) origin: Origin,
}

impl<'a> Refusal<'a> {
    pub(crate) fn from_check(check: &'a CheckResult, decision: &Decision, plan: &Plan<'_>) -> Self {
        let outcome = check.outcome();
        let is_shadow = check.role() == Role::Shadow;
        let degraded = decision.degraded().map(StoreErrorKind::as_str);
        let retry_after = if is_shadow { outcome.retry_after } else { decision.retry_after() };
        let mut checks = plan.checks().iter();
        let own = checks.find(|own| own.gate().rule().id == check.rule() && own.key().subject() == check.subject());
        Self {
            rule: check.rule(),
            plan: check.plan(),
            algorithm: check.algorithm().as_str(),
            subject: check.subject(),
            counted: own.map(CountedSubject::from_check),
            limit: check.has_amount().then_some(outcome.limit),
            retry_after_ms: retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            reason: if outcome.is_permanent() && degraded.is_none() { "permanent" } else { "limit" },
            mode: if is_shadow { "shadow" } else { "enforced" },
            degraded,
            origin: plan.origin(),
        }
    }
}
