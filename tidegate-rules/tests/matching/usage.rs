//! Costs that are estimated from the body and settled by token usage.

use tidegate::Request;
use tidegate::rules::UsageKind;
use tidegate::spi::{BodyNeed, Check};
use tidegate_rules::RuleFile;

const RULES: &str = "
version: 1
rules:
  - id: tokens
    match: { path: /v1/chat }
    per: [header:x-api-key]
    cost:
      expression: request.size / 4 + max(int(request.body.max_tokens, 0), int(request.body.max_completion_tokens, int(request.body.max_tokens, 1000)))
      usage: total
      default: 5000
    token_bucket: { capacity: 100k, refill: 1k/s }
  - id: answers
    match: { path: /v1/chat }
    per: []
    budget: shared
    cost: { usage: output, default: 9, POST: 10 }
    token_bucket: { capacity: 100k, refill: 1k/s }
    on_failure: share
  - id: plain
    match: { path: ['/v1/chat', /other] }
    per: []
    token_bucket: { capacity: 100k, refill: 1k/s }
    on_failure: share
";

fn rules(text: &str) -> RuleFile {
    RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"))
}

fn request<'r>(path: &'r str, size: &'r str) -> Request<'r> {
    let request = Request::new("").with_attribute("path", path).with_attribute("method", "POST");
    request.with_attribute("request:size", size).with_attribute("header:x-api-key", "k")
}

/// The estimates of `tokens` and `answers`; `None` if the request is refused.
fn estimates(body: &str) -> Option<[u64; 2]> {
    let file = rules(RULES);
    let request = request("/v1/chat", "400").with_attribute("body", body);
    let plan = file.rules().resolve(&request);
    plan.problem().is_none().then(|| [0, 1].map(|index: usize| Check::cost(&plan.checks()[index])))
}

