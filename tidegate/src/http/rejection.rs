//! `Rejection`: the HTTP response to a refused request, the same for every front end. It never names a subject, a key or a tenant.

use std::time::Duration;

use super::error_format::QUOTA_USED;
use super::header_policy::{self, Headers};
use super::json_object::JsonObject;
use crate::algorithm::Outcome;
use crate::algorithm::concurrency::RETRY;
use crate::decision::RETRY_AFTER_FAILURE;
use crate::http::{ErrorFormat, HeaderPolicy};
use crate::limits::Algorithm;
use crate::plan::Role;
use crate::spi::CheckResult;
use crate::{Decision, RequestProblem, StoreError, StoreErrorKind};

/// The name of a denial, for programs.
const DENIED: &str = "rate_limit_exceeded";

const DENIED_MESSAGE: &str = "Too many requests. Retry later.";
/// For security rules: does not even say whether waiting helps.
const SECURITY_MESSAGE: &str = "Too many requests.";
const PERMANENT_MESSAGE: &str = "The request costs more than the limit ever allows at once. Waiting does not help.";
const UNAVAILABLE_MESSAGE: &str = "The request cannot be checked against its limits at the moment. Retry later.";
const OVERLOADED_MESSAGE: &str = "Too many requests wait to be checked against their limits. Retry later.";

/// The maximum number of media ranges read from an `Accept` field. Browsers send fewer than ten.
const MAX_MEDIA_RANGES: usize = 64;

/// The response to a refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// 429 or 503; 400, 413 or 431 for a request that cannot be judged.
    pub status: u16,
    /// The message, which the body contains too.
    pub message: String,
    /// All header fields, including `content-type` and `cache-control`.
    pub headers: Headers,
    /// A JSON object in the [format](ErrorFormat) of the rule, or a problem document if the client prefers that.
    pub body: String,
}

impl Rejection {
    /// A rejection from its parts.
    pub const fn new(status: u16, message: String, headers: Headers, body: String) -> Self {
        Self { status, message, headers, body }
    }
}

/// Rejecting
impl HeaderPolicy {
    /// The response to a denied request: 429 with the fields of [`headers`](Self::headers), or the status of its
    /// [problem](Decision::problem) without such fields.
    ///
    /// `message` is the message of the rule ([`Rule::message`](crate::Rule::message)), `accept` the `Accept` field of the request. The
    /// body has the [format](Decision::error_format) that the decision names, else that of this policy, unless `accept` prefers
    /// `application/problem+json`.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};
    /// use tidegate::http::HeaderPolicy;
    ///
    /// let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(1, Rate::per_minute(4)?)?)])?;
    /// let limiter = Limiter::new(rules, MemoryStore::new().with_clock(ManualClock::default()));
    /// assert!(limiter.check_now(&Request::new("")).is_allowed());
    ///
    /// let rejection = HeaderPolicy::new().reject(&limiter.check_now(&Request::new("")), None, None);
    /// assert_eq!(rejection.status, 429);
    /// assert!(rejection.headers.contains(&("retry-after", "15".to_owned())));
    /// assert_eq!(
    ///     rejection.body,
    ///     r#"{"error":"rate_limit_exceeded","message":"Too many requests. Retry later.","#.to_owned()
    ///         + r#""rule_id":"api","retry_after":15,"retry_after_ms":15000}"#
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reject(&self, decision: &Decision, message: Option<&str>, accept: Option<&str>) -> Rejection {
        let format = ErrorFormat::for_client(decision.error_format().unwrap_or(self.error_format()), accept);
        if let Some(problem) = decision.problem() {
            return reject_problem(problem, format);
        }
        let security = decision.is_security();
        let message = message.unwrap_or(match (security, decision.is_permanent()) {
            (true, _) => SECURITY_MESSAGE,
            (false, true) => PERMANENT_MESSAGE,
            (false, false) => DENIED_MESSAGE,
        });
        let retry = decision.retry_after().map(|retry| header_policy::shown_retry(retry, security));
        let members = match format {
            ErrorFormat::Json => JsonObject::new()
                .with("error", DENIED)
                .with("message", message)
                .with_some("rule_id", decision.rule().filter(|_| !security))
                .retry(retry),
            ErrorFormat::Problem => JsonObject::problem("quota-exceeded", "Quota exceeded", 429, message)
                .with_some("violated-policies", violated_policies(decision).filter(|_| !security))
                .retry(retry),
            ErrorFormat::OpenAi => {
                let is_used_up = !security && is_denied_by_used_quota(decision);
                JsonObject::openai(429, if is_used_up { QUOTA_USED } else { DENIED }, message)
            }
        };
        let headers = add_body_fields(self.headers(decision), format);
        Rejection { status: 429, message: message.to_owned(), headers, body: members.finish() }
    }

