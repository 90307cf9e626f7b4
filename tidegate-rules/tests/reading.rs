//! Invalid rule files: all problems are reported at once, each with its position and help, and the work is bounded for any file.

use std::fmt::Write;

use tidegate_rules::{Report, RuleFile};

#[path = "reading/ledger.rs"]
mod ledger;
#[path = "reading/pairs.rs"]
mod pairs;
#[path = "reading/quotas.rs"]
mod quotas;

/// The problems as `line:column code`, in order.
fn codes(report: &Report) -> Vec<String> {
    let position_and_code = |problem| {
        let (line, column) = report.position(problem);
        format!("{line}:{column} {}", problem.code())
    };
    report.problems().iter().map(position_and_code).collect()
}

fn errors(text: &str) -> Vec<String> {
    codes(&RuleFile::parse("rules.yaml", text).expect_err("the file is invalid"))
}

#[test]
fn a_header_without_its_kind_gets_the_source_to_write() {
    for (per, help) in [
        ("x-api-key", "help: write `header:x-api-key`"),
        ("session", "help: sources are `ip`, "),
        ("a-b c", "help: sources are"),
    ] {
        let text =
            format!("version: 1\nrules:\n- {{ id: a, per: ['{per}'], fixed_window: {{ limit: 1, window: 1m }} }}\n");
        let report = RuleFile::parse("rules.yaml", &text).expect_err("there is no such source").to_string();
        assert!(report.contains("error[source]: there is no source") && report.contains(help), "{report}");
    }
}

const MANY_MISTAKES: &str = "\
version: 1
identify:
  client: [header:x-api-key, ip]
  trusted_proxies: [10.0.0.1/8]
