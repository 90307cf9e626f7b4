//! `SubjectCall`: the JSON body of the calls at the admin address that look up a subject. Errors quote no value.

use std::ops::RangeInclusive;

use serde::Deserialize;
use tidegate::Request;
use tidegate::attributes::RequestAttributes;

use super::input::{BadRequest, CheckBody, parse};

/// The digits of a subject in a call: those of a line of the log, up to all.
const HASH_DIGITS: RangeInclusive<usize> = 8..=32;

/// The longest author or reason, as in an entry of the ledger. The log has the author of every reset.
const MAX_TEXT_BYTES: usize = 1_000;

/// A call of `/v1/subjects/show` or `/v1/subjects/reset`.
pub(crate) struct SubjectCall {
    pub(crate) subject: SubjectDescription,
    /// The only rule to look at, if one is named.
    pub(crate) rule: Option<String>,
    /// Who resets it, and why. Only quotas with a ledger need it.
    pub(crate) author: Option<String>,
    pub(crate) reason: Option<String>,
}

/// Who a subject is.
pub(crate) enum SubjectDescription {
    /// Its next request, or as much of it as identifies the subject.
    Request(Box<RequestAttributes<'static>>),
    /// The first digits of its hash, from a line of the refusal log.
    Hash(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubjectBody {
    request: Option<CheckBody>,
    hash: Option<String>,
    rule: Option<String>,
    /// Only in a call of `/v1/subjects/reset`.
    author: Option<String>,
    /// Likewise.
    reason: Option<String>,
}

impl SubjectCall {
    pub(crate) fn from_json(body: &[u8]) -> Result<Self, BadRequest> {
        let SubjectBody { request, hash, rule, author, reason } = parse(body)?;
        let subject = match (request, hash) {
            (Some(request), None) => SubjectDescription::Request(Box::new(request.into_subject()?)),
            (None, Some(hash)) => SubjectDescription::Hash(digits(&hash)?),
            _ => return Err(BadRequest::new("send either `request`, which identifies the subject, or `hash`")),
        };
        require_line("author", author.as_deref())?;
        require_line("reason", reason.as_deref())?;
        Ok(Self { subject, rule, author, reason })
    }

    /// The request that describes the subject, if one does.
    pub(crate) fn request(&self) -> Option<Request<'_>> {
        match &self.subject {
            SubjectDescription::Request(attributes) => Some(attributes.request()),
            SubjectDescription::Hash(_) => None,
        }
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

fn require_line(name: &str, text: Option<&str>) -> Result<(), BadRequest> {
    let Some(text) = text else { return Ok(()) };
    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
        let message =
            format!("{name}: this must be a text of at most {MAX_TEXT_BYTES} bytes without control characters");
        return Err(BadRequest::new(message));
    }
    Ok(())
}

/// The first digits of a hash, in small letters.
fn digits(hash: &str) -> Result<String, BadRequest> {
    let is_hexadecimal = hash.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hexadecimal || !HASH_DIGITS.contains(&hash.len()) {
        let (least, most) = (HASH_DIGITS.start(), HASH_DIGITS.end());
        let message =
            format!("hash: this must be {least} to {most} hexadecimal digits, as `subject` in a line of the log");
        return Err(BadRequest::new(message));
    }
    Ok(hash.to_ascii_lowercase())
}
