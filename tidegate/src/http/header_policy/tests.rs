//! The header fields of decisions on real limits.

use super::*;
use crate::limits::{Period, Periods, Window};
use crate::plan::{Check, Gate, Plan};
use crate::spi::{MAX_AMOUNT, Subject};
use crate::{Ending, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleMode, RuleSet};

/// Half a second past a whole one, so that rounding shows.
const START_MICROS: u64 = 1_790_000_000_500_000;

fn store() -> MemoryStore {
    MemoryStore::new().with_clock(ManualClock::starting_at(Timestamp::from_micros(START_MICROS)))
}

/// The last of the decisions on requests of these costs.
fn decide(rules: impl IntoIterator<Item = Rule>, costs: &[u64]) -> Decision {
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store());
    costs.iter().map(|cost| limiter.check_now(&Request::new("").with_cost(*cost))).last().unwrap()
}

fn bucket(capacity: u64, per_second: u64) -> Limit {
    Limit::token_bucket(capacity, Rate::per_second(per_second).unwrap()).unwrap()
}

fn window(limit: u64, millis: u64) -> Limit {
    Limit::fixed_window(limit, Duration::from_millis(millis)).unwrap()
}

fn field<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

fn retry(seconds: &str, millis: &str) -> [(&'static str, String); 2] {
    [("retry-after", seconds.to_owned()), ("retry-after-ms", millis.to_owned())]
}

fn ratelimit_fields(decision: &Decision) -> (String, String) {
    let headers = HeaderPolicy::new().headers(decision);
    (field(&headers, "ratelimit-policy").unwrap().to_owned(), field(&headers, "ratelimit").unwrap().to_owned())
}

#[test]
fn every_limit_is_listed_in_order_with_what_remains() {
    let rules =
        [Rule::new("api", bucket(20, 10)), Rule::new("login", window(5, 600_000)).with_limit("day", window(9, 1))];
    let (policy, standing) = ratelimit_fields(&decide(rules, &[3]));
    assert_eq!(policy, r#""api";q=20;w=2, "login";q=5;w=600, "login.day";q=9;w=1"#);
    assert_eq!(standing, r#""api";r=17;t=1, "login";r=2;t=400, "login.day";r=6;t=1"#);
}

/// A client that waited for a reset would wait although slots come back when its requests end.
#[test]
fn a_concurrency_limit_has_a_unit_instead_of_a_window_and_no_reset() {
    let held = || Rule::new("active", Limit::concurrency(3, Duration::from_secs(30)).unwrap());
    let decision = decide([held(), Rule::new("api", bucket(20, 10))], &[1]);
    let (policy, standing) = ratelimit_fields(&decision);
    assert_eq!(policy, r#""active";q=3;qu="concurrent-requests", "api";q=20;w=2"#);
    assert_eq!(standing, r#""active";r=2, "api";r=19;t=1"#);
    let headers = HeaderPolicy::new().with_legacy_ratelimit(Some(ResetFormat::Delta)).headers(&decision);
    let shown = ["x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit-remaining"].map(|name| field(&headers, name));
    assert_eq!(shown, [Some("20"), Some("19"), Some("19")], "the trios are about the other limit");

    let alone = HeaderPolicy::new().with_ratelimit(None).headers(&decide([held()], &[1]));
    assert_eq!(alone, []);
    let denied = decide([held(), Rule::new("api", bucket(20, 10))], &[1, 1, 1, 1]);
    assert_eq!(HeaderPolicy::new().with_ratelimit(None).headers(&denied), retry("1", "1000"));
    assert_eq!(ratelimit_fields(&denied).1, r#""active";r=0, "api";r=17;t=1"#);
}

#[test]
fn a_blocked_client_gets_the_end_of_the_block_and_nothing_else() {
    let penalty = crate::limits::Penalty::new(1, Duration::from_secs(60), 2, Duration::from_secs(3600)).unwrap();
    let rule = || {
        let rule = Rule::new("login", window(2, 1000)).with_per(["ip"]).with_security().with_penalty(penalty);
        [rule, Rule::new("api", bucket(20, 10))]
    };
    let policy = HeaderPolicy::new().with_legacy_ratelimit(Some(ResetFormat::Epoch));
    let blocked = decide(rule(), &[1, 1, 1, 1]);
    assert_eq!((blocked.rule(), blocked.limit(), blocked.remaining()), (Some("login"), None, None));
    assert_eq!(policy.headers(&blocked), retry("60", "60000"));
    let rejection = policy.reject(&blocked, None, None);
    assert_eq!(rejection.status, 429);
    assert!(!rejection.body.contains("login") && !rejection.body.contains("penalty"), "{}", rejection.body);
    assert_eq!(policy.headers(&decide(rule(), &[1])), [], "nor does an admitted one show how much is left");
}

#[test]
fn an_unused_limit_has_no_time() {
    assert_eq!(ratelimit_fields(&decide([Rule::new("api", bucket(20, 10))], &[0])).1, r#""api";r=20"#);
}

#[test]
fn a_limit_of_zero_has_no_window() {
    let decision = decide([Rule::new("off", window(0, 1000)), Rule::new("dry", bucket(0, 1))], &[0]);
    assert_eq!(ratelimit_fields(&decision).0, r#""off";q=0, "dry";q=0"#);
}

/// The policy should be the same in every response, and the next month has another length.
#[test]
fn a_calendar_window_is_omitted_from_the_policy() {
    let limit = |window| Limit::fixed_window(5, window).unwrap();
    let rules = [Rule::new("month", limit(Window::MONTH)), Rule::new("year", limit(Window::YEAR))];
    let (policy, standing) = ratelimit_fields(&decide(rules, &[2]));
    assert_eq!(policy, r#""month";q=5, "year";q=5"#);
    // From 2026-09-21 14:13:20 and a half.
    assert_eq!(standing, r#""month";r=3;t=812800, "year";r=3;t=8761600"#);
}

#[test]
fn a_denying_check_reports_its_retry_and_retry_after_is_the_longest() {
    let rules =
        [Rule::new("slow", window(2, 10_000)), Rule::new("fast", bucket(2, 1)), Rule::new("wide", window(9, 5_000))];
    let decision = decide(rules, &[2, 1]);
    assert_eq!(ratelimit_fields(&decision).1, r#""slow";r=0;t=10, "fast";r=0;t=1, "wide";r=7;t=5"#);
    assert_eq!(field(&HeaderPolicy::new().headers(&decision), "retry-after"), Some("10"));
}

#[test]
fn retry_after_is_at_least_one_second_and_rounded_up() {
    let retry_after = |rate| {
        let headers = HeaderPolicy::new().headers(&decide([Rule::new("api", bucket(1, rate))], &[1, 1]));
        let value = |name| field(&headers, name).unwrap().parse::<u64>().unwrap();
        (value("retry-after"), value("retry-after-ms"))
    };
    assert_eq!([retry_after(1), retry_after(3), retry_after(1_000_000)], [(1, 1000), (1, 334), (1, 1)]);
    assert_eq!((retry_seconds(Duration::from_micros(11_000_001)), retry_millis(Duration::ZERO)), (12, 1));
}

#[test]
fn retry_after_ms_is_sent_unless_it_is_off() {
    for (policy, millis) in [
        (HeaderPolicy::new(), Some("100")),
        (HeaderPolicy::default(), Some("100")),
        (HeaderPolicy::new().with_retry_after_ms(false), None),
    ] {
        let headers = policy.headers(&decide([Rule::new("api", bucket(1, 10))], &[1, 1]));
        assert_eq!((field(&headers, "retry-after"), field(&headers, "retry-after-ms")), (Some("1"), millis));
    }
}

#[test]
fn a_permanent_denial_has_no_retry_after() {
    let headers = HeaderPolicy::new().headers(&decide([Rule::new("api", bucket(5, 1))], &[6]));
    assert_eq!(field(&headers, "ratelimit"), Some(r#""api";r=5"#));
    assert!(headers.iter().all(|(name, _)| !name.starts_with("retry-after")));
}

#[test]
fn an_allowed_request_has_no_retry_after() {
    let headers = HeaderPolicy::new().headers(&decide([Rule::new("api", bucket(5, 1))], &[5]));
    assert!(headers.iter().all(|(name, _)| !name.starts_with("retry-after")));
}

#[test]
fn the_limit_remaining_reset_fields_are_those_of_the_most_restrictive_check() {
    let decision = decide([Rule::new("wide", window(90, 10_000)), Rule::new("api", bucket(20, 10))], &[5]);
    let contract = HeaderPolicy::new().with_ratelimit(None).with_legacy_ratelimit(Some(ResetFormat::Delta));
    let headers = contract.headers(&decision);
    // Full again half a second after the half second at which it was decided.
    let expected = [("x-ratelimit-limit", "20"), ("x-ratelimit-remaining", "15"), ("x-ratelimit-reset", "1790000001")];
    let older = [("ratelimit-limit", "20"), ("ratelimit-remaining", "15"), ("ratelimit-reset", "1")];
    assert_eq!(
        headers,
        [expected, older].concat().into_iter().map(|(name, value)| (name, value.to_owned())).collect::<Headers>()
    );
}

#[test]
fn a_reset_is_rounded_up_to_the_next_second() {
    let decision = decide([Rule::new("api", bucket(20, 10))], &[6]);
    let reset = |reset| {
        let headers = HeaderPolicy::new().with_x_ratelimit(Some(reset)).headers(&decision);
        field(&headers, "x-ratelimit-reset").unwrap().to_owned()
    };
    assert_eq!((reset(ResetFormat::Epoch), reset(ResetFormat::Delta)), ("1790000002".to_owned(), "1".to_owned()));
}

#[test]
fn fields_that_are_off_are_not_sent() {
    let contract = HeaderPolicy::default().with_ratelimit(None).with_x_ratelimit(None);
    assert_eq!(contract.headers(&decide([Rule::new("api", bucket(20, 10))], &[1])), Headers::new());
}

#[test]
fn shadow_rules_do_not_appear_in_headers() {
    let shadow = || Rule::new("trial", bucket(1, 1)).with_mode(RuleMode::Shadow).with_security();
    let all = HeaderPolicy::new().with_legacy_ratelimit(Some(ResetFormat::Epoch));
    assert_eq!(all.headers(&decide([shadow()], &[1, 1])), Headers::new());
    assert_eq!(all.headers(&decide([], &[1])), Headers::new());
    let (policy, standing) = ratelimit_fields(&decide([shadow(), Rule::new("api", bucket(4, 1))], &[1, 1]));
    assert_eq!((policy.as_str(), standing.as_str()), (r#""api";q=4;w=4"#, r#""api";r=2;t=2"#));
}

/// The numbers of a login limit would show an attacker which accounts exist and when the next guesses are possible.
#[test]
fn a_security_rule_sends_only_retry_after_in_whole_seconds() {
    let rules = || [Rule::new("api", bucket(9, 1)), Rule::new("login", bucket(1, 3)).with_security()];
    let all = HeaderPolicy::new().with_legacy_ratelimit(Some(ResetFormat::Epoch));
    assert_eq!(all.headers(&decide(rules(), &[1])), Headers::new());
    assert_eq!(all.headers(&decide(rules(), &[1, 1])), retry("1", "1000"));
    assert_eq!(all.headers(&decide(rules(), &[2])), Headers::new());
}

#[test]
fn numbers_stay_within_fifteen_digits() {
    let limit = Limit::fixed_window(MAX_AMOUNT, Duration::from_secs(60)).unwrap();
    let decision = decide([Rule::new("huge", limit)], &[1]);
    let (policy, standing) = ratelimit_fields(&decision);
    assert_eq!(policy, r#""huge";q=999999999999999;w=60"#);
    assert!(standing.starts_with(r#""huge";r=999999999999999;t="#), "{standing}");
    assert_eq!(field(&HeaderPolicy::new().headers(&decision), "x-ratelimit-remaining"), Some("999999999999999"));
}

#[test]
fn a_policy_name_is_printable_ascii_and_reversible() {
    let rules = ["a\"b\\c", "grün", "gr%C3%BCn", "x\r\ny: z"].map(|id| Rule::new(id, bucket(1, 1)));
    let (policy, _) = ratelimit_fields(&decide(rules, &[1]));
    let names: Vec<_> = policy.split(", ").map(|item| item.strip_suffix(";q=1;w=1").unwrap()).collect();
    assert_eq!(names, [r#""a\"b\\c""#, r#""gr%C3%BCn""#, r#""gr%25C3%25BCn""#, r#""x%0D%0Ay: z""#]);
}

#[test]
fn the_retry_of_slower_group_members_is_omitted() {
    let gate = |rule: &str, limit| Gate::for_rule(rule, limit).with_role(Role::AnyOf(1));
    let (slow, fast) = (gate("slow", bucket(1, 1)), gate("fast", bucket(1, 10)));
    let store = store();
    let decide = || {
        let checks = [&slow, &fast].map(|gate| Check::new(gate, Subject::from_hash(7), 1));
        let plan = Plan::new(checks).unwrap();
        Decision::new(&plan, &store.decide_now(&plan))
    };
    assert!(decide().is_allowed());
    let headers = HeaderPolicy::new().headers(&decide());
    assert_eq!(field(&headers, "ratelimit"), Some(r#""slow";r=0, "fast";r=0;t=1"#));
    assert_eq!(field(&headers, "retry-after-ms"), Some("100"));
}

#[test]
fn revisions_with_the_same_format_parse_as_one_draft() {
    for text in ["draft-8", "draft-08", "draft-9", "draft-09", "draft-10", "draft-11"] {
        assert_eq!(text.parse(), Ok(Draft::Draft11), "{text}");
    }
    for text in ["", "draft-07", "draft-12", "11"] {
        assert_eq!(text.parse::<Draft>(), Err(UnknownDraft), "{text}");
    }
    assert_eq!(Draft::Draft11.to_string(), "draft-11");
    assert!(UnknownDraft.to_string().contains("draft-08 to draft-11"));
}

/// In Berlin the month ends two hours before the month in UTC.
/// 12 units are charged to a quota of 5 a month: September has 5 of them, October pays 5, November 2.
#[test]
fn a_quota_in_debt_names_the_period_in_which_the_request_passes_and_one_with_reservations_a_second() {
    let periods = Periods::new(Period::Month, "Europe/Berlin", None).unwrap();
    let rules = RuleSet::new([Rule::new("month", Limit::quota(5, periods).unwrap())]).unwrap();
    let limiter = Limiter::new(rules, store());
    let request = Request::new("").with_cost(3);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let reserving = std::pin::pin!(limiter.reserve(&request, None)).poll(&mut context);
    let std::task::Poll::Ready(Ok(mut decision)) = reserving else { panic!("a memory store decides at once") };
    let mut reservation = decision.take_grant();
    let reserved = HeaderPolicy::new().headers(&limiter.check_now(&request));
    assert_eq!((field(&reserved, "retry-after"), field(&reserved, "retry-after-ms")), (Some("1"), Some("1000")));
    let commit = Ending::Commit(12.into());
    let committed = std::pin::pin!(limiter.end(&mut reservation, &commit)).poll(&mut context);
    assert!(matches!(committed, std::task::Poll::Ready(Ok(()))));
    let in_debt = HeaderPolicy::new().headers(&limiter.check_now(&request));
    // November begins 2026-10-31 23:00 in UTC, and December 2026-11-30 23:00.
    assert_eq!(field(&in_debt, "retry-after"), Some((1_793_487_600_u64 - 1_790_000_000).to_string().as_str()));
    assert_eq!(field(&in_debt, "x-ratelimit-reset"), Some("1796079600"));
}

#[test]
fn a_quota_names_the_end_of_its_period_and_says_when_its_grace_is_used() {
    let periods = Periods::new(Period::Month, "Europe/Berlin", None).unwrap();
    let rules = || [Rule::new("month", Limit::quota_with_grace(5, 2, periods).unwrap())];
    let fields = |costs: &[u64]| HeaderPolicy::new().headers(&decide(rules(), costs));
    let (inside, grace, over) = (fields(&[5]), fields(&[5, 2]), fields(&[5, 3]));
    assert_eq!((field(&inside, "x-ratelimit-remaining"), field(&inside, "x-tidegate-grace")), (Some("0"), None));
    assert_eq!(field(&grace, "x-tidegate-grace"), Some("true"));
    assert_eq!((field(&over, "x-tidegate-grace"), field(&over, "retry-after")), (None, Some("805600")));
    // 2026-10-01 00:00 in Berlin, from 2026-09-21 14:13:20 and a half in UTC.
    for headers in [&inside, &grace, &over] {
        assert_eq!(field(headers, "ratelimit-policy"), Some(r#""month";q=5"#));
        assert_eq!(field(headers, "ratelimit"), Some(r#""month";r=0;t=805600"#));
        assert_eq!(field(headers, "x-ratelimit-reset"), Some("1790805600"));
    }
    // Whichever fields are chosen, but not for a security rule, whose responses disclose nothing.
    let none = HeaderPolicy::new().with_ratelimit(None).with_x_ratelimit(None);
    assert_eq!(none.headers(&decide(rules(), &[6])), [("x-tidegate-grace", "true".to_owned())]);
    let secret = rules().map(Rule::with_security);
    assert_eq!(none.headers(&decide(secret, &[6])), []);
}
