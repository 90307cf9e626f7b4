//! `Rejection`: the HTTP response to a refused request, the same for every front door. It never names a subject, a key or a tenant.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::header_policy::{self, Headers};
use crate::decision::RETRY_AFTER_FAILURE;
use crate::http::HeaderPolicy;
use crate::plan::Role;
use crate::{CheckResult, Decision};

const DENIED_MESSAGE: &str = "Too many requests. Retry later.";
/// For security rules: does not even tell whether waiting helps.
const SECURITY_MESSAGE: &str = "Too many requests.";
const PERMANENT_MESSAGE: &str = "The request costs more than the limit ever allows at once. Waiting does not help.";
const UNAVAILABLE_MESSAGE: &str = "The request cannot be checked against its limits at the moment. Retry later.";

/// The maximum number of media ranges read from an `Accept` field. Browsers send fewer than ten.
const MAX_MEDIA_RANGES: usize = 64;

/// The response to a refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// 429 or 503.
    pub status: u16,
    /// The message, which the body contains too.
    pub message: String,
    /// All header fields, including `content-type` and `cache-control`.
    pub headers: Headers,
    /// A JSON object, or a problem document if the client prefers that.
    pub body: String,
}

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyFormat {
    Json,
    Problem,
}

/// A JSON object with its members in the order of insertion.
struct JsonObject(String);

impl Rejection {
    /// A rejection from its parts.
    pub const fn new(status: u16, message: String, headers: Headers, body: String) -> Self {
        Self { status, message, headers, body }
    }
}

/// Rejecting
impl HeaderPolicy {
    /// The response to a denied request: 429 with the fields of [`headers`](Self::headers).
    ///
    /// `message` is the message of the rule ([`Rule::message`](crate::Rule::message)), `accept` the `Accept` field of the request. The
    /// body is JSON unless that field prefers `application/problem+json`.
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
        let security = decision.is_security();
        let message = message.unwrap_or(match (security, decision.is_permanent()) {
            (true, _) => SECURITY_MESSAGE,
            (false, true) => PERMANENT_MESSAGE,
            (false, false) => DENIED_MESSAGE,
        });
        let format = BodyFormat::preferred(accept);
        let members = match format {
            BodyFormat::Json => JsonObject::new()
                .with("error", "rate_limit_exceeded")
                .with("message", message)
                .with_some("rule_id", decision.rule().filter(|_| !security)),
            BodyFormat::Problem => JsonObject::problem("quota-exceeded", "Quota exceeded", 429, message)
                .with_some("violated-policies", violated_policies(decision).filter(|_| !security)),
        };
        // Milliseconds would reveal when another client last tried.
        let rounded = |retry| if security { Duration::from_secs(header_policy::retry_seconds(retry)) } else { retry };
        let body = members.retry(decision.retry_after().map(rounded)).finish();
        Rejection { status: 429, message: message.to_owned(), headers: format.add_fields(self.headers(decision)), body }
    }

    /// The response while the store fails and a rule is closed then: 503, since the client is not at fault.
    pub fn reject_unavailable(&self, accept: Option<&str>) -> Rejection {
        let format = BodyFormat::preferred(accept);
        let members = match format {
            BodyFormat::Json => {
                JsonObject::new().with("error", "temporarily_unavailable").with("message", UNAVAILABLE_MESSAGE)
            }
            BodyFormat::Problem => {
                JsonObject::problem("temporary-reduced-capacity", "Temporarily unavailable", 503, UNAVAILABLE_MESSAGE)
            }
        };
        let body = members.retry(Some(RETRY_AFTER_FAILURE)).finish();
        let mut headers = Headers::new();
        self.push_retry(&mut headers, RETRY_AFTER_FAILURE, false);
        Rejection { status: 503, message: UNAVAILABLE_MESSAGE.to_owned(), headers: format.add_fields(headers), body }
    }
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

// === impl BodyFormat ===

impl BodyFormat {
    /// A problem document if the client names it and does not prefer plain JSON; otherwise JSON, whatever the client accepts.
    fn preferred(accept: Option<&str>) -> Self {
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
        if problem.is_some_and(|quality| quality > 0 && quality >= json) { Self::Problem } else { Self::Json }
    }

    /// Adds the fields about the body, which must not be cached.
    fn add_fields(self, mut headers: Headers) -> Headers {
        let media_type = match self {
            Self::Json => "application/json",
            Self::Problem => "application/problem+json",
        };
        headers.push(("content-type", media_type.to_owned()));
        headers.push(("cache-control", "no-store".to_owned()));
        headers
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
    fn new() -> Self {
        Self("{".to_owned())
    }

    /// A problem document (RFC 9457) of a registered type.
    fn problem(kind: &str, title: &str, status: u16, detail: &str) -> Self {
        Self::new()
            .with("type", format!("https://iana.org/assignments/http-problem-types#{kind}"))
            .with("title", title)
            .with("status", status)
            .with("detail", detail)
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let comma = if self.0.len() > 1 { "," } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{comma}\"{name}\":{}", value.into());
        self
    }

    fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    fn retry(self, retry: Option<Duration>) -> Self {
        self.with_some("retry_after", retry.map(header_policy::retry_seconds))
            .with_some("retry_after_ms", retry.map(header_policy::retry_millis))
    }

    fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Check, Gate, Plan};
    use crate::spi::{KeyStem, Subject};
    use crate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};

    const PROBLEM: Option<&str> = Some("application/problem+json");

    fn store() -> MemoryStore {
        MemoryStore::new().with_clock(ManualClock::default())
    }

    fn bucket(capacity: u64, per_minute: u64) -> Limit {
        Limit::token_bucket(capacity, Rate::per_minute(per_minute).unwrap()).unwrap()
    }

    /// The decision on a request of this cost, after one of cost 1.
    fn second(rules: impl IntoIterator<Item = Rule>, cost: u64) -> Decision {
        let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store());
        assert!(limiter.check_now(&Request::new("")).is_allowed());
        limiter.check_now(&Request::new("").with_cost(cost))
    }

    fn field<'a>(rejection: &'a Rejection, name: &str) -> Option<&'a str> {
        rejection.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_rejection_names_the_rule_and_the_time_to_wait() {
        // 7 a minute: the next one in 8,571,428.57 microseconds.
        let rejection = HeaderPolicy::new().reject(&second([Rule::new("api", bucket(1, 7))], 1), None, None);
        assert_eq!(
            rejection.body,
            "{\"error\":\"rate_limit_exceeded\",\"message\":\"Too many requests. Retry later.\",\"rule_id\":\"api\",\
             \"retry_after\":9,\"retry_after_ms\":8572}"
        );
        assert_eq!((rejection.status, field(&rejection, "retry-after")), (429, Some("9")));
        assert_eq!(field(&rejection, "content-type"), Some("application/json"));
        assert_eq!(field(&rejection, "cache-control"), Some("no-store"));
        assert_eq!(field(&rejection, "x-ratelimit-remaining"), Some("0"));
    }

    #[test]
    fn a_problem_document_names_the_limits_that_denied() {
        let rules = [
            Rule::new("api", bucket(2, 60)).with_limit("burst", bucket(1, 30)),
            Rule::new("wide", bucket(9, 60)),
            Rule::new("all", bucket(1, 60)),
        ];
        let rejection = HeaderPolicy::new().reject(&second(rules, 1), None, PROBLEM);
        assert_eq!(
            rejection.body,
            "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\"title\":\"Quota exceeded\",\
             \"status\":429,\"detail\":\"Too many requests. Retry later.\",\
             \"violated-policies\":[\"api.burst\",\"all\"],\"retry_after\":2,\"retry_after_ms\":2000}"
        );
        assert_eq!(field(&rejection, "content-type"), Some("application/problem+json"));
        assert_eq!(field(&rejection, "cache-control"), Some("no-store"));
    }

    #[test]
    fn a_group_that_admits_is_not_among_the_violated_policies() {
        let gate = |rule: &str, limit, role| Gate::new(rule, "", limit, role, KeyStem::for_rule(rule, &limit, ""));
        let gates = [
            gate("shut", bucket(1, 1), Role::AnyOf(1)),
            gate("open", bucket(9, 1), Role::AnyOf(1)),
            gate("first", bucket(1, 1), Role::AnyOf(2)),
            gate("second", bucket(1, 1), Role::AnyOf(2)),
        ];
        let store = store();
        let plan = Plan::new(gates.iter().map(|gate| Check::new(gate, Subject::from_hash(7), 1))).unwrap();
        assert!(Decision::new(&plan, &store.decide_now(&plan)).is_allowed());
        let denied = Decision::new(&plan, &store.decide_now(&plan));
        assert_eq!(violated_policies(&denied), Some(vec!["first".to_owned(), "second".to_owned()]));
    }

    #[test]
    fn the_message_of_the_rule_is_escaped_as_json() {
        let decision = second([Rule::new("zug \"7\"", bucket(1, 60))], 1);
        let body = HeaderPolicy::new().reject(&decision, Some("Nicht \"so\" schnell,\nbitte \u{1f682}"), None).body;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["message"], "Nicht \"so\" schnell,\nbitte \u{1f682}");
        assert_eq!(body["rule_id"], "zug \"7\"");
    }

    #[test]
    fn a_permanent_denial_says_that_waiting_does_not_help() {
        let decision = second([Rule::new("api", bucket(5, 60))], 6);
        let rejection = HeaderPolicy::new().reject(&decision, None, None);
        assert_eq!(
            rejection.body,
            "{\"error\":\"rate_limit_exceeded\",\"message\":\"The request costs more than the limit ever allows at \
             once. Waiting does not help.\",\"rule_id\":\"api\"}"
        );
        assert_eq!(field(&rejection, "retry-after"), None);
        assert!(!HeaderPolicy::new().reject(&decision, None, PROBLEM).body.contains("retry_after"));
    }

    #[test]
    fn a_security_rule_is_not_named() {
        let rules = || [Rule::new("api", bucket(1, 60)), Rule::new("login", bucket(3, 60)).with_security()];
        let rejection = HeaderPolicy::new().reject(&second(rules(), 1), None, None);
        assert_eq!(
            rejection.body,
            "{\"error\":\"rate_limit_exceeded\",\"message\":\"Too many requests.\",\"retry_after\":1,\
             \"retry_after_ms\":1000}"
        );
        let problem = HeaderPolicy::new().reject(&second(rules(), 1), None, PROBLEM).body;
        assert!(!problem.contains("violated-policies") && !problem.contains("api"), "{problem}");
        // Not even the size of the limit is revealed.
        assert!(HeaderPolicy::new().reject(&second(rules(), 4), None, None).body.contains("\"Too many requests.\""));
    }

    #[test]
    fn a_security_rule_reports_whole_seconds_only() {
        let rejections = |rule: Rule| {
            let clock = ManualClock::default();
            let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), MemoryStore::new().with_clock(clock.clone()));
            assert!(limiter.check_now(&Request::new("")).is_allowed());
            clock.advance(Duration::from_millis(3_217));
            let decision = limiter.check_now(&Request::new(""));
            assert_eq!(decision.retry_after(), Some(Duration::from_millis(596_783)));
            [None, PROBLEM].map(|accept| HeaderPolicy::new().reject(&decision, None, accept))
        };
        let login = || Rule::new("login", Limit::sliding_log(1, Duration::from_secs(600)).unwrap());
        for (rule, millis) in [(login(), 596_783), (login().with_security(), 597_000)] {
            for rejection in rejections(rule) {
                let body: Value = serde_json::from_str(&rejection.body).unwrap();
                assert_eq!((&body["retry_after"], &body["retry_after_ms"]), (&597.into(), &millis.into()), "{body}");
                assert_eq!(field(&rejection, "retry-after"), Some("597"));
            }
        }
    }

    #[test]
    fn a_store_failure_is_a_503_with_a_retry() {
        let rejection = HeaderPolicy::new().with_retry_after_ms(true).reject_unavailable(None);
        assert_eq!(
            rejection.body,
            "{\"error\":\"temporarily_unavailable\",\"message\":\"The request cannot be checked against its limits at \
             the moment. Retry later.\",\"retry_after\":1,\"retry_after_ms\":1000}"
        );
        assert_eq!((rejection.status, field(&rejection, "retry-after")), (503, Some("1")));
        assert_eq!(field(&rejection, "retry-after-ms"), Some("1000"));
        assert_eq!(field(&rejection, "cache-control"), Some("no-store"));

        let problem = HeaderPolicy::new().reject_unavailable(PROBLEM);
        let body: Value = serde_json::from_str(&problem.body).unwrap();
        assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
        assert_eq!((&body["status"], &body["retry_after"]), (&Value::from(503), &Value::from(1)));
        assert_eq!(field(&problem, "content-type"), Some("application/problem+json"));
    }

    #[test]
    fn clients_that_prefer_problem_documents_get_them() {
        let prefers = [
            "application/problem+json",
            "APPLICATION/Problem+JSON",
            "application/json, application/problem+json",
            "text/html, application/json;q=0.8, application/problem+json;q=0.9",
            "application/problem+json;charset=utf-8 ; q = 0.1, application/json;Q=0.1",
            "*/*, application/problem+json",
            "*/*, application/json;q=0.2, application/problem+json;q=0.3",
        ];
        for accept in prefers {
            assert_eq!(BodyFormat::preferred(Some(accept)), BodyFormat::Problem, "{accept}");
        }
        let does_not = [
            "*/*",
            "",
            "text/html",
            "application/json",
            "application/*+json",
            "application/problem+xml",
            "application/problem+json;q=0",
            "application/problem+json;q=0.000, application/json;q=0",
            "application/json, application/problem+json;q=0.999",
            "application/problem+json;q=0.5, */*",
            "*/*;q=0.1, application/*, application/problem+json;q=0.5",
        ];
        for accept in does_not {
            assert_eq!(BodyFormat::preferred(Some(accept)), BodyFormat::Json, "{accept}");
        }
        assert_eq!(BodyFormat::preferred(None), BodyFormat::Json);
    }

    #[test]
    fn invalid_accept_fields_are_ignored() {
        let named = "application/problem+json";
        for quality in ["", "1.5", "-1", "2", "0.1234", "nan", "0.5.5", "00", "\u{661}", "0x1", "+1", ".5"] {
            let accept = format!("{named};q={quality}");
            assert_eq!(BodyFormat::preferred(Some(&accept)), BodyFormat::Json, "{accept}");
        }
        for rubbish in [",,,;;;==", ";q=1", "\u{0},\u{feff}", "\"a,b\";q"] {
            assert_eq!(BodyFormat::preferred(Some(&format!("{rubbish},{named}"))), BodyFormat::Problem, "{rubbish}");
        }
        let far_behind = ",".repeat(MAX_MEDIA_RANGES) + named;
        assert_eq!(BodyFormat::preferred(Some(&far_behind)), BodyFormat::Json);
    }
}
