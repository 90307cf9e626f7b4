//! `HeaderPolicy`: chooses and writes the header fields about limits. It depends on the [`Decision`] alone, and never names a
//! subject, a key or a shadow rule.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::http::{ErrorFormat, HeaderField};
use crate::limits::Algorithm;
use crate::plan::Role;
use crate::spi::CheckResult;
use crate::{Decision, Timestamp, decimal};

/// The largest number in any field: the largest integer of a structured field (RFC 9651).
const MAX_FIELD_NUMBER: u64 = 999_999_999_999_999;

/// The parameters of an item of `RateLimit-Policy`: quota and window.
const POLICY_PARAMETERS: [&str; 2] = [";q=", ";w="];
/// The parameters of an item of `RateLimit`: remaining and time.
const REMAINING_PARAMETERS: [&str; 2] = [";r=", ";t="];

/// The parameter of an item of `RateLimit-Policy` for a concurrency limit, instead of a window: its unit.
const HELD_UNIT: &str = ";qu=\"concurrent-requests\"";

/// Fields for limit, remaining and reset.
type FieldTriple = [HeaderField; 3];

const X_RATELIMIT: FieldTriple = [HeaderField::XLimit, HeaderField::XRemaining, HeaderField::XReset];
const LEGACY_RATELIMIT: FieldTriple = [HeaderField::Limit, HeaderField::Remaining, HeaderField::Reset];

/// The initial capacity for the text of a field.
const FIELD_CAPACITY_BYTES: usize = 64;

/// Header fields: names in lower case, each once, with their values.
pub type Headers = Vec<(&'static str, String)>;

/// Which header fields about limits a response has, and the format of the body of a refusal.
///
/// ```
/// use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};
/// use tidegate::http::HeaderPolicy;
///
/// let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?)])?;
/// let limiter = Limiter::new(rules, MemoryStore::new().with_clock(ManualClock::default()));
/// let decision = limiter.check_now(&Request::new(""));
///
/// let headers = HeaderPolicy::new().with_x_ratelimit(None).headers(&decision);
/// assert_eq!(headers[0], ("ratelimit-policy", r#""api";q=20;w=2"#.to_owned()));
/// assert_eq!(headers[1], ("ratelimit", r#""api";r=19;t=1"#.to_owned()));
/// assert_eq!(headers.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeaderPolicy {
    ratelimit: Option<Draft>,
    x_ratelimit: Option<ResetFormat>,
    legacy_ratelimit: Option<ResetFormat>,
    retry_after_ms: bool,
    error_format: ErrorFormat,
}

/// A revision of the IETF draft that describes `RateLimit` and `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Draft {
    /// `draft-ietf-httpapi-ratelimit-headers-11`. Revisions 08 to 11 look the same on the wire.
    #[default]
    Draft11,
}

/// The format of a `-Reset` field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetFormat {
    /// Seconds since 1970 at which the limit is reset.
    #[default]
    Epoch,
    /// Seconds from now.
    Delta,
}

/// An unknown revision of the draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDraft;

impl Default for HeaderPolicy {
    fn default() -> Self {
        Self::new()
    }
}

/// Choosing the fields
impl HeaderPolicy {
    /// `RateLimit` and `RateLimit-Policy` of the newest draft, `X-RateLimit-*` with the reset in seconds since 1970, and
    /// `retry-after-ms` beside `Retry-After`.
    pub const fn new() -> Self {
        Self {
            ratelimit: Some(Draft::Draft11),
            x_ratelimit: Some(ResetFormat::Epoch),
            legacy_ratelimit: None,
            retry_after_ms: true,
            error_format: ErrorFormat::Json,
        }
    }

    /// Sets the revision of `RateLimit` and `RateLimit-Policy`; `None` for no such fields.
    pub const fn with_ratelimit(mut self, draft: Option<Draft>) -> Self {
        self.ratelimit = draft;
        self
    }

    /// Sets the format of `X-RateLimit-Limit`, `-Remaining` and `-Reset`; `None` for no such fields.
    pub const fn with_x_ratelimit(mut self, reset: Option<ResetFormat>) -> Self {
        self.x_ratelimit = reset;
        self
    }

    /// Sets the format of `RateLimit-Limit`, `-Remaining` and `-Reset` of draft revisions before 07; `None` for no such fields.
    pub const fn with_legacy_ratelimit(mut self, reset: Option<ResetFormat>) -> Self {
        self.legacy_ratelimit = reset;
        self
    }

    /// Sets whether `retry-after-ms` is added to `Retry-After`. Some client libraries read it first.
    pub const fn with_retry_after_ms(mut self, on: bool) -> Self {
        self.retry_after_ms = on;
        self
    }

    /// Sets the format of refusals by rules that say [nothing](crate::Rule::error_format) about it, and of requests that cannot be judged
    /// before the rules are known.
    pub const fn with_error_format(mut self, format: ErrorFormat) -> Self {
        self.error_format = format;
        self
    }
}