#[test]
fn the_estimate_reads_the_body_in_every_spelling_of_a_number() {
    for (body, tokens) in [
        (r#"{"max_tokens":50}"#, 150),
        (r#"{"max_completion_tokens":70}"#, 170),
        (r#"{"max_tokens":50,"max_completion_tokens":70}"#, 170),
        (r#"{"max_tokens":90,"max_completion_tokens":70}"#, 190),
        (r#"{"max_tokens":1e4}"#, 10_100),
        (r#"{"max_tokens":"50"}"#, 150),
        (r#"{"max_tokens":null}"#, 1_100),
        (r#"{"Max_Tokens":50}"#, 1_100),
        ("not json", 1_100),
        // Some servers take this for no limit.
        (r#"{"max_completion_tokens":-1}"#, 1_100),
        (r#"{"max_tokens":-1}"#, 1_100),
        (r#"{"max_tokens":0}"#, 1_100),
        (r#"{"max_tokens":99999999999999999999}"#, tidegate::spi::MAX_AMOUNT),
    ] {
        assert_eq!(estimates(body), Some([tokens, 10]), "{body}");
    }
    assert_eq!(estimates(r#"{"max_tokens":5,"max_tokens":50000}"#), None, "one of the two would count upstream");
}

/// A cost of 0 is free under a limit that has nothing left.
#[test]
fn an_estimate_of_0_reserves_one_token() {
    let text =
        RULES.replace("request.size / 4 + max(", "0 * max(").replace("default: 9, POST: 10", "default: 0, POST: 0");
    let file = rules(&text.replace("    match: { path: ['/v1/chat', /other] }\n", "    cost: 0\n"));
    let plan = file.rules().resolve(&request("/v1/chat", "400").with_attribute("body", r#"{"max_tokens":5}"#));
    assert!(plan.problem().is_none());
    let costs: Vec<(&str, u64)> =
        plan.checks().iter().map(|check| (check.gate().rule().id.as_str(), check.cost())).collect();
    assert_eq!(costs, [("tokens", 1), ("answers", 1), ("plain", 0)]);
}

#[test]
fn rules_say_for_a_request_whether_it_settles_by_token_usage() {
    let file = rules(RULES);
    let rules = file.rules();
    assert!(rules.has_usage());
    let kinds = ["tokens", "answers", "plain", "unknown"].map(|rule| rules.usage(rule));
    assert_eq!(kinds, [Some(UsageKind::Total), Some(UsageKind::Output), None, None]);
    let plan = rules.resolve(&request("/v1/chat", "400"));
    assert!(rules.settles_by_usage(&plan));
    // The gateway reads the body, whether or not an expression does.
    assert_eq!(plan.body_use().text, BodyNeed::Enforced);
    let plan = rules.resolve(&request("/other", "400"));
    assert!(!rules.settles_by_usage(&plan));
    assert_eq!(plan.body_use().text, BodyNeed::None);
}

#[test]
fn a_rule_that_joins_the_check_of_another_through_a_budget_settles_by_token_usage() {
    let text = RULES.replace(
        "  - id: answers",
        "  - { id: other, match: { path: /v1/chat }, per: [], budget: shared, \
        token_bucket: { capacity: 100k, refill: 1k/s }, on_failure: share }\n  - id: answers",
    );
    let text = text.replace("      usage: total\n", "");
    let file = rules(&text);
    assert!(file.rules().settles_by_usage(&file.rules().resolve(&request("/v1/chat", "400"))));
}

#[test]
fn a_file_says_how_long_a_body_rules_read() {
    let max_body = |text: &str| rules(text).rules().max_body_bytes();
    assert_eq!(max_body("version: 1\nrules: []\n"), 64 * 1024);
    assert_eq!(max_body(RULES), 1024 * 1024);
    assert_eq!(max_body(&format!("max_body: 4M{RULES}")), 4_000_000);
    for bytes in ["1_023", "16_777_217"] {
        let report = RuleFile::parse("rules.yaml", &format!("version: 1\nmax_body: {bytes}\nrules: []\n")).unwrap_err();
        let problem = &report.problems()[0];
        assert_eq!((problem.code(), report.position(problem)), ("max-body", (2, 11)), "{report}");
    }
    let file = rules(&format!("max_body: 2k{RULES}"));
    let long = format!("{{\"max_tokens\":5{}}}", " ".repeat(2_000));
    let plan = file.rules().resolve(&request("/v1/chat", "400").with_attribute("body", &long));
    assert_eq!(plan.problem().map(tidegate::RequestProblem::kind), Some(tidegate::spi::RequestProblemKind::TooLong));
}

#[test]
fn the_actual_cost_has_one_source() {
    let text = RULES.replace("usage: total\n", "usage: total\n      actual: x-used\n");
    let report = RuleFile::parse("rules.yaml", &text).unwrap_err();
    assert_eq!(report.problems()[0].code(), "cost", "{report}");
    let text = RULES.replace("usage: total", "usage: all");
    let report = RuleFile::parse("rules.yaml", &text).unwrap_err();
    assert_eq!((report.problems()[0].code(), report.position(&report.problems()[0])), ("unknown-value", (9, 14)));
}

/// Nothing corrects a leaky bucket or a concurrency limit after the response, so the actual cost would be lost there.
#[test]
fn usage_is_refused_under_limits_that_cannot_be_corrected() {
    let own = "token_bucket: { capacity: 100k, refill: 1k/s }";
    for (algorithm, limit) in [
        ("leaky_bucket", "leaky_bucket: { rate: 1/s, queue: 9 }"),
        ("concurrency", "concurrency: { max: 9 }"),
        (
            "leaky_bucket",
            "limits: { a: { token_bucket: { capacity: 9, refill: 1/s } }, b: { leaky_bucket: { rate: 1/s, queue: 9 } } }",
        ),
    ] {
        let report = RuleFile::parse("rules.yaml", &RULES.replacen(own, limit, 1)).unwrap_err();
        let problem = &report.problems()[0];
        assert_eq!((problem.code(), report.position(problem)), ("cost", (9, 14)), "{report}");
        let text = report.to_string();
        assert!(
            text.contains(&format!("the token usage cannot be charged to a `{algorithm}` after the response")),
            "{text}"
        );
        assert!(text.contains("`token_bucket`, `fixed_window`, `sliding_log`, `sliding_window` or `quota`"), "{text}");
    }
    let plans = "\nplans: { free: { tokens: { leaky_bucket: { rate: 1/s, queue: 9 } } } }";
    let report = RuleFile::parse("rules.yaml", &format!("{}{plans}", RULES.trim_end())).unwrap_err();
    assert_eq!((report.problems()[0].code(), report.position(&report.problems()[0])), ("cost", (9, 14)), "{report}");
    for limit in ["fixed_window: { limit: 9k, window: 1m }", "quota: { amount: 9k, period: day }"] {
        rules(&RULES.replacen(own, limit, 1));
    }
    // A rule without `usage` beside it may have such a limit.
    let plain = RULES.rfind(own).unwrap();
    rules(&format!("{}concurrency: {{ max: 9 }}{}", &RULES[..plain], &RULES[plain + own.len()..]));
}
