//! `/v1/subjects/show` and `/v1/subjects/reset`: the buckets of a customer, what its next request would get, and a fresh start for it.
//!
//! A subject is described by a request, or by the part of one that identifies it: an API key, a user, an address; or by the digits of a line
//! of the refusal log. It is sent in the body, since addresses of calls end up in logs. A rule need not match that request: every rule counts that knows the whole
//! subject. Limits that all senders share are never reset.

mod buckets;
mod refused;
mod subject_plans;
mod tenant_search;

pub(super) use self::subject_plans::SubjectPlans;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate::attributes::PATH;
use tidegate::spi::{Check, Plan, Store};
use tidegate::{Decision, Limiter, Request, StoreError};
use tidegate_rules::RuleFile;

use self::buckets::{Buckets, peek};
use self::refused::find_refused;
use self::tenant_search::TenantSearch;
use super::usage::{AccountResets, UsageError, reset_accounts, split_ledger_checks};
use crate::calls::json_body::JsonBody;
use crate::doors::check::check_response::CheckResponse;
use crate::doors::check::{BadRequest, SubjectCall, SubjectDescription, rejected, unavailable};
use crate::engine::Engine;
use crate::engine::instrumented_store::InstrumentedStore;

/// Shows the buckets of a subject, and what its next request would get. Consumes nothing.
pub(super) async fn show(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, UsageError> {
    let call = SubjectCall::for_reading(&body)?;
    let ((limiter, file), request) = (engine.rules_in_force(), call.request());
    let mut subject = find_subject(&engine, (&limiter, &file), &call)?;
    let without_tenant = std::mem::take(&mut subject.without_tenant);
    let tenants = TenantSearch::run(&engine, (&limiter, &file), request.as_ref(), without_tenant).await;
    let shown = async {
        let next = request.as_ref().map(|request| limiter.plan(request));
        let checks = next.iter().flat_map(Plan::checks);
        let matching: BTreeSet<&str> = checks.map(|check| check.gate().rule().id.as_str()).collect();
        let buckets = Buckets::read(&limiter, &subject.plans, &matching).await?;
        Ok::<_, StoreError>((next_decision(&limiter, request.as_ref()).await?, buckets))
    };
    Ok(match shown.await {
        Ok((next, buckets)) => {
            let mut answer = rest(&subject, tenants.as_ref());
            answer["next"] = next.as_ref().map(CheckResponse::new).map_or(Value::Null, |next| json!(next));
            answer["buckets"] = buckets.into_json();
            Json(answer).into_response()
        }
        Err(error) => rejected(unavailable(limiter.rules(), &error)),
    })
}

/// Deletes the buckets of a subject, and writes an audit event. A quota with a ledger is reset by an entry with author and reason. If
/// there is nothing to delete, the answer says what was found.
pub(super) async fn reset(State(engine): State<Arc<Engine>>, JsonBody(body): JsonBody) -> Result<Response, UsageError> {
    let call = SubjectCall::from_json(&body)?;
    let ((limiter, file), request) = (engine.rules_in_force(), call.request());
    let mut subject = find_subject(&engine, (&limiter, &file), &call)?;
    let without_tenant = std::mem::take(&mut subject.without_tenant);
    let (accounts, others) = split_ledger_checks(&subject.plans);
    let found = Buckets::read_for_reset(&limiter, &subject.plans).await;
    let author = call.author.as_deref().unwrap_or_default();
    let mut resets = None;
    if let Some(ledger) = engine.ledger().filter(|_| !accounts.is_empty()) {
        let (Some(author), Some(reason)) = (call.author.as_deref(), call.reason.as_deref()) else {
            let message = "a quota with a ledger is reset by an entry of the ledger: send `author` and `reason`, or name another `rule`";
            return Err(BadRequest::new(message).into());
        };
        resets = Some(reset_accounts(ledger.service(), &accounts, author, reason).await?);
    }
    let mut rules = found.rules_with_state();
    rules.extend(resets.iter().flat_map(|resets| subject.rules_of_accounts(resets)));
    let overflowed = found.overflow_rules();
    let full: Vec<&str> =
        found.rules_of_all().into_iter().filter(|rule| !rules.contains(rule) && !overflowed.contains(rule)).collect();
    let subjects = subject.digits(&engine);
    let (rule_list, subject_list) = (list(&rules), subjects.join(" "));
    if let Err(error) = limiter.store().forget(&others).await {
        tracing::warn!(
            target: "tidegate::audit", rules = rule_list, subjects = subject_list, %error, "subject not reset: the store failed"
        );
        return Ok(rejected(unavailable(limiter.rules(), &error)));
    }
    let tenants = TenantSearch::run(&engine, (&limiter, &file), request.as_ref(), without_tenant).await;
    let mut answer = rest(&subject, tenants.as_ref());
    (answer["full"], answer["overflowed"]) = (json!(full), json!(overflowed));
    if rules.is_empty() {
        return Ok(nothing_to_reset(answer, &full, tenants.as_ref()));
    }
    tracing::info!(
        target: "tidegate::audit", rules = rule_list, subjects = subject_list, author, "subject reset by an administrator"
    );
    answer["reset"] = json!(rules);
    if let Ok(Some(next)) = next_decision(&limiter, request.as_ref()).await {
        answer["next"] = json!(CheckResponse::new(&next));
    }
    if let Some(resets) = &resets {
        answer["repaired"] = resets.repaired.into();
    }
    Ok(Json(answer).into_response())
}

/// The subject of a call. An error if the call does not describe a single one.
fn find_subject<'l>(
    engine: &Engine,
    (limiter, file): (&'l Limiter<InstrumentedStore>, &RuleFile),
    call: &SubjectCall,
) -> Result<SubjectPlans<'l>, UsageError> {
    let rule = call.rule.as_deref();
    match &call.subject {
        SubjectDescription::Request(attributes) => Ok(SubjectPlans::new(limiter, file, &attributes.request(), rule)?),
        SubjectDescription::Hash(digits) => find_refused(engine, (limiter, file), digits, rule),
    }
}

