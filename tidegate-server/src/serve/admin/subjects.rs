//! `/v1/subjects/show` and `/v1/subjects/reset`: the buckets of a customer, what its next request would get, and a fresh start for it.
//!
//! A subject is described by a request, or by the part of one that identifies it: an API key, a user, an address. It is sent in the
//! body, since addresses of calls end up in logs. A rule need not match that request: every rule counts that knows the whole
//! subject. Limits that all senders share are never reset.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use tidegate::spi::{Check, Plan, Store};
use tidegate::{Decision, Limiter, OnFailure, OutstandingReservations, Request, StoreError};
use tidegate_rules::{RuleFile, SubjectStatus};

use super::usage::{AccountResets, UsageError, reset_accounts, split_ledger_checks};
use crate::check_response::CheckResponse;
use crate::serve::api::{BadRequest, SubjectCall, rejected};
use crate::serve::engine::Engine;
use crate::serve::instrumented_store::InstrumentedStore;
use crate::serve::json_body::JsonBody;

/// Maximum number of rules under which one call looks up a subject: each is a call to the store.
const MAX_RULES: usize = 200;

/// The plans of a subject.
pub(super) struct SubjectPlans<'l> {
    /// One for each rule that knows the subject.
    pub(super) plans: Vec<Plan<'l>>,
    incomplete: Vec<IncompleteRule>,
    /// Rules whose limit all senders share.
    shared: Vec<String>,
}

/// A rule that does not know the whole subject.
#[derive(Serialize)]
struct IncompleteRule {
    rule: String,
    missing: Vec<String>,
}

/// Shows the buckets of a subject, and what its next request would get. Consumes nothing.
pub(super) async fn show(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, BadRequest> {
    let call = SubjectCall::for_reading(&body)?;
    let ((limiter, file), request) = (engine.rules_in_force(), call.attributes.request());
    let subject = SubjectPlans::new(&limiter, &file, &request, call.rule.as_deref())?;
    Ok(match subject.show(&limiter, &request).await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => unavailable(&limiter, &error),
    })
}

