//! Test files: passing and failing tests, how the results are printed, and invalid test files.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tidegate_rule_tools::{TestRun, run_tests};

#[path = "test_files/holds.rs"]
mod holds;
#[path = "test_files/quotas.rs"]
mod quotas;

const RULES: &str = "\
version: 1
identify:
  client: [header:x-api-key, ip]
  authenticated: [x-api-key]
exempt:
  - { path: /healthz }
rules:
  - id: search
    match: { method: GET, path: /search }
    per: [client]
    token_bucket: { capacity: 5, refill: 1/s }
  - id: all
    match: { path: [/search, /list] }
    per: []
    fixed_window: { limit: 8, window: 1m }
    message: Too much for all of us.
  - id: pipe
    match: { action: pipe }
    per: []
    leaky_bucket: { rate: 1/s, queue: 2 }
  - id: quiet
    match: { action: login }
    per: [attr:account]
    sliding_log: { limit: 1, window: 1m }
    on_failure: closed
    security: true
  - id: trial
    match: { path: /list }
    per: [client]
    fixed_window: { limit: 1, window: 1m }
    mode: shadow
  - id: gone
    per: []
    fixed_window: { limit: 1, window: 1m }
    mode: disabled
";

/// A directory with these rules and these tests.
fn folder(rules: &str, tests: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("rules.yaml"), rules).expect("a rule file");
    fs::write(folder.path().join("rules.test.yaml"), tests).expect("a test file");
    folder
}

fn run_in(folder: &Path) -> Result<TestRun, tidegate_rules::Report> {
    run_tests(&folder.join("rules.test.yaml"))
}

/// Runs these steps against [`RULES`], as one test.
fn run(steps: &str) -> TestRun {
    let request = "request: { method: GET, path: /search, ip: 203.0.113.9 }";
    let tests = format!("rules: rules.yaml\n{request}\ntests:\n  - name: a test\n    steps:\n{steps}");
    run_in(folder(RULES, &tests).path()).expect("tests that can be run")
}

/// The differences, as `what: expected / got`.
fn differences(steps: &str) -> Vec<String> {
    let run = run(steps);
    let failures = run.tests.iter().flat_map(|test| &test.failures);
    failures.map(|failure| format!("{}: {} / {}", failure.what, failure.expected, failure.got)).collect()
}

fn hints(steps: &str) -> Vec<String> {
    run(steps).tests.iter().flat_map(|test| &test.failures).filter_map(|failure| failure.note.clone()).collect()
}

