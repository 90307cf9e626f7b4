//! `CheckResponse`: a decision as JSON, the body of `POST /v1/check`. Subjects appear as hashes only. Pure.

use serde::Serialize;
use tidegate::spi::{CheckResult, Role};
use tidegate::{Decision, StoreErrorKind};

use crate::command::duration_text::whole_millis;

/// A decision as JSON. Times are whole milliseconds, rounded up.
#[derive(Debug, Serialize)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct CheckResponse<'d> {
    allowed: bool,
    rule: Option<&'d str>,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    delay_ms: u64,
    /// Denied, and waiting does not help.
    permanent: bool,
    degraded: bool,
    /// The kind of the store failure, if the store failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded_reason: Option<&'static str>,
    /// It passed above the amount of a quota, in its grace.
    #[serde(skip_serializing_if = "is_false")]
    in_grace: bool,
    shadow_would_reject: Vec<&'d str>,
    checks: Vec<CheckJson<'d>>,
}

/// One check of the decision.
#[derive(Debug, Serialize)]
struct CheckJson<'d> {
    rule: &'d str,
    name: &'d str,
    plan: &'d str,
    algorithm: &'static str,
    shadow: bool,
    allowed: bool,
    subject: String,
    cost: u64,
    /// `None` for a penalty, which blocks whatever a request costs.
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    delay_ms: u64,
    #[serde(skip_serializing_if = "is_false")]
    in_grace: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl<'d> CheckResponse<'d> {
    /// Converts a decision.
    pub fn new(decision: &'d Decision) -> Self {
        // Without the store the remaining amount is unknown; only the time to retry is reported.
        let by_store = decision.degraded().is_none();
        Self {
            allowed: decision.is_allowed(),
            rule: decision.rule(),
            limit: decision.limit().filter(|_| by_store),
            remaining: decision.remaining().filter(|_| by_store),
            retry_after_ms: decision.retry_after().map(whole_millis),
            reset_after_ms: decision.reset_after().filter(|_| by_store).map(whole_millis),
            delay_ms: whole_millis(decision.delay()),
            permanent: decision.is_permanent(),
            degraded: !by_store,
            degraded_reason: decision.degraded().map(StoreErrorKind::as_str),
            in_grace: by_store && decision.is_in_grace(),
            shadow_would_reject: decision.shadow_would_reject().collect(),
            checks: decision.checks().iter().filter(|_| by_store).map(CheckJson::new).collect(),
        }
    }
}

impl<'d> CheckJson<'d> {
    fn new(check: &'d CheckResult) -> Self {
        let outcome = check.outcome();
        Self {
            rule: check.rule(),
            name: check.limit_name(),
            plan: check.plan(),
            algorithm: check.algorithm().as_str(),
            shadow: check.role() == Role::Shadow,
            allowed: outcome.admitted,
            subject: check.subject().to_string(),
            cost: check.cost(),
            limit: check.has_amount().then_some(outcome.limit),
            remaining: check.has_amount().then_some(outcome.remaining),
            retry_after_ms: outcome.retry_after.filter(|_| !outcome.admitted).map(whole_millis),
            reset_after_ms: whole_millis(outcome.reset_after),
            delay_ms: whole_millis(outcome.delay),
            in_grace: outcome.in_grace,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::limits::{Period, Periods};
    use tidegate::{Limit, Limiter, MemoryStore, Request, Rule, RuleSet};

    use super::*;

    #[test]
    fn a_request_in_the_grace_of_a_quota_says_so_and_others_do_not() {
        let limit = Limit::quota_with_grace(1, 1, Periods::utc(Period::Year)).unwrap();
        let limiter = Limiter::new(RuleSet::new([Rule::new("year", limit)]).unwrap(), MemoryStore::new());
        let flags = [(); 3].map(|()| {
            let json = serde_json::to_value(CheckResponse::new(&limiter.check_now(&Request::new("")))).unwrap();
            (json["allowed"].clone(), json.get("in_grace").cloned(), json["checks"][0].get("in_grace").cloned())
        });
        let in_grace = Some(true.into());
        assert_eq!(
            flags,
            [(true.into(), None, None), (true.into(), in_grace.clone(), in_grace), (false.into(), None, None)]
        );
    }
}