impl SubjectPlans<'_> {
    /// The rules with an account that had something to reset.
    fn rules_of_accounts<'s>(&'s self, resets: &AccountResets) -> Vec<&'s str> {
        let is_reset = |check: &&Check<'_>| check.gate().ledger().is_some() && resets.contains(check);
        self.plans.iter().flat_map(Plan::checks).filter(is_reset).map(|check| check.gate().rule().id.as_str()).collect()
    }

    /// A few digits of the subject under each rule, as in the refusal log.
    fn digits(&self, engine: &Engine) -> Vec<String> {
        let subjects = self.plans.iter().flat_map(Plan::checks).map(|check| check.key().subject());
        subjects.map(|subject| engine.refusals().digits(subject)).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// What the next request would get. `None` if only a subject is described: which rules its next request matches is not known.
async fn next_decision(
    limiter: &Limiter<InstrumentedStore>,
    request: Option<&Request<'_>>,
) -> Result<Option<Decision>, StoreError> {
    let Some(request) = request else { return Ok(None) };
    if request.attribute(PATH).is_none() && request.action().is_empty() {
        return Ok(None);
    }
    peek(limiter, &limiter.plan(request)).await.map(Some)
}

/// What an answer has about rules without a bucket of this subject, and about its tenants.
fn rest(subject: &SubjectPlans<'_>, tenants: Option<&TenantSearch>) -> Value {
    let SubjectPlans { incomplete, shared, .. } = subject;
    json!({ "incomplete": incomplete, "shared": shared, "tenants": tenants.map(TenantSearch::json) })
}

fn nothing_to_reset(mut answer: Value, full: &[&str], tenants: Option<&TenantSearch>) -> Response {
    let found = match (full, answer["overflowed"].as_array().is_some_and(|rules| !rules.is_empty())) {
        (_, true) => "The subject is counted in buckets that new subjects share, which are not reset.".to_owned(),
        ([], _) => "No rule counts by this subject alone. `incomplete` names what other rules need; limits that all senders share are \
                    not reset."
            .to_owned(),
        (full, _) => format!("Was full under {}: nothing to reset. Check who is meant.", full.join(", ")),
    };
    let message = [Some(found), tenants.map(TenantSearch::hint)].into_iter().flatten().collect::<Vec<_>>().join(" ");
    (answer["error"], answer["message"]) = ("nothing_to_reset".into(), message.into());
    (StatusCode::UNPROCESSABLE_ENTITY, Json(answer)).into_response()
}

fn list(rules: &BTreeSet<&str>) -> String {
    rules.iter().copied().collect::<Vec<_>>().join(" ")
}