/// The chosen fields
impl HeaderPolicy {
    /// The revision of the draft for `RateLimit` and `RateLimit-Policy`; `None` if they are off.
    pub const fn ratelimit(&self) -> Option<Draft> {
        self.ratelimit
    }

    /// The form of `X-RateLimit-Reset`; `None` if the `X-RateLimit-*` fields are off.
    pub const fn x_ratelimit(&self) -> Option<ResetFormat> {
        self.x_ratelimit
    }

    /// The form of `RateLimit-Reset`; `None` if the older `RateLimit-*` fields are off.
    pub const fn legacy_ratelimit(&self) -> Option<ResetFormat> {
        self.legacy_ratelimit
    }

    /// Whether `retry-after-ms` is on.
    pub const fn retry_after_ms(&self) -> bool {
        self.retry_after_ms
    }

    /// The format of refusals by rules that say nothing about it.
    pub const fn error_format(&self) -> ErrorFormat {
        self.error_format
    }
}

/// Writing the fields
impl HeaderPolicy {
    /// The header fields for a decision.
    ///
    /// A request in the [grace](Decision::is_in_grace) of a quota has `X-Tidegate-Grace: true`, whichever fields are chosen.
    ///
    /// There are none if no rule applied, or only shadow rules. If a security rule applied, or the decision is
    /// [degraded](Decision::degraded), there is at most `Retry-After`, and `retry-after-ms` with it. A permanent denial has neither.
    pub fn headers(&self, decision: &Decision) -> Headers {
        let mut headers = Headers::new();
        self.for_each_field(decision, |field, text| headers.push((field.name(), text.to_owned())));
        headers
    }

    /// Calls `write` with each field of [`headers`](Self::headers), without collecting them.
    pub fn for_each_field(&self, decision: &Decision, mut write: impl FnMut(HeaderField, &str)) {
        let mut text = String::with_capacity(FIELD_CAPACITY_BYTES);
        let security = decision.is_security();
        // Security rules alone have penalties, so no field shows one.
        if let Some(check) = decision.most_restrictive().filter(|_| !security && decision.degraded().is_none()) {
            if let Some(Draft::Draft11) = self.ratelimit {
                push_policies(&mut text, decision);
                write(HeaderField::Policy, &text);
                text.clear();
                push_remaining(&mut text, decision);
                write(HeaderField::RateLimit, &text);
            }
            for (fields, reset) in [(X_RATELIMIT, self.x_ratelimit), (LEGACY_RATELIMIT, self.legacy_ratelimit)] {
                // Slots come back when requests end: a client that waited for a reset would wait for nothing.
                let Some(reset) = reset.filter(|_| !is_held(check)) else { continue };
                for (field, number) in fields.into_iter().zip(numbers(check, reset, decision.decided_at())) {
                    write_number(&mut text, field, number, &mut write);
                }
            }
            if decision.is_in_grace() {
                write(HeaderField::Grace, "true");
            }
        }
        if let Some(retry) = decision.retry_after() {
            self.for_each_retry_field(&mut text, retry, security, &mut write);
        }
    }

    /// Adds `Retry-After`, and `retry-after-ms` if it is on: of a security rule in whole seconds, too.
    pub(crate) fn push_retry(&self, headers: &mut Headers, retry: Duration, security: bool) {
        self.for_each_retry_field(&mut String::new(), retry, security, &mut |field: HeaderField, text: &str| {
            headers.push((field.name(), text.to_owned()));
        });
    }

    fn for_each_retry_field(
        &self,
        text: &mut String,
        retry: Duration,
        security: bool,
        write: &mut impl FnMut(HeaderField, &str),
    ) {
        write_number(text, HeaderField::RetryAfter, retry_seconds(retry), write);
        if self.retry_after_ms {
            write_number(text, HeaderField::RetryAfterMs, retry_millis(shown_retry(retry, security)), write);
        }
    }
}

// === impl Draft ===

impl FromStr for Draft {
    type Err = UnknownDraft;

    fn from_str(text: &str) -> Result<Self, UnknownDraft> {
        match text {
            "draft-11" | "draft-10" | "draft-09" | "draft-9" | "draft-08" | "draft-8" => Ok(Self::Draft11),
            _ => Err(UnknownDraft),
        }
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Draft11 => f.write_str("draft-11"),
        }
    }
}

impl fmt::Display for UnknownDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a revision of the RateLimit fields that can be written; give one of draft-08 to draft-11")
    }
}

impl Error for UnknownDraft {}

// === Values ===

/// The checks without those of shadow rules.
pub(crate) fn enforced(decision: &Decision) -> impl Iterator<Item = &CheckResult> {
    decision.checks().iter().filter(|check| check.role() != Role::Shadow)
}

