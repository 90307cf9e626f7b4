//! Header fields and rejections for random rules and request histories.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Map, Value};
use sfv::{FieldType, List, ListEntry, Parser};
use tidegate::http::{ErrorFormat, HeaderPolicy, Headers, Rejection, ResetFormat};
use tidegate::limits::Window;
use tidegate::rules::UsageKind;
use tidegate::spi::{CheckResult, MAX_AMOUNT, Role};
use tidegate::{
    Decision, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleMode, RuleSet, StoreError,
    StoreErrorKind, Timestamp,
};

const START_MICROS: u64 = 1_790_000_000_123_456;
const MAX_FIELD_NUMBER: u64 = 999_999_999_999_999;
/// The user, who must never appear in a response.
const USER: &str = "ann@example.org";
const PROBLEM: Option<&str> = Some("application/problem+json");

/// The longest window: twice of it must end before `Timestamp::MAX`.
const MAX_WINDOW_MICROS: u64 = 30 * 365 * 86_400 * 1_000_000;
/// A history ends after a longer wait, for the same reason.
const MAX_WAIT: Duration = Duration::from_secs(30 * 86_400);

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..6u64, 1 => 0..=MAX_AMOUNT, 1 => Just(MAX_AMOUNT)]
}

fn window() -> impl Strategy<Value = Duration> {
    let micros = prop_oneof![4 => 1..5_000_000u64, 2 => 1..MAX_WINDOW_MICROS / 120];
    // A multiple of 120 has any number of slices that divides it.
    micros.prop_map(|micros| Duration::from_micros(micros * 120))
}

fn rate() -> impl Strategy<Value = Rate> {
    (1..2_000_000u64, window()).prop_filter_map("a rate", |(amount, period)| Rate::new(amount, period).ok())
}