/// Deletes the buckets of a subject, and writes an audit event. A quota with a ledger is reset by an entry with author and reason.
pub(super) async fn reset(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, UsageError> {
    let call = SubjectCall::from_json(&body)?;
    let ((limiter, file), request) = (engine.rules_in_force(), call.attributes.request());
    let subject = SubjectPlans::new(&limiter, &file, &request, call.rule.as_deref())?;
    if subject.plans.is_empty() {
        return Ok(nothing_to_reset(&subject));
    }
    let (accounts, others) = split_ledger_checks(&subject.plans);
    let author = call.author.as_deref().unwrap_or_default();
    let mut resets = None;
    if let Some(ledger) = engine.ledger().filter(|_| !accounts.is_empty()) {
        let (Some(author), Some(reason)) = (call.author.as_deref(), call.reason.as_deref()) else {
            let message = "a quota with a ledger is reset by an entry of the ledger: send `author` and `reason`, or name another `rule`";
            return Err(BadRequest::new(message).into());
        };
        let done = reset_accounts(ledger.service(), &accounts, author, reason).await?;
        if done.is_empty() && others.is_empty() {
            return Ok(nothing_used(&subject));
        }
        resets = Some(done);
    }
    let (rules, subjects) = (subject.rules_reset(resets.as_ref()), subject.digits(&engine));
    let (rule_list, subject_list) = (rules.join(" "), subjects.join(" "));
    match limiter.store().forget(&others).await {
        Ok(()) => {
            tracing::info!(
                target: "tidegate::audit", rules = rule_list, subjects = subject_list, author, "subject reset by an administrator"
            );
            let SubjectPlans { incomplete, shared, .. } = subject;
            let mut answer = json!({ "reset": rules, "incomplete": incomplete, "shared": shared });
            if let Some(resets) = resets {
                answer["repaired"] = resets.repaired.into();
            }
            Ok(Json(answer).into_response())
        }
        Err(error) => {
            tracing::warn!(
                target: "tidegate::audit", rules = rule_list, subjects = subject_list, %error, "subject not reset: the store failed"
            );
            Ok(unavailable(&limiter, &error))
        }
    }
}

impl<'l> SubjectPlans<'l> {
    /// The plans of the subject of `request` under every rule, or under the one that is named.
    pub(super) fn new(
        limiter: &'l Limiter<InstrumentedStore>,
        file: &RuleFile,
        request: &Request<'_>,
        only: Option<&str>,
    ) -> Result<Self, BadRequest> {
        if let Some(rule) = only
            && limiter.rules().rule(rule).is_none()
        {
            return Err(BadRequest::new("rule: there is no such rule, or it is disabled"));
        }
        let mut subject = Self { plans: Vec::new(), incomplete: Vec::new(), shared: Vec::new() };
        let found = file.for_each_subject(request, &mut |rule, status, matched| {
            if only.is_some_and(|only| only != rule) {
                return;
            }
            match status {
                SubjectStatus::Known => subject.plans.push(limiter.rules().resolve_match(matched)),
                SubjectStatus::Incomplete(missing) => {
                    subject.incomplete.push(IncompleteRule { rule: rule.to_owned(), missing });
                }
                _ => subject.shared.push(rule.to_owned()),
            }
        });
        found.map_err(|problem| BadRequest::new(problem.to_string()))?;
        let rules = subject.plans.len();
        if rules > MAX_RULES {
            let message = format!("{rules} rules know this subject; at most {MAX_RULES} at once, so name a `rule`");
            return Err(BadRequest::new(message));
        }
        Ok(subject)
    }

    async fn show(self, limiter: &Limiter<InstrumentedStore>, request: &Request<'_>) -> Result<Value, StoreError> {
        let next = limiter.plan(request);
        let matching: BTreeSet<&str> = next.checks().iter().map(|check| check.gate().rule()).collect();
        let mut buckets = Vec::new();
        for plan in &self.plans {
            let (decision, reserved) = (peek(limiter, plan).await?, limiter.outstanding_plan(plan).await?);
            buckets.extend(buckets_json(&decision, &reserved, &matching));
        }
        let next = peek(limiter, &next).await?;
        let Self { incomplete, shared, .. } = self;
        Ok(json!({ "next": CheckResponse::new(&next), "buckets": buckets, "incomplete": incomplete, "shared": shared }))
    }

    /// The ids of the rules that know the subject, except those of which it has only quotas that it has not used.
    fn rules_reset(&self, resets: Option<&AccountResets>) -> Vec<String> {
        let is_reset =
            |check: &&Check<'_>| check.gate().ledger().is_none() || resets.is_none_or(|resets| resets.contains(check));
        let checks = self.plans.iter().flat_map(Plan::checks).filter(is_reset);
        let ids = checks.map(|check| check.gate().rule().to_owned());
        ids.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A few digits of the subject under each rule, as in the refusal log.
    fn digits(&self, engine: &Engine) -> Vec<String> {
        let subjects = self.plans.iter().flat_map(Plan::checks).map(|check| check.key().subject());
        subjects.map(|subject| engine.refusals().digits(subject)).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// The state of a plan in the store. Without the store there is no answer: a decision of this instance alone would say nothing about
/// the subject.
async fn peek(limiter: &Limiter<InstrumentedStore>, plan: &Plan<'_>) -> Result<Decision, StoreError> {
    limiter.check_plan(&plan.clone().with_peek().with_observed(false).with_on_failure(OnFailure::Closed)).await
}

/// The checks of a decision as buckets: as in the check API, with what is reserved of them, and whether their rule matches the request.
fn buckets_json(decision: &Decision, reserved: &[OutstandingReservations], matching: &BTreeSet<&str>) -> Vec<Value> {
    let mut answer = serde_json::to_value(CheckResponse::new(decision)).unwrap_or_default();
    let Some(Value::Array(checks)) = answer.get_mut("checks").map(Value::take) else { return Vec::new() };
    let with_match = |mut check: Value| {
        let matches = check["rule"].as_str().is_some_and(|rule| matching.contains(rule));
        check["matches"] = matches.into();
        let is_same = |one: &&OutstandingReservations| {
            check["rule"] == one.rule.as_str() && check["name"] == one.limit_name.as_str()
        };
        if let Some(reserved) = reserved.iter().find(is_same).filter(|reserved| reserved.reservations > 0) {
            check["reserved"] = json!({ "reservations": reserved.reservations, "units": reserved.units });
        }
        check
    };
    checks.into_iter().map(with_match).collect()
}

fn nothing_to_reset(subject: &SubjectPlans<'_>) -> Response {
    let message = "No rule counts by this subject alone. `incomplete` names what other rules need; limits that all senders share are \
                   not reset.";
    unprocessable(subject, message)
}

fn nothing_used(subject: &SubjectPlans<'_>) -> Response {
    unprocessable(
        subject,
        "The subject has used nothing: the ledger has no account of it under these rules. Check the tenant.",
    )
}

fn unprocessable(subject: &SubjectPlans<'_>, message: &str) -> Response {
    let SubjectPlans { incomplete, shared, .. } = subject;
    let body = json!({ "error": "nothing_to_reset", "message": message, "incomplete": incomplete, "shared": shared });
    (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
}

fn unavailable(limiter: &Limiter<InstrumentedStore>, error: &StoreError) -> Response {
    rejected(limiter.rules().header_policy().reject_unavailable(error, None))
}
