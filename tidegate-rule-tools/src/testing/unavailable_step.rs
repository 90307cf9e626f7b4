//! `UnavailableStep`: the result of a step whose last request was refused with 503, because the store fails and a rule is closed
//! then. There is no decision to compare.

use tidegate::http::Rejection;
use tidegate::{OnFailure, Request, StoreError};
use tidegate_rules::RuleFile;

use super::suite::DecisionField;

/// A request that was refused with 503.
pub(super) struct UnavailableStep<'s> {
    pub(super) rules: &'s RuleFile,
    pub(super) request: &'s Request<'s>,
    pub(super) error: &'s StoreError,
}

impl UnavailableStep<'_> {
    /// A field of the response, as printed.
    pub(super) fn field(&self, field: &DecisionField) -> Option<String> {
        match field {
            DecisionField::Status => Some(self.answer().status.to_string()),
            DecisionField::Header(name) => {
                let headers = self.answer().headers;
                headers.into_iter().find(|(header, _)| *header == name).map(|(_, value)| value)
            }
            DecisionField::Message => Some(self.answer().message),
            DecisionField::Body => Some(self.answer().body),
            DecisionField::Permanent | DecisionField::InGrace => Some(false.to_string()),
            _ => None,
        }
    }

    /// The rule that refuses it.
    pub(super) fn note(&self) -> Option<String> {
        let plan = self.rules.rules().resolve(self.request);
        let (rule, _) = plan.policies(self.error).find(|(_, policy)| *policy == OnFailure::Closed)?;
        Some(format!("the store fails, and `{rule}` is closed then"))
    }

    /// The response that a front end would send.
    fn answer(&self) -> Rejection {
        let rules = self.rules.rules();
        rules.header_policy().reject_unavailable(self.error, rules.resolve(self.request).error_format(), None)
    }
}