/// Whether a check is of a concurrency limit, which has no window and no time of reset.
fn is_held(check: &CheckResult) -> bool {
    check.algorithm() == Algorithm::Concurrency
}

/// The name of a limit in fields and problem documents: printable ASCII, everything else percent-encoded.
pub(crate) fn policy_name(check: &CheckResult) -> Cow<'_, str> {
    let (rule, limit) = (check.rule(), check.limit_name());
    let plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'%';
    if limit.is_empty() && rule.bytes().all(plain) {
        return Cow::Borrowed(rule);
    }
    let mut name = String::with_capacity(rule.len() + 1 + limit.len());
    let dot = if limit.is_empty() { "" } else { "." };
    for byte in rule.bytes().chain(dot.bytes()).chain(limit.bytes()) {
        if plain(byte) {
            name.push(char::from(byte));
        } else {
            name.push('%');
            name.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])));
        }
    }
    Cow::Owned(name)
}

/// `RateLimit-Policy`: the limits, the same in every response.
fn push_policies(text: &mut String, decision: &Decision) {
    push_list(text, decision, POLICY_PARAMETERS, |check| {
        let quota = check.outcome().limit;
        // Months and years vary and are omitted.
        let window = check.window().duration().map(seconds).filter(|window| quota > 0 && *window > 0);
        (quota, window.filter(|_| !is_held(check)))
    });
}

/// `RateLimit`: what remains of each limit.
fn push_remaining(text: &mut String, decision: &Decision) {
    let retry = decision.retry_after();
    push_list(text, decision, REMAINING_PARAMETERS, |check| {
        let outcome = check.outcome();
        let time = if is_held(check) {
            None
        } else if outcome.admitted {
            Some(outcome.reset_after).filter(|reset| !reset.is_zero())
        } else {
            // Members of a group may deny for longer than the request has to wait.
            outcome.retry_after.filter(|time| retry.is_none_or(|retry| *time <= retry))
        };
        (outcome.remaining, time.map(seconds))
    });
}

/// A structured list (RFC 9651) with an item for each enforced check: its name, a number, and an optional second number.
fn push_list(
    text: &mut String,
    decision: &Decision,
    [first_key, second_key]: [&str; 2],
    numbers: impl Fn(&CheckResult) -> (u64, Option<u64>),
) {
    for check in enforced(decision) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        push_string(text, &policy_name(check));
        let (first, second) = numbers(check);
        text.push_str(first_key);
        decimal::push_number(text, first.min(MAX_FIELD_NUMBER));
        if let Some(second) = second {
            text.push_str(second_key);
            decimal::push_number(text, second);
        } else if first_key == POLICY_PARAMETERS[0] && is_held(check) {
            text.push_str(HELD_UNIT);
        }
    }
}

/// A structured string, of printable ASCII.
fn push_string(text: &mut String, ascii: &str) {
    let special = |byte: u8| matches!(byte, b'"' | b'\\');
    text.push('"');
    if ascii.bytes().any(special) {
        for byte in ascii.bytes() {
            text.extend(special(byte).then_some('\\'));
            text.push(char::from(byte));
        }
    } else {
        text.push_str(ascii);
    }
    text.push('"');
}

fn write_number(text: &mut String, field: HeaderField, number: u64, write: &mut impl FnMut(HeaderField, &str)) {
    text.clear();
    decimal::push_number(text, number);
    write(field, text);
}

/// Limit, remaining and reset of one check.
fn numbers(check: &CheckResult, reset: ResetFormat, decided_at: Timestamp) -> [u64; 3] {
    let outcome = check.outcome();
    let reset = match reset {
        ResetFormat::Epoch => {
            seconds(Duration::from_micros(decided_at.as_micros()).saturating_add(outcome.reset_after))
        }
        ResetFormat::Delta => seconds(outcome.reset_after),
    };
    [outcome.limit, outcome.remaining, reset].map(|number| number.min(MAX_FIELD_NUMBER))
}

/// The retry time to show. For a security rule it has whole seconds: milliseconds would reveal when another client last tried.
pub(crate) fn shown_retry(retry: Duration, security: bool) -> Duration {
    if security { Duration::from_secs(retry_seconds(retry)) } else { retry }
}

/// The value of `Retry-After`: at least 1, since 0 would allow a retry at once.
pub(crate) fn retry_seconds(retry: Duration) -> u64 {
    seconds(retry).max(1)
}

/// The same in milliseconds.
pub(crate) fn retry_millis(retry: Duration) -> u64 {
    let rest = retry.subsec_nanos().div_ceil(1_000_000);
    retry.as_secs().saturating_mul(1_000).saturating_add(rest.into()).clamp(1, MAX_FIELD_NUMBER)
}

/// Whole seconds, rounded up.
fn seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add((span.subsec_nanos() > 0).into()).min(MAX_FIELD_NUMBER)
}

#[cfg(test)]
mod tests;