rules:
  - id: a
    match: { method: post, path: /a//b }
    per: [clint]
    token_bucket: { capacty: 20, refill: 10 }
  - id: a
    per: []
    fixed_window: { limit: many, window: 1m }
    quota: { amount: 3 }
  - per: [ip]
    sliding_log: { limit: 10, window: 10m }
  - id: c
    per: [ip]
    cost: 1 + request.pth
    sliding_log: { limit: 100000, window: 10x }
    mode: shadw
tenants: { acme: gold }
";

#[test]
fn every_problem_is_reported_once_and_all_at_the_same_time() {
    let expected = [
        "4:21 network",
        "7:22 method",
        "7:34 path",
        "8:11 per",
        "9:21 unknown-field",
        "9:42 rate",
        "10:9 limit",
        "10:9 duplicate-id",
        "12:28 type",
        "13:14 missing-field",
        "14:5 missing-field",
        "18:23 expression",
        "19:27 inexact",
        "19:43 duration",
        "20:11 unknown-value",
        "21:18 unknown-plan",
    ];
    assert_eq!(errors(MANY_MISTAKES), expected);
}

/// One problem does not hide another.
#[test]
fn an_invalid_value_does_not_hide_a_missing_one() {
    let text = "version: 1\nplans: { pro: { export: { fixed_window: { limit: 1, window: 1d } } } }\nrules:\n\
                - { id: exports, cost: -5 }\n- { id: other, per: [], cost: 1 }\n- { id: third, per: [ip], mode: of, fixed_window: { limit: 1, window: 1d } }\n";
    let expected =
        ["2:27 unknown-rule", "4:5 missing-field", "4:9 limit", "4:24 type", "5:9 limit", "6:33 unknown-value"];
    assert_eq!(errors(text), expected);
    let text = text.replace("- { id: exports, cost: -5 }\n", "");
    assert_eq!(errors(&text), ["2:27 unknown-rule", "4:9 limit", "5:33 unknown-value"]);
}

#[test]
fn a_problem_is_shown_with_an_excerpt_and_a_suggestion() {
    let report = RuleFile::parse(
        "rules.yaml",
        "version: 1\nrules:\n  - id: api\n    per: [clint]\n    token_bucket: { capacity: 20, refill: 10/s }\n",
    );
    let expected = "\
error[per]: `clint` is neither a name from `identify` nor a source
 --> rules.yaml:4:11
  |
4 |     per: [clint]
  |           ^^^^^
  |
  = help: did you mean `client`?";
    assert_eq!(report.expect_err("clint is undefined").to_string(), expected);
}

#[test]
fn impossible_values_of_limits_are_reported_at_their_position() {
    let rule = |limit: &str| errors(&format!("version: 1\nrules:\n- id: r\n  per: []\n  {limit}\n"));
    assert_eq!(rule("token_bucket: { capacity: 9007199254740993, refill: 10/s }"), ["5:29 inexact"]);
    assert_eq!(rule("token_bucket: { capacity: -1, refill: 10/s }"), ["5:29 type"]);
    assert_eq!(rule("token_bucket: { capacity: 1.5, refill: 10/s }"), ["5:29 type"]);
    assert_eq!(rule("token_bucket: { capacity: 10, refill: 10 }"), ["5:41 rate"]);
    assert_eq!(rule("token_bucket: { capacity: 10, refill: 10/month }"), ["5:41 rate"]);
    assert_eq!(rule("sliding_window: { limit: 10, window: 1s, slices: 7 }"), ["5:52 inexact"]);
    assert_eq!(rule("fixed_window: { limit: 10, window: 200y }"), ["5:38 duration"]);
    assert_eq!(rule("fixed_window: { limit: 10, window: 2 months }"), ["5:38 duration"]);
    assert_eq!(rule("sliding_log: { limit: 10, window: month }"), ["5:37 duration"]);
    assert_eq!(rule("cost: -1"), ["3:7 limit", "5:9 type"]);
}

#[test]
fn impossible_concurrency_limits_are_reported_at_their_position() {
    let rule = |limit: &str| errors(&format!("version: 1\nrules:\n- id: r\n  per: []\n  {limit}\n"));
    assert_eq!(rule("concurrency: { max: 65_536, lease: 30s }"), ["5:23 concurrency"]);
    assert_eq!(rule("concurrency: { max: -1 }"), ["5:23 value"]);
    assert_eq!(rule("concurrency: { max: many }"), ["5:23 type"]);
    assert_eq!(rule("concurrency: { lease: 30s }"), ["5:18 missing-field"]);
    assert_eq!(rule("concurrency: 3"), ["5:16 type"]);
    assert_eq!(rule("concurrency: { max: 3, lease: 999ms }"), ["5:33 concurrency"]);
    assert_eq!(rule("concurrency: { max: 3, lease: 25h }"), ["5:33 concurrency"]);
    assert_eq!(rule("concurrency: { max: 3, lease: 0s }"), ["5:33 concurrency"]);
    assert_eq!(rule("concurrency: { max: 3, lease: month }"), ["5:33 duration"]);
    assert_eq!(rule("concurrency: { max: 3, lease: 30 }"), ["5:33 duration"]);
    assert_eq!(rule("concurrency: { max: 70_000, lease: 1ms }"), ["5:23 concurrency", "5:38 concurrency"]);
    assert_eq!(rule("concurrency: { max: 3, ttl: 30s }"), ["5:26 unknown-field"]);
    assert_eq!(rule("concurrency: { max: 3 }\n  denial_cache: true"), ["6:17 concurrency"]);
    assert_eq!(rule("concurrency: { max: 3 }\n  token_bucket: { capacity: 1, refill: 1/s }"), ["3:7 limit"]);
    let plan = "version: 1\nplans: { pro: { r: { concurrency: { max: 65_536 } } } }\nrules:\n- { id: r, per: [], concurrency: { max: 3 } }\n";
    assert_eq!(errors(plan), ["2:42 concurrency"]);
}

#[test]
fn concurrency_limits_have_a_lease_of_30_seconds_and_may_be_0_in_plans_and_under_names() {
    let text = "version: 1\ndefault_plan: pro\nplans: { pro: { one: { concurrency: { max: 0, lease: 1d } } } }\nrules:\n\
                - { id: one, match: {}, per: [], denial_cache: false, concurrency: { max: 65_535 } }\n\
                - { id: two, match: {}, per: [], limits: { active: { concurrency: { max: 3 } }, rate: { token_bucket: { capacity: 9, refill: 1/s } } }, denial_cache: true }\n";
    let file = RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"));
    let plan = file.rules().resolve(&tidegate::Request::new(""));
    let limits: Vec<_> =
        plan.checks().iter().map(|check| tidegate_rule_tools::describe_limit(check.gate().limit())).collect();
    let expected = [
        "concurrency: 0 at the same time, each for 1d without a renewal",
        "concurrency: 3 at the same time, each for 30s without a renewal",
        "token bucket: 9 at once, then 1/s",
    ];
    assert_eq!(limits, expected);
}

#[test]
fn a_calendar_month_in_another_limit_is_an_error_with_help() {
    let error = |limit: &str| {
        let text = format!("version: 1\nrules:\n- {{ id: r, per: [], {limit} }}\n");
        RuleFile::parse("rules.yaml", &text).expect_err("the file is invalid").to_string()
    };
    let several = error("fixed_window: { limit: 10, window: 2 months }");
    assert!(several.contains("write month or year for a calendar one, or 60d for a fixed length"), "{several}");
    for limit in ["sliding_log: { limit: 10, window: month }", "sliding_window: { limit: 10, window: month }"] {
        let sliding = error(limit);
        assert!(sliding.contains("months differ in length; write 30d"), "{sliding}");
        assert!(sliding.contains("only `fixed_window` and `quota` take calendar months and years"), "{sliding}");
    }
}

#[test]
fn contradictory_fields_are_errors() {
    let file = |rest: &str| errors(&format!("version: 1\n{rest}"));
    let limit = "per: [], token_bucket: { capacity: 1, refill: 1/s }";
    assert_eq!(file(&format!("rules:\n- {{ id: a b, {limit} }}")), ["3:9 id"]);
    assert_eq!(
        file(&format!("rules:\n- {{ id: a, {limit}, fixed_window: {{ limit: 1, window: 1s }} }}")),
        ["3:9 limit"]
    );
    assert_eq!(file("identify: { trusted_hops: 0 }\nrules: []"), ["2:27 trust"]);
    assert_eq!(file("identify: { trusted_hops: 1, trusted_proxies: 10.0.0.0/8 }\nrules: []"), ["2:27 trust"]);
    assert_eq!(file("identify: { ip: header:x-ip }\nrules: []"), ["2:13 identity"]);
    assert_eq!(file("identify: { user: headr:x }\nrules: []"), ["2:19 source"]);
    assert_eq!(file("identify: { user: attr:path }\nrules: []"), ["2:19 source"]);
    assert_eq!(file("exempt: [{}]\nrules: []"), ["2:10 exempt-all"]);
    assert_eq!(file(&format!("exempt: [{{ rules: a }}]\nrules:\n- {{ id: a, {limit} }}")), ["2:12 exempt-all"]);
    assert_eq!(file("exempt: [{ path: /x, rules: [] }]\nrules: []"), ["2:29 exempt-rules"]);
    assert_eq!(
        file(&format!("exempt: [{{ path: /x, rules: [a, b] }}]\nrules:\n- {{ id: a, {limit} }}")),
        ["2:33 unknown-rule"]
    );
    assert_eq!(file(&format!("rules:\n- {{ id: a, {limit}, match: {{ rules: [a] }} }}")), ["3:74 unknown-field"]);
    assert_eq!(file("http: { ratelimit: draft-99 }\nrules: []"), ["2:20 draft"]);
    assert_eq!(file(&format!("rules:\n- {{ id: a, {limit}, match: {{ plan: gold }} }}")), ["3:80 unknown-plan"]);
    assert_eq!(file(&format!("rules:\n- {{ id: a, {limit}, cost: {{ header: x-cost }} }}")), ["3:81 cost-header"]);
    let both = "cost: { header: x, expression: '1' }";
    assert_eq!(
        file(&format!("identify: {{ authenticated: x }}\nrules:\n- {{ id: a, {limit}, {both} }}")),
        ["4:81 cost"]
    );
    assert_eq!(errors("rules: []"), ["1:1 version"]);
    assert_eq!(errors("version: 2\nrules: []"), ["1:10 version"]);
    let shared = "rules:\n- { id: a, per: ip, budget: b, fixed_window: { limit: 1, window: 1s } }\n\
                  - { id: b, per: ip, budget: b, fixed_window: { limit: 2, window: 1s } }";
    assert_eq!(file(shared), ["4:9 rule"]);
    let scoped = "rules:\n- { id: a, per: [client], budget: b, fixed_window: { limit: 1, window: 1s } }\n\
                  - { id: b, per: [tenant, client], budget: b, fixed_window: { limit: 1, window: 1s } }";
    assert_eq!(file(scoped), ["4:17 budget"]);
}

#[test]
fn invalid_yaml_is_reported_with_its_position() {
    assert_eq!(errors("version: 1\nrules: ["), ["2:8 yaml"]);
    assert_eq!(errors("version: 1\nversion: 1\n"), ["2:1 yaml"]);
    assert_eq!(errors("version: 1\nrules:\n- { id: a, id: b }\n"), ["3:12 yaml"]);
    assert_eq!(errors("- 1\n- 2\n"), ["1:3 type"]);
    assert_eq!(errors("just text"), ["1:1 type"]);
    assert_eq!(errors("rules: rules.yaml\ntests: []\n"), ["2:1 tests"]);
    assert!(!errors("\u{0}\u{1}").is_empty());
}

#[test]
fn nesting_aliases_and_sizes_are_bounded() {
    let deep = format!("version: 1\nrules: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(errors(&deep).len(), 1);
    let deep = format!(
        "version: 1\nidentify:\n{}",
        (0..5_000).fold(String::new(), |mut text, depth| {
            let _ = writeln!(text, "{}a:", " ".repeat(2 + depth));
            text
        })
    );
    assert_eq!(errors(&deep).len(), 1);
    let mut bomb = String::from("version: 1\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        let _ = writeln!(bomb, "a{level}: &a{level} [{below}]");
    }
    assert!(!errors(&bomb).is_empty());
    let huge = format!("version: 1\n# {}\n", "x".repeat(9 * 1024 * 1024));
    assert_eq!(errors(&huge), ["1:1 unreadable"]);
}

#[test]
fn a_huge_or_binary_file_is_refused_before_it_is_parsed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("rules.yaml");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(100 * 1024 * 1024).expect("room for holes");
    let report = RuleFile::load(&path).expect_err("too large");
    assert!(report.to_string().contains("104857600 bytes; the maximum is 8388608"), "{report}");
    std::fs::write(&path, b"version: 1\nrules:\n  - id: \xff\xfe\n").expect("written");
    let report = RuleFile::load(&path).expect_err("not UTF-8");
    assert!(report.to_string().contains("line 3 is not UTF-8"), "{report}");
    let report = RuleFile::load(directory.path().join("none.yaml")).expect_err("not there");
    assert!(report.to_string().contains("No such file"), "{report}");
}

#[test]
fn a_yaml_syntax_error_is_reported_once_with_its_position() {
    let report = RuleFile::parse("rules.yaml", "version: 1\n  rules: [a\n").expect_err("invalid YAML");
    let problem = &report.problems()[0];
    assert_eq!((problem.code(), report.position(problem)), ("yaml", (2, 8)));
    assert_eq!(problem.message(), "mapping values are not allowed in this context");
}

/// Ten thousand rules with every field, then with a mistake in each: the file is not parsed once per mistake.
#[test]
fn ten_thousand_rules_with_every_field_are_read() {
    let mut text = String::from("version: 1\nrules:\n");
    for rule in 0..10_000 {
        let _ = writeln!(
            text,
            "- id: r{rule}\n  description: rule {rule}\n  match: {{ method: [GET, POST], path: ['/a/{rule}', '/b/{rule}/*'], header: {{ x: '{rule}' }} }}\n  \
             per: [client, tenant]\n  scope: tenant\n  token_bucket: {{ capacity: 20, refill: 10/s }}\n  cost: {{ POST: 3, default: 1 }}\n  \
             on_failure: open\n  mode: enabled\n  message: Too many.\n"
        );
    }
    assert!(RuleFile::parse("rules.yaml", &text).is_ok());
    assert_eq!(errors(&text.replace("capacity", "capacty")).len(), 100);
}

#[test]
fn a_report_stops_at_a_hundred_problems() {
    let rules = "  - { id: a, per: [], token_bucket: { capacity: x, refill: 1/s } }\n".repeat(1_000);
    assert_eq!(errors(&format!("version: 1\nrules:\n{rules}")).len(), 100);
}

#[test]
fn arbitrary_texts_are_read_or_refused() {
    bolero::check!().with_type::<String>().for_each(|text| {
        let _ = RuleFile::parse("rules.yaml", text);
    });
}

/// Pieces of rule files in random order reach more code than arbitrary texts do.
#[test]
fn arbitrary_mixtures_of_keywords_are_read_or_refused() {
    const WORDS: [&str; 40] = [
        "version: 1\n",
        "rules:\n",
        "- id: a\n",
        "  per: [client]\n",
        "  per: []\n",
        "  per: [ip, tenant]\n",
        "  token_bucket: { capacity: 5, refill: 1/s }\n",
        "  sliding_log: { limit: 5, window: 1m }\n",
        "  limits:\n",
        "    a: { fixed_window: { limit: 1, window: 1s } }\n",
        "  match: { path: /a/{id} }\n",
        "  match:\n",
        "    method: [GET, POST]\n",
        "    header: { x: 1 }\n",
        "  cost: 3\n",
        "  cost: request.size\n",
        "  cost: { POST: 3 }\n",
        "identify:\n",
        "  client: [header:x, ip]\n",
        "  tenant: header:t\n",
        "plans:\n",
        "  pro: { a: {} }\n",
        "tenants: { a: pro }\n",
        "exempt:\n",
        "- path: /health\n",
        "- ip: 10.0.0.0/8\n",
        "  mode: shadow\n",
        "  on_failure: { POST: closed, /a/*: { static: 1/s } }\n",
        "  on_failure: { static: 2/s }\n",
        "  on_failure: static\n",
        "  anonymous: { most: 5, forget_after: 1m }\n",
        "  budget: b\n",
        "http: { ratelimit: off }\n",
        "&a ",
        "*a ",
        "[",
        "{",
        "}",
        ": ",
        "\t",
    ];
    bolero::check!().with_type::<Vec<u8>>().for_each(|choice| {
        let text: String = choice.iter().take(60).map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect();
        if let Err(report) = RuleFile::parse("rules.yaml", &text) {
            assert!(report.has_errors());
            assert!(!report.to_string().is_empty());
        }
    });
}
