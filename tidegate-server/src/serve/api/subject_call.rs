//! `SubjectCall`: the JSON body of the calls at the admin address that look up a subject. Errors quote no value.

use serde::Deserialize;
use tidegate_rules::SampleAttributes;

use super::input::{BadRequest, CheckBody, parse};

/// A call of `/v1/subjects/show` or `/v1/subjects/reset`.
pub(crate) struct SubjectCall {
    /// The next request of the subject, or as much of it as identifies the subject.
    pub(crate) attributes: SampleAttributes,
    /// The only rule to look at, if one is named.
    pub(crate) rule: Option<String>,
    /// Who resets it, and why. Only quotas with a ledger need it.
    pub(crate) author: Option<String>,
    pub(crate) reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubjectBody {
    request: CheckBody,
    rule: Option<String>,
    /// Only in a call of `/v1/subjects/reset`.
    author: Option<String>,
    /// Likewise.
    reason: Option<String>,
}

impl SubjectCall {
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, BadRequest> {
        let SubjectBody { request, rule, author, reason } = parse(body)?;
        Ok(Self { attributes: request.into_subject()?, rule, author, reason })
    }

    /// A call that changes nothing, so it has no author.
    pub(crate) fn for_reading(body: &[u8]) -> Result<Self, BadRequest> {
        let call = Self::from_json(body)?;
        if call.author.is_some() || call.reason.is_some() {
            return Err(BadRequest::new("`author` and `reason` have no effect here; leave them out"));
        }
        Ok(call)
    }
}