    /// The response if the store failed with `error` and the request is refused then: 503, since no limit is exceeded. The body
    /// says whether this instance is [overloaded](StoreErrorKind::Overloaded). It has the [format of the
    /// plan](crate::spi::Plan::error_format), or that of this policy for `None`.
    pub fn reject_unavailable(
        &self,
        error: &StoreError,
        format: Option<ErrorFormat>,
        accept: Option<&str>,
    ) -> Rejection {
        let (name, title, message) = match error.kind() {
            StoreErrorKind::Overloaded => ("overloaded", "Overloaded", OVERLOADED_MESSAGE),
            _ => ("temporarily_unavailable", "Temporarily unavailable", UNAVAILABLE_MESSAGE),
        };
        let format = ErrorFormat::for_client(format.unwrap_or(self.error_format()), accept);
        let retry = Some(RETRY_AFTER_FAILURE);
        let members = match format {
            ErrorFormat::Json => JsonObject::new().with("error", name).with("message", message).retry(retry),
            ErrorFormat::Problem => JsonObject::problem("temporary-reduced-capacity", title, 503, message).retry(retry),
            ErrorFormat::OpenAi => JsonObject::openai(503, name, message),
        };
        let mut headers = Headers::new();
        self.push_retry(&mut headers, RETRY_AFTER_FAILURE, false);
        let headers = add_body_fields(headers, format);
        Rejection { status: 503, message: message.to_owned(), headers, body: members.finish() }
    }
}

/// The response to a request that cannot be judged.
fn reject_problem(problem: &RequestProblem, format: ErrorFormat) -> Rejection {
    let (status, message) = (problem.status(), problem.to_string());
    let body = format.error_body(status, "bad_request", &message);
    Rejection { status, message, headers: add_body_fields(Headers::new(), format), body }
}

/// Adds the fields about the body, which must not be cached.
fn add_body_fields(mut headers: Headers, format: ErrorFormat) -> Headers {
    headers.push(("content-type", format.media_type().to_owned()));
    headers.push(("cache-control", "no-store".to_owned()));
    headers
}

/// Whether the allowance of a quota is used up, so that only the next period helps: neither open reservations nor the cost of the request
/// are the reason. Without the store, that is not known.
fn is_denied_by_used_quota(decision: &Decision) -> bool {
    let is_used = |check: &CheckResult| {
        let Outcome { retry_after, limit, .. } = check.outcome();
        check.algorithm() == Algorithm::Quota && retry_after.map_or(*limit == 0, |retry| retry > RETRY)
    };
    decision.degraded().is_none() && decision.most_restrictive().is_some_and(is_used)
}

/// The names of the limits that denied the request, if any.
fn violated_policies(decision: &Decision) -> Option<Vec<String>> {
    let refuses = |check: &&CheckResult| match check.role() {
        Role::AnyOf(_) => header_policy::enforced(decision).all(|m| m.role() != check.role() || !m.outcome().admitted),
        _ => !check.outcome().admitted,
    };
    let names: Vec<_> = header_policy::enforced(decision).filter(refuses).map(header_policy::policy_name).collect();
    (!names.is_empty()).then(|| names.into_iter().map(Into::into).collect())
}

// === impl ErrorFormat ===

impl ErrorFormat {
    /// A problem document if the client names it and does not prefer plain JSON; otherwise this format, whatever the client accepts.
    fn for_client(self, accept: Option<&str>) -> Self {
        let (mut problem, mut json) = (None, [None; 3]);
        for range in accept.unwrap_or_default().split(',').take(MAX_MEDIA_RANGES) {
            let Some((name, quality)) = media_range(range) else { continue };
            let best = match name {
                _ if name.eq_ignore_ascii_case("application/problem+json") => &mut problem,
                _ if name.eq_ignore_ascii_case("application/json") => &mut json[0],
                _ if name.eq_ignore_ascii_case("application/*") => &mut json[1],
                "*/*" => &mut json[2],
                _ => continue,
            };
            *best = (*best).max(Some(quality));
        }
        // The most specific range that includes JSON counts.
        let json = json.into_iter().flatten().next().unwrap_or(0);
        if problem.is_some_and(|quality| quality > 0 && quality >= json) { Self::Problem } else { self }
    }
}

/// A media range and its quality in thousandths; `None` for an invalid quality.
fn media_range(range: &str) -> Option<(&str, u16)> {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next()?;
    let mut parameters = parts.filter_map(|part| part.split_once('='));
    match parameters.find(|(name, _)| name.trim_end().eq_ignore_ascii_case("q")) {
        Some((_, quality)) => Some((name, thousandths(quality.trim_start())?)),
        None => Some((name, 1000)),
    }
}

/// A number from 0 to 1 with up to three decimals, in thousandths.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction = format!("{fraction:0<3}").parse::<u16>().ok()?;
    match whole {
        "0" => Some(fraction),
        "1" if fraction == 0 => Some(1000),
        _ => None,
    }
}

// === impl JsonObject ===

impl JsonObject {
    /// A problem document (RFC 9457) of a registered type.
    fn problem(kind: &str, title: &str, status: u16, detail: &str) -> Self {
        Self::new()
            .with("type", format!("https://iana.org/assignments/http-problem-types#{kind}"))
            .with("title", title)
            .with("status", status)
            .with("detail", detail)
    }

    fn retry(self, retry: Option<Duration>) -> Self {
        self.with_some("retry_after", retry.map(header_policy::retry_seconds))
            .with_some("retry_after_ms", retry.map(header_policy::retry_millis))
    }
}

#[cfg(test)]
mod tests;