/// A limit of any kind, with amounts from 0 and windows up to decades.
fn limit() -> impl Strategy<Value = Limit> {
    let slices = prop::sample::select(vec![1u64, 2, 6, 120]);
    let limit = prop_oneof![
        (amount(), rate()).prop_map(|(capacity, rate)| Limit::token_bucket(capacity, rate)),
        (amount(), rate()).prop_map(|(queue, rate)| Limit::leaky_bucket(rate, queue)),
        (amount(), window()).prop_map(|(limit, window)| Limit::fixed_window(limit, window)),
        (amount(), any::<bool>())
            .prop_map(|(limit, year)| { Limit::fixed_window(limit, if year { Window::YEAR } else { Window::MONTH }) }),
        (0..6u64, window()).prop_map(|(limit, window)| Limit::sliding_log(limit, window)),
        (amount(), window(), slices).prop_map(|(limit, window, slices)| Limit::sliding_window(limit, window, slices)),
    ];
    limit.prop_filter_map("a limit that ends in time", |limit| {
        limit.ok().filter(|limit| limit.max_window() <= Duration::from_micros(MAX_WINDOW_MICROS))
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let id = prop_oneof![2 => "[a-z.-]{1,9}", 1 => r"[\s\S]{1,9}", 1 => r#"["\\%,;= \r\n]{1,9}"#];
    let limits = prop::collection::vec((r"[\s\S]{0,9}", limit()), 1..3);
    let cost = prop::option::weighted(0.2, 0..4u64);
    let format = prop::option::of(prop::sample::select(vec![ErrorFormat::Problem, ErrorFormat::OpenAi]));
    (id, limits, cost, prop::bool::weighted(0.2), prop::bool::weighted(0.15), format).prop_map(
        |(id, limits, cost, shadow, security, format)| {
            let named = limits.into_iter().enumerate().map(|(place, (name, limit))| {
                // The names of the limits of a rule differ; the first may be empty.
                (if place == 0 { name } else { format!("{name}{place}") }, limit)
            });
            let mut rule = Rule::from_limits(id, named).with_per(["user"]);
            rule = cost.into_iter().fold(rule, Rule::with_cost);
            rule = format.into_iter().fold(rule, Rule::with_error_format);
            rule = if security { rule.with_security() } else { rule };
            if shadow { rule.with_mode(RuleMode::Shadow) } else { rule }
        },
    )
}

/// A valid set of rules.
fn rules() -> impl Strategy<Value = RuleSet> {
    prop::collection::vec(rule(), 0..4).prop_filter_map("ids that differ", |rules| RuleSet::new(rules).ok())
}

/// Requests as (microseconds since the one before, cost).
fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![3 => Just(0), 2 => 0..3_000_000u64, 1 => 0..400_000_000u64];
    let cost = prop_oneof![8 => 0..4u64, 1 => amount()];
    prop::collection::vec((gap, cost), 1..25)
}

fn header_policy() -> impl Strategy<Value = HeaderPolicy> {
    let reset = || prop::option::of(prop::sample::select(vec![ResetFormat::Epoch, ResetFormat::Delta]));
    (any::<bool>(), reset(), reset(), any::<bool>()).prop_map(|(ratelimit, x_ratelimit, trio, millis)| {
        let policy =
            HeaderPolicy::new().with_x_ratelimit(x_ratelimit).with_legacy_ratelimit(trio).with_retry_after_ms(millis);
        if ratelimit { policy } else { policy.with_ratelimit(None) }
    })
}

fn enforced(decision: &Decision) -> Vec<&CheckResult> {
    decision.checks().iter().filter(|check| check.role() != Role::Shadow).collect()
}

fn is_security(decision: &Decision) -> bool {
    enforced(decision).into_iter().any(CheckResult::is_security)
}

fn field<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

/// A structured list of strings, each with the first of these parameters and perhaps the second, as integers.
fn parse(value: &str, [needed, optional]: [&str; 2]) -> Vec<(String, u64, Option<u64>)> {
    let list: List = Parser::new(value).parse().unwrap();
    assert_eq!(list.serialize().as_deref(), Some(value), "it can be written in one way only");
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list in {value}") };
        let keys: Vec<_> = item.params.keys().map(|key| key.as_str()).collect();
        assert!(keys == [needed] || keys == [needed, optional], "{value}");
        let number = |key: &str| {
            let integer = item.params.get(key).map(|number| i64::from(number.as_integer().unwrap()));
            integer.map(|number| u64::try_from(number).unwrap())
        };
        (item.bare_item.as_string().unwrap().as_str().to_owned(), number(needed).unwrap(), number(optional))
    };
    list.iter().map(item).collect()
}

/// Asserts the invariants of the fields of any response.
fn check_fields(headers: &Headers, decision: &Decision) {
    let names: BTreeSet<_> = headers.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), headers.len(), "a field is repeated: {headers:?}");
    assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')));
    let in_time = decision.retry_after().is_some();
    assert_eq!(in_time, !decision.is_allowed() && !decision.is_permanent());
    assert_eq!(field(headers, "retry-after").is_some(), in_time);
    if enforced(decision).is_empty() || is_security(decision) {
        assert!(names.into_iter().all(|name| name.starts_with("retry-after")), "{headers:?}");
    }
    for (name, value) in headers {
        if *name != "ratelimit" && *name != "ratelimit-policy" {
            assert!(value.bytes().all(|byte| byte.is_ascii_digit()), "{name}: {value}");
            let smallest = u64::from(name.starts_with("retry-after"));
            assert!((smallest..=MAX_FIELD_NUMBER).contains(&value.parse().unwrap()), "{name}: {value}");
        }
    }
    if let (Some(policy), Some(standing)) = (field(headers, "ratelimit-policy"), field(headers, "ratelimit")) {
        check_lists(&parse(policy, ["q", "w"]), &parse(standing, ["r", "t"]), headers, decision);
    }
}

