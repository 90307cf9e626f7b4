//! The subject that a line of the refusal log names by a few digits. It is found in the memory of this instance: the store is not searched.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate::Limiter;
use tidegate::spi::Subject;
use tidegate_rules::RuleFile;

use super::{SubjectPlans, UsageError};
use crate::engine::Engine;
use crate::engine::instrumented_store::InstrumentedStore;
use crate::observe::log::refusal_log::RefusedSubject;

/// The digits of a subject in a list of several.
const LISTED_DIGITS: usize = 16;

/// The most subjects in such a list.
const MAX_LISTED: usize = 20;

/// The plans of the only subject that this instance has refused in the last hour and whose hash begins with these digits. Otherwise the
/// response that says so: nothing is guessed.
pub(super) fn find_refused<'l>(
    engine: &Engine,
    (limiter, file): (&'l Limiter<InstrumentedStore>, &RuleFile),
    digits: &str,
    rule: Option<&str>,
) -> Result<SubjectPlans<'l>, UsageError> {
    let found = engine.refusals().find(digits, rule);
    let subjects: BTreeSet<Subject> = found.iter().map(|one| one.counted.subject()).collect();
    if subjects.len() > 1 {
        return Err(ambiguous(engine, &found).into());
    }
    let mut subject = SubjectPlans::default();
    for RefusedSubject { rule, plan, counted } in found {
        match file.identifies_subjects(&rule) {
            Some(true) => subject.plans.extend(limiter.rules().resolve_counted(&rule, &plan, &counted)),
            Some(false) => subject.shared.push(rule.to_string()),
            // The rule is not in force any more.
            None => {}
        }
    }
    if subject.plans.is_empty() && subject.shared.is_empty() { Err(unknown(engine).into()) } else { Ok(subject) }
}

fn unknown(engine: &Engine) -> Response {
    let mut message = "This instance has refused no subject with these digits in the last hour, under rules that are in force. Ask the \
                       instance whose log has the line."
        .to_owned();
    if !engine.has_secret() {
        message += " Without TIDEGATE_SECRET, digits are good for the process that wrote them only.";
    }
    let body = json!({ "error": "unknown_hash", "message": message });
    (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
}

fn ambiguous(engine: &Engine, found: &[RefusedSubject]) -> Response {
    let mut rules: BTreeMap<Subject, BTreeSet<&str>> = BTreeMap::new();
    for one in found {
        rules.entry(one.counted.subject()).or_default().insert(&one.rule);
    }
    let listed = |(subject, rules): (&Subject, &BTreeSet<&str>)| {
        let mut digits = engine.refusals().all_digits(*subject);
        digits.truncate(LISTED_DIGITS);
        json!({ "hash": digits, "rules": rules })
    };
    let matches: Vec<Value> = rules.iter().take(MAX_LISTED).map(listed).collect();
    let message = format!("{} subjects have these digits: send more digits, or a `rule`.", rules.len());
    let body = json!({ "error": "ambiguous_hash", "message": message, "matches": matches });
    (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
}
