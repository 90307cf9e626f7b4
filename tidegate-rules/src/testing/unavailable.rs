//! `Unavailable`: what a test sees of a request that was refused because the store fails and a rule is closed then. Nothing was
//! decided, so there are no numbers to compare.

use tidegate::http::Rejection;
use tidegate::{OnFailure, Request};

use super::judge;
use super::script::Field;
use crate::RuleFile;

/// A request that was refused with 503.
pub(super) struct Unavailable<'s> {
    pub(super) rules: &'s RuleFile,
    pub(super) request: &'s Request<'s>,
}

impl Unavailable<'_> {
    /// A field of the answer, as it is shown.
    pub(super) fn field(&self, field: &Field) -> Option<String> {
        match field {
            Field::Status => Some(self.answer().status.to_string()),
            Field::Header(name) => {
                let headers = self.answer().headers;
                headers.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
            }
            Field::Message => judge::message(&self.answer()),
            Field::Permanent => Some(false.to_string()),
            _ => None,
        }
    }

    /// Which rule refuses it.
    pub(super) fn note(&self) -> Option<String> {
        let plan = self.rules.rules().resolve(self.request);
        let (rule, _) = plan.policies().find(|(_, policy)| *policy == OnFailure::Closed)?;
        Some(format!("the store fails, and `{rule}` is closed then"))
    }

    /// The answer as a door would send it.
    fn answer(&self) -> Rejection {
        self.rules.rules().header_policy().reject_unavailable(None)
    }
}