fn check_lists(
    policies: &[(String, u64, Option<u64>)],
    standings: &[(String, u64, Option<u64>)],
    headers: &Headers,
    decision: &Decision,
) {
    let checks = enforced(decision);
    assert_eq!((policies.len(), standings.len()), (checks.len(), checks.len()));
    for ((policy, standing), check) in policies.iter().zip(standings).zip(checks) {
        assert_eq!(policy.0, standing.0);
        let (quota, window, left, time) = (policy.1, policy.2, standing.1, standing.2);
        let outcome = check.outcome();
        assert_eq!((quota, left), (outcome.limit.min(MAX_FIELD_NUMBER), outcome.remaining.min(MAX_FIELD_NUMBER)));
        assert_ne!(window, Some(0));
        assert_eq!(window.is_some(), quota > 0 && check.window().duration().is_some(), "{headers:?}");
        assert_ne!(time, Some(0));
        assert!(!outcome.is_permanent() || time.is_none(), "a permanent denial has no retry time");
        if let (false, Some(retry)) = (outcome.admitted, field(headers, "retry-after")) {
            assert!(time.unwrap() <= retry.parse().unwrap(), "{headers:?}");
        }
    }
}

/// Asserts the invariants of a rejection in one format.
fn check_rejection(rejection: &Rejection, decision: &Decision, format: ErrorFormat) {
    let problem = format == ErrorFormat::Problem;
    assert_eq!(rejection.status, 429);
    let (limits, about): (Headers, Headers) = rejection
        .headers
        .iter()
        .cloned()
        .partition(|(name, _)| name.starts_with("retry-after") || name.contains("ratelimit"));
    assert_eq!(about, [("content-type", format.media_type().to_owned()), ("cache-control", "no-store".to_owned())]);
    check_fields(&limits, decision);

    let body: Map<String, Value> = serde_json::from_str(&rejection.body).unwrap();
    if format == ErrorFormat::OpenAi {
        let members = |object: &Map<String, Value>| object.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(members(&body), BTreeSet::from(["type", "error"].map(str::to_owned)));
        let error = body["error"].as_object().unwrap();
        assert_eq!(members(error), BTreeSet::from(["message", "type", "param", "code"].map(str::to_owned)));
        return;
    }
    let mut members = if problem { vec!["type", "title", "status", "detail"] } else { vec!["error", "message"] };
    if !is_security(decision) {
        members.push(if problem { "violated-policies" } else { "rule_id" });
    }
    if decision.retry_after().is_some() {
        members.extend(["retry_after", "retry_after_ms"]);
        assert_eq!(body["retry_after"].to_string(), field(&limits, "retry-after").unwrap());
        let millis = body["retry_after_ms"].as_u64().unwrap();
        assert!(1 <= millis && millis.div_ceil(1000) == body["retry_after"].as_u64().unwrap());
    }
    let known: BTreeSet<_> = body.keys().map(String::as_str).collect();
    assert_eq!(known, members.into_iter().collect());
    if !problem && !is_security(decision) {
        assert_eq!(body["rule_id"].as_str(), decision.rule());
    }
}

fn check_no_subject_is_named(rejection: &Rejection, decision: &Decision) {
    let text = format!("{rejection:?}");
    assert!(!text.contains(USER));
    assert!(decision.checks().iter().all(|check| !text.contains(&check.subject().to_string())));
}

/// A response as text.
fn response_text(status: &str, headers: &Headers, body: &str) -> String {
    let fields: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("HTTP/1.1 {status}\n{}\n\n{body}", fields.join("\n")).trim_end().to_owned()
}