#[test]
fn every_expectation_can_be_met() {
    let met = run("      - { send: 5, expect: { allowed: 5, rule: search, limit: 5, remaining: 0, cost: 1, delay: 0s } }
      - { peek: true, expect: { denied: search, retry_after: 1s, reset_after: 5s, permanent: false, status: 429 } }
      - { cost: 6, expect: { denied: 1, rule: search, permanent: true, headers: { retry-after: ~ } } }
      - { after: 1s, expect: { allowed: 1, status: 200, headers: { X-RateLimit-Limit: 5, ratelimit: '*', retry-after: ~ } } }
      - { send: 3, request: { path: /list, headers: { x-api-key: k1 } }, expect: { allowed: 2, denied: all } }
      - { request: { path: /list }, expect: { denied: all, message: Too much for all of us., retry_after: 59s } }
      - { at: 1m, send: 2, request: { path: /list }, expect: { allowed: 2, shadow_would_reject: [trial] } }
      - { at: 2m, request: { path: /list }, expect: { shadow_would_reject: [] } }
      - { send: 3, request: { action: pipe, path: / }, expect: { allowed: 3, delay: 2s } }
      - { send: 2, request: { path: /healthz }, expect: no_rule }
      - { send: 2, request: { path: /nothing }, expect: { no_rule: 2 } }
      - { request: { action: login, path: /, attributes: { account: a } }, expect: allowed }
      - { request: { action: login, path: /, attributes: { account: a } }, expect: { status: 429, headers: { ratelimit: ~ } } }
");
    assert!(met.passed(), "{}", met.render(false));
    assert_eq!((met.tests[0].steps, met.tests[0].requests, met.tests[0].line), (13, 24, 4));
}

#[test]
fn every_failed_expectation_is_reported() {
    let steps = "      - { send: 6, expect: allowed }
      - { send: 2, expect: allowed }
      - { expect: { denied: all } }
      - { expect: no_rule }
      - { peek: true, request: { path: /nothing }, expect: allowed }
      - { cost: 6, expect: { retry_after: 1s, permanent: false, cost: 1, limit: 6, rule: all } }
      - { expect: { remaining: 1, retry_after: 2s, reset_after: 1s, delay: 1s, status: 200, message: no, body: '{}' } }
      - { expect: { headers: { retry-after: 2, x-ratelimit-limit: ~, x-none: '*' }, shadow_would_reject: [trial] } }
";
    assert_eq!(
        differences(steps),
        [
            "outcome: 6 allowed / 5 allowed, 1 denied by search",
            "outcome: 2 allowed / 2 denied by search",
            "outcome: denied by all / denied by search",
            "outcome: no_rule / denied by search",
            "outcome: allowed / no_rule",
            "rule: all / search",
            "cost: 1 / 6",
            "limit: 6 / 5",
            "retry_after: 1s / never",
            "permanent: false / true",
            "remaining: 1 / 0",
            "status: 200 / 429",
            "retry_after: 2s / 1s",
            "reset_after: 1s / 5s",
            "delay: 1s / 0s",
            "message: no / Too many requests. Retry later.",
            "body: {} / {\"error\":\"rate_limit_exceeded\",\"message\":\"Too many requests. Retry later.\",\"rule_id\":\"search\",\"retry_after\":1,\"retry_after_ms\":1000}",
            "header retry-after: 2 / 1",
            "header x-none: any value / none",
            "header x-ratelimit-limit: none / 5",
            "shadow_would_reject: trial / none",
        ]
    );
}

#[test]
fn a_hint_names_a_likely_cause_of_a_failure() {
    for (step, expected) in [
        ("{ expect: denied }", "the last one passed: 4 of 5 are left under `search`"),
        ("{ send: 6, at: 2s, expect: allowed }", "under `search` the last one passes 1s later, at 3s"),
        ("{ cost: 6, expect: allowed }", "it never passes: it costs 6, and `search` admits at most 5"),
        ("{ expect: { denied: all } }", "`all` admits it: 7 of 8 are left"),
        (
            "{ cost: 9, expect: { denied: all } }",
            "`all` refuses it too; the decision is about the rule with the longest wait",
        ),
        ("{ expect: { rule: pipe } }", "`pipe` does not apply: its action is pipe, but the request has none"),
        ("{ expect: { denied: gone } }", "`gone` is disabled"),
        ("{ request: { path: /healthz }, expect: { denied: gone } }", "the exemption in line 6 of the rules applies"),
        (
            "{ request: { path: /serch }, expect: allowed }",
            "no rule applies; `search` is the most similar: its path is /search, but the request has /serch. If that is intended, \
             expect `no_rule`",
        ),
        (
            "{ request: { path: /healthz }, expect: allowed }",
            "the exemption in line 6 of the rules applies. If that is intended, expect `no_rule`",
        ),
        ("{ expect: no_rule }", "applied: `search`, `all`"),
        ("{ expect: { headers: { x-ratelimit-limit: 4 } } }", ""),
        (
            "{ request: { action: login, path: / }, expect: { headers: { ratelimit: '*' } } }",
            "a rule with `security: true` applied: its responses show only when to retry",
        ),
    ] {
        let found = hints(&format!("      - {step}\n"));
        assert_eq!(found.first().map_or("", String::as_str), expected, "{step}");
    }
}

/// The output on the page for users is the real output.
#[test]
fn the_documentation_shows_what_is_printed() {
    let page = include_str!("../../docs/testing-limits.md");
    let blocks: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let [rules, tests, passing, failing] = blocks[..4] else { panic!("the page has four blocks") };
    let body = |block: &str| block.split_once('\n').unwrap().1.to_owned();
    let (rules, tests) = (body(rules), body(tests));
    for (rules, shown) in [(rules.clone(), passing), (rules.replace("capacity: 5", "capacity: 8"), failing)] {
        let folder = folder(&rules, &tests);
        let printed = run_in(folder.path()).unwrap().render(false);
        let printed = printed.replace(&format!("{}/", folder.path().display()), "");
        assert_eq!(body(&body(shown)), printed);
    }
}

#[test]
fn a_failing_test_shows_expected_and_actual_values_and_its_position() {
    let tests = "\
rules: rules.yaml
tests:
  - name: too much is expected
    request: { method: POST, path: /list, headers: { Authorization: Bearer s3cret, x-long: abc }, tenant: acme }
    steps:
      - send: 8
        every: 500ms
      - expect:
          allowed: 1
          remaining: 12345
          retry_after: 1m
  - name: this one passes
    steps:
      - { request: { path: /list }, expect: allowed }
";
    let folder = folder(RULES, tests);
    let run = run_in(folder.path()).unwrap();
    let printed = run.render(false).replace(&format!("{}/", folder.path().display()), "");
    assert_eq!(
        printed,
        "\
rules.test.yaml
  ✗ too much is expected
      rules.test.yaml:9:20, at 3s500ms
      POST /list, tenant: acme, Authorization: …, x-long: abc

                     expected  got
        outcome      allowed   denied by all
        remaining    12345     0
        retry_after  1m        56s500ms

      hint: under `all` the last one passes 56s500ms later, at 1m

  ✓ this one passes
  rules that no test reaches: search, pipe, quiet
  2 tests, 10 requests: 1 failed
"
    );
    let coloured = run.render(true);
    assert!(coloured.contains("\x1b[31m✗\x1b[0m") && coloured.contains("\x1b[32m✓\x1b[0m"), "{coloured}");
    assert!(!run.render(false).contains('\x1b'));
}

#[test]
fn coverage_distinguishes_rules_that_matched_from_rules_that_denied() {
    let run = run("      - { send: 5, expect: allowed }
      - { send: 2, request: { path: /list }, expect: allowed }
");
    let coverage: Vec<_> = run.coverage.iter().map(|rule| (rule.id.as_str(), rule.applied, rule.denied)).collect();
    // A shadow rule counts as denying if it would have denied; a disabled rule is not listed.
    assert_eq!(coverage, [("search", 5, 0), ("all", 7, 0), ("pipe", 0, 0), ("quiet", 0, 0), ("trial", 2, 1)]);
    assert_eq!(run.unexercised().collect::<Vec<_>>(), ["pipe", "quiet"]);
    assert_eq!(run.never_denied().collect::<Vec<_>>(), ["search", "all", "pipe", "quiet"]);
    assert!(run.render(false).contains("  rules that no test saw deny: search, all\n"));
}

#[test]
fn json_has_everything_that_is_printed() {
    let json = run("      - { at: 2s, expect: { denied: search } }\n").to_json();
    assert_eq!((&json["passed"], &json["tests"][0]["passed"]), (&false.into(), &false.into()));
    let failure = &json["tests"][0]["failures"][0];
    for (name, expected) in [
        ("what", "outcome"),
        ("expected", "denied by search"),
        ("got", "allowed"),
        ("at", "2s"),
        ("request", "GET /search, ip: 203.0.113.9"),
    ] {
        assert_eq!(failure[name], expected, "{name}");
    }
    assert_eq!((&failure["line"], &failure["column"], &failure["step"]), (&6.into(), &37.into(), &1.into()));
    assert_eq!(json["coverage"][0], serde_json::json!({ "rule": "search", "applied": 1, "denied": 0 }));
}

/// The tags of an XML text in order, each checked to be closed by its like.
fn tags(xml: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for piece in xml.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "{text}");
        assert!(text.split('&').skip(1).all(|entity| entity.contains(';')), "{text}");
        let name = tag.trim_end_matches(['/', '?']).split(' ').next().unwrap_or_default().to_owned();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop().as_deref(), Some(name)),
            None if tag.starts_with('?') => {}
            None => {
                all.push(name.clone());
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert_eq!(open, [""; 0]);
    all
}

#[test]
fn junit_output_is_valid_xml_for_any_test_name() {
    let tests = "\
rules: rules.yaml
tests:
  - { name: 'a < b & \"c\" > d', steps: [{ request: { path: '/serch?a=<b>&c' }, expect: allowed }] }
  - { name: fine, steps: [{ request: { path: /list }, expect: allowed }] }
";
    let run = run_in(folder(RULES, tests).path()).unwrap();
    let xml = TestRun::to_junit(&[run.clone(), run]);
    let suite = ["testsuite", "testcase", "failure", "testcase"];
    assert_eq!(tags(&xml), [&["testsuites"][..], &suite, &suite].concat());
    assert!(xml.contains("<testsuites name=\"tidegate\" tests=\"4\" failures=\"2\">"), "{xml}");
    assert!(xml.contains("name=\"a &lt; b &amp; &quot;c&quot; &gt; d\""), "{xml}");
    assert!(xml.contains("message=\"outcome: expected allowed, got no_rule\""), "{xml}");
}

#[test]
fn fields_of_a_step_override_fields_of_the_test() {
    let rules = "\
version: 1
identify: { authenticated: [x-a, x-b] }
rules:
  - { id: a, match: { path: /a, header: { x-a: '1' } }, per: [header:x-b], token_bucket: { capacity: 9, refill: 1/s } }
  - { id: b, match: { path: /b }, per: [body:user.id], token_bucket: { capacity: 1, refill: 1/s } }
";
    let tests = "\
rules: rules.yaml
request: { path: /a, headers: { X-A: 1 } }
tests:
  - name: layers
    request: { headers: { x-b: me } }
    steps:
      - { expect: { rule: a, remaining: 8 } }
      - { request: { headers: { x-b: you } }, expect: { rule: a, remaining: 8 } }
      - { request: { headers: { x-a: ~ } }, expect: no_rule }
      - { request: { headers: { x-a: [1, 2] } }, expect: { denied: 1, status: 400 } }
      - { request: { path: /b, body: { user: { id: 7 } } }, expect: allowed }
      - { request: { path: /b, body: '{\"user\":{\"id\":7}}' }, expect: denied }
      - { request: { path: /b, body: { user: { id: 8 } } }, expect: allowed }
";
    let run = run_in(folder(rules, tests).path()).unwrap();
    assert!(run.passed(), "{}", run.render(false));
}

#[test]
fn a_null_removes_a_value_of_the_outer_request() {
    let rules = "\
version: 1
identify: { user: [attr:user, ip] }
rules:
  - { id: method, match: { method: GET }, per: [], token_bucket: { capacity: 99, refill: 1/s } }
  - { id: path, match: { path: /a }, per: [], token_bucket: { capacity: 98, refill: 1/s } }
  - { id: host, match: { host: h.example }, per: [], token_bucket: { capacity: 97, refill: 1/s } }
  - { id: ip, match: { ip: 203.0.113.0/24 }, per: [], token_bucket: { capacity: 96, refill: 1/s } }
  - { id: tenant, match: { tenant: acme }, per: [], token_bucket: { capacity: 95, refill: 1/s } }
  - { id: action, match: { action: run }, per: [], token_bucket: { capacity: 94, refill: 1/s } }
  - { id: cost, match: { header: { x-a: '1' } }, per: [], token_bucket: { capacity: 93, refill: 1/s } }
  - { id: body, match: { header: { x-b: '1' } }, per: [body:id], token_bucket: { capacity: 1, refill: 1/s } }
";
    let common = [
        ("method", "GET"),
        ("path", "/a"),
        ("host", "h.example"),
        ("ip", "203.0.113.9"),
        ("tenant", "acme"),
        ("action", "run"),
    ];
    let tests = |outer: &str, steps: &str| {
        let tests = format!("rules: rules.yaml\nrequest: {{ {outer} }}\ntests:\n  - name: a\n    steps: [{steps}]\n");
        let run = run_in(folder(rules, &tests).path()).unwrap();
        assert!(run.passed(), "{}", run.render(false));
    };
    for (field, value) in common {
        let removed = format!("{{ request: {{ {field}: ~ }}, expect: no_rule }}");
        tests(
            &format!("{field}: {value}"),
            &format!("{{ expect: {{ rule: {field} }} }}, {removed}, {{ expect: allowed }}"),
        );
    }
    tests("cost: 9, headers: { x-a: 1 }", "{ expect: { cost: 9 } }, { request: { cost: ~ }, expect: { cost: 1 } }");
    let bodies = "{ expect: allowed }, { expect: denied }, { request: { body: ~ }, expect: allowed }";
    tests("body: { id: 7 }, headers: { x-b: 1 }", bodies);
}

#[test]
fn control_characters_are_escaped_in_the_report() {
    let tests = "\
rules: rules.yaml
tests:
  - { name: \"clear\\e[2J\\u202e\", steps: [{ request: { path: /list }, expect: { message: \"a\\e[2Jb\" } }] }
";
    let run = run_in(folder(RULES, tests).path()).unwrap();
    let printed = run.render(false);
    assert!(printed.contains("  ✗ clear\\u{1b}[2J\\u{202e}\n"), "{printed}");
    assert!(printed.contains("  a\\u{1b}[2Jb  none\n"), "{printed}");
    assert!(!printed.contains(['\x1b', '\u{202e}']), "{printed}");
    assert!(run.to_json().to_string().contains("\\u001b"), "JSON contains the name unchanged");
}

/// A year passes without waiting, and each test begins at the same start time.
#[test]
fn time_is_virtual() {
    let run = run("      - { send: 5, expect: allowed }
      - { at: 365d, send: 6, expect: { allowed: 5, denied: 1 } }
");
    assert!(run.passed(), "{}", run.render(false));
}
