//! `SubjectPlans`: what the rules count for a subject, whether or not they match the request that describes it.

use serde::Serialize;
use tidegate::spi::Plan;
use tidegate::{Limiter, Request};
use tidegate_rules::{RuleFile, SubjectStatus};

use crate::doors::check::BadRequest;
use crate::engine::instrumented_store::InstrumentedStore;

/// Maximum number of rules under which one call looks up a subject: each is a call to the store.
const MAX_RULES: usize = 200;

/// The plans of a subject, and the rules without one.
#[derive(Default)]
pub(in crate::admin) struct SubjectPlans<'l> {
    /// One for each rule that knows the subject.
    pub(in crate::admin) plans: Vec<Plan<'l>>,
    pub(super) incomplete: Vec<IncompleteRule>,
    /// Rules whose limit all senders share.
    pub(super) shared: Vec<String>,
    /// Rules that count the subject of each tenant separately, if the request has no tenant. They have a plan, too.
    pub(super) without_tenant: Vec<String>,
}

/// A rule that does not know the whole subject.
#[derive(Serialize)]
pub(super) struct IncompleteRule {
    rule: String,
    missing: Vec<String>,
}

impl<'l> SubjectPlans<'l> {
    /// The plans of the subject of `request` under every rule, or under the one that is named.
    pub(in crate::admin) fn new(
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
        let mut subject = Self::default();
        let found = file.for_each_subject(request, &mut |rule, status, matched| {
            if only.is_some_and(|only| only != rule) {
                return;
            }
            match status {
                SubjectStatus::Known => subject.plans.push(limiter.rules().resolve_match(matched)),
                SubjectStatus::WithoutTenant => {
                    subject.plans.push(limiter.rules().resolve_match(matched));
                    // A rule comes once for each value of a repeated cookie.
                    if subject.without_tenant.last().is_none_or(|last| last != rule) {
                        subject.without_tenant.push(rule.to_owned());
                    }
                }
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
}