#[test]
fn the_examples_of_the_http_page_are_what_is_sent() {
    let page = include_str!("../../docs/http.md");
    let shows = |text: &str| assert!(page.contains(&format!("```text\n{text}\n```")), "docs/http.md lacks\n{text}");
    let (search, day) = (
        Limit::token_bucket(5, Rate::per_minute(20).unwrap()).unwrap(),
        Limit::fixed_window(1000, Duration::from_secs(86_400)).unwrap(),
    );
    let login = Limit::sliding_log(1, Duration::from_secs(600)).unwrap();
    let tokens = Limit::token_bucket(20_000, Rate::per_minute(20_000).unwrap()).unwrap();
    let rules = RuleSet::new([
        Rule::new("search", search).with_limit("day", day).with_action("search"),
        Rule::new("login", login).with_action("login").with_security(),
        Rule::new("tokens-per-minute", tokens).with_action("ask").with_usage(UsageKind::Total),
    ]);
    let clock = ManualClock::starting_at(Timestamp::from_micros(1_790_000_000_000_000));
    let limiter = Limiter::new(rules.unwrap(), MemoryStore::new().with_clock(clock.clone()));
    let policy = HeaderPolicy::new();
    let denied = |request: &Request<'_>, accept| {
        let rejection = policy.reject(&limiter.check_now(request), None, accept);
        response_text("429 Too Many Requests", &rejection.headers, &rejection.body)
    };

    let search = Request::new("search");
    shows(&response_text("200 OK", &policy.headers(&limiter.check_now(&search)), ""));
    for _ in 0..4 {
        assert!(limiter.check_now(&search).is_allowed());
    }
    clock.advance(Duration::from_millis(200));
    shows(&denied(&search, None));
    shows(&denied(&search, PROBLEM));
    shows(&denied(&search.with_cost(6), None));
    assert!(limiter.check_now(&Request::new("ask").with_cost(20_000)).is_allowed());
    shows(&denied(&Request::new("ask").with_cost(500), None));
    assert!(limiter.check_now(&Request::new("login")).is_allowed());
    clock.advance(Duration::from_secs(3));
    shows(&denied(&Request::new("login"), None));
    let error = StoreError::new(StoreErrorKind::Unavailable, "it is down");
    let failed = policy.reject_unavailable(&error, None, None);
    shows(&response_text("503 Service Unavailable", &failed.headers, &failed.body));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn headers_parse_and_a_retry_after_the_reported_time_succeeds(rules in rules(), requests in requests(), policy in header_policy()) {
        let clock = ManualClock::starting_at(Timestamp::from_micros(START_MICROS));
        let limiter = Limiter::new(rules, MemoryStore::new().with_clock(clock.clone()));
        for (gap, cost) in requests {
            clock.advance(Duration::from_micros(gap));
            let request = Request::new("").with_attribute("user", USER).with_cost(cost);
            let decision = limiter.check_now(&request);
            let headers = policy.headers(&decision);
            check_fields(&headers, &decision);
            if decision.is_allowed() {
                continue;
            }
            let own = decision.error_format().unwrap_or_default();
            for (accept, format) in [(None, own), (PROBLEM, ErrorFormat::Problem)] {
                let rejection = policy.reject(&decision, None, accept);
                check_rejection(&rejection, &decision, format);
                check_no_subject_is_named(&rejection, &decision);
            }
            if let Some(retry) = field(&headers, "retry-after") {
                let wait = Duration::from_secs(retry.parse().unwrap());
                clock.advance(wait);
                prop_assert!(limiter.check_now(&request).is_allowed(), "waited {retry} s for nothing: {decision:?}");
                if wait > MAX_WAIT {
                    break;
                }
            }
        }
    }

    #[test]
    fn any_accept_field_gets_a_body_that_parses(accept in r"[\s\S]{0,60}", named in any::<bool>()) {
        let accept = if named { format!("{accept},application/problem+json;q=0.5") } else { accept };
        let error = StoreError::new(StoreErrorKind::Unavailable, "it is down");
        let rejection = HeaderPolicy::new().reject_unavailable(&error, None, Some(&accept));
        let body: Map<String, Value> = serde_json::from_str(&rejection.body).unwrap();
        let problem = field(&rejection.headers, "content-type") == Some("application/problem+json");
        prop_assert_eq!(body.contains_key("error"), !problem);
        prop_assert_eq!(field(&rejection.headers, "retry-after"), Some("1"));
    }
}
