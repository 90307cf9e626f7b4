//! `error_format`: the format of refusals, of a file and of a rule.

use tidegate::Request;
use tidegate::http::ErrorFormat;
use tidegate_rule_tools::run_tests;
use tidegate_rules::RuleFile;

const LIMIT: &str = "token_bucket: { capacity: 5, refill: 1/s }";

fn parse(text: &str) -> RuleFile {
    RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}\n{text}"))
}

/// A file with these fields below `http`, and these fields of the rules `tokens` and `api`.
fn file(http: &str, tokens: &str, api: &str) -> RuleFile {
    parse(&format!(
        "version: 1\nhttp: {{ {http} }}\nrules:\n\
         - {{ id: tokens, match: {{ path: /v1/chat }}, per: [header:x-key], cost: {{ usage: total, default: 5 }}, {tokens} {LIMIT} }}\n\
         - {{ id: api, match: {{ path: [/v1/chat, /other, /a/b] }}, per: [header:x-key], {api} {LIMIT} }}\n"
    ))
}

/// The formats of the two rules; `None` for that of the header policy.
fn formats(file: &RuleFile) -> [Option<ErrorFormat>; 2] {
    ["tokens", "api"].map(|rule| file.rules().rule(rule).unwrap().error_format)
}

#[test]
fn a_rule_that_counts_tokens_is_refused_in_the_form_of_its_clients_and_others_in_json() {
    let by_default = file("", "", "");
    assert_eq!(formats(&by_default), [Some(ErrorFormat::OpenAi), None]);
    assert_eq!(by_default.rules().header_policy().error_format(), ErrorFormat::Json);
}

#[test]
fn a_rule_precedes_the_file_and_the_file_precedes_the_default() {
    let (json, problem, openai) = (Some(ErrorFormat::Json), Some(ErrorFormat::Problem), Some(ErrorFormat::OpenAi));
    for (http, tokens, api, expected) in [
        ("error_format: json", "", "", [json, json]),
        ("error_format: problem", "", "", [problem, problem]),
        ("error_format: openai", "", "", [openai, openai]),
        ("error_format: openai", "error_format: json,", "", [json, openai]),
        ("error_format: json", "", "error_format: openai,", [json, openai]),
        ("", "error_format: problem,", "error_format: openai,", [problem, openai]),
    ] {
        assert_eq!(formats(&file(http, tokens, api)), expected, "{http} {tokens} {api}");
    }
    // For requests that are refused before the rules are known.
    assert_eq!(file("error_format: openai", "", "").rules().header_policy().error_format(), ErrorFormat::OpenAi);
}

#[test]
fn an_unknown_format_is_an_error_that_names_the_known_ones() {
    let report = RuleFile::parse(
        "rules.yaml",
        &format!("version: 1\nrules:\n- {{ id: a, per: [], error_format: anthropic, {LIMIT} }}\n"),
    );
    let text = report.err().map(|report| report.to_string()).unwrap();
    for name in ["json", "problem", "openai"] {
        assert!(text.contains(name), "{text}");
    }
}

/// The format of the answer to a request with two keys, which cannot be judged.
fn format_of_problem(file: &RuleFile, path: &'static str) -> Option<ErrorFormat> {
    let request = Request::new("").with_attribute("path", path).with_attribute("header:x-key", "a");
    let plan = file.rules().resolve(&request.with_further_value("header:x-key", "b"));
    assert!(plan.problem().is_some() && plan.checks().is_empty());
    plan.error_format()
}

#[test]
fn a_request_that_cannot_be_judged_has_the_format_of_the_rules_that_match_it() {
    let file = file("", "", "");
    assert_eq!(format_of_problem(&file, "/v1/chat"), Some(ErrorFormat::OpenAi));
    assert_eq!(format_of_problem(&file, "/other"), None);
    assert_eq!(format_of_problem(&file, "/none"), None);
    // Servers may read it as the path of the model.
    assert_eq!(format_of_problem(&file, "/v1%2Fchat"), Some(ErrorFormat::OpenAi));
    assert_eq!(format_of_problem(&file, "/a%2Fb"), None);
    let shadow = self::file("", "mode: shadow,", "");
    assert_eq!(format_of_problem(&shadow, "/v1/chat"), None, "a shadow rule affects nothing");
}

#[test]
fn a_test_file_can_expect_the_body_of_every_refusal() {
    let rules = format!(
        "version: 1\nhttp: {{ error_format: problem }}\nrules:\n\
         - {{ id: tokens, match: {{ path: /v1/chat }}, per: [header:x-key], on_failure: closed, error_format: openai, {LIMIT} }}\n"
    );
    let error = |message: &str, kind: &str, code: &str| {
        let error = format!(r#"{{"message":"{message}","type":"{kind}","param":null,"code":"{code}"}}"#);
        format!(r#"body: '{{"type":"error","error":{error}}}'"#)
    };
    let steps = [
        "{ send: 5, expect: allowed }".to_owned(),
        format!(
            "{{ expect: {{ status: 429, {} }} }}",
            error("Too many requests. Retry later.", "rate_limit_error", "rate_limit_exceeded")
        ),
        format!(
            "{{ store_fails: true, expect: {{ status: 503, {} }} }}",
            error(
                "The request cannot be checked against its limits at the moment. Retry later.",
                "api_error",
                "temporarily_unavailable"
            )
        ),
        format!(
            "{{ request: {{ headers: {{ x-key: [a, b] }} }}, expect: {{ status: 400, {} }} }}",
            error(
                "The request has more than one `header:x-key`. Send it once.",
                "invalid_request_error",
                "bad_request"
            )
        ),
    ];
    let steps = steps.iter().fold(String::new(), |text, step| text + "      - " + step + "\n");
    let folder = tempfile::tempdir().expect("a directory");
    std::fs::write(folder.path().join("rules.yaml"), rules).expect("a rule file");
    let tests =
        format!("rules: rules.yaml\nrequest: {{ path: /v1/chat }}\ntests:\n  - name: errors\n    steps:\n{steps}");
    std::fs::write(folder.path().join("a.test.yaml"), tests).expect("a test file");
    let run = run_tests(&folder.path().join("a.test.yaml")).unwrap_or_else(|report| panic!("{report}"));
    assert!(run.passed(), "{}", run.render(false));
}
