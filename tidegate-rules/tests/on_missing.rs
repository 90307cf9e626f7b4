//! `on_missing`: a request without a value that a rule counts by is refused, or shares one subject with its like.

use tidegate::Request;
use tidegate::rules::OnMissing;
use tidegate::spi::RequestProblemKind;
use tidegate_rules::RuleFile;

/// A file with one rule for the path `/units`, and an exemption for the address 192.0.2.9.
fn parse(rule: &str) -> RuleFile {
    let text = format!(
        "version: 1\nidentify: {{ tenant: header:x-tenant, authenticated: [x-tenant] }}\nexempt: [{{ ip: 192.0.2.9 }}]\nrules:\n\
         - {{ id: units, match: {{ path: /units }}, {rule} }}\n"
    );
    RuleFile::parse("rules.yaml", &text).unwrap_or_else(|report| panic!("{report}\n{text}"))
}

/// What a request with these attributes lacks.
fn missing(file: &RuleFile, attributes: &[(&'static str, &'static str)]) -> Option<String> {
    let add =
        |request: Request<'static>, (name, value): &(&'static str, &'static str)| request.with_attribute(name, value);
    let request = attributes.iter().fold(Request::new("").with_attribute("path", "/units"), add);
    let plan = file.rules().resolve(&request);
    let problem = plan.problem()?;
    assert_eq!((problem.kind(), problem.status(), plan.checks().len()), (RequestProblemKind::Missing, 400, 0));
    assert!(problem.to_string().contains("by which it is counted"), "{problem}");
    Some(problem.source().to_owned())
}

const LEDGER: &str = "quota: { amount: 5, period: day, ledger: sync }";
const QUOTA: &str = "quota: { amount: 5, period: day }";

/// It was billed to an account of nobody.
#[test]
fn a_request_without_the_tenant_that_a_ledger_bills_is_refused() {
    let by_default = parse(&format!("per: [tenant], {LEDGER}"));
    assert_eq!(missing(&by_default, &[]).as_deref(), Some("tenant"));
    assert_eq!(missing(&by_default, &[("header:x-tenant", " ")]).as_deref(), Some("tenant"));
    assert_eq!(missing(&by_default, &[("header:x-tenant", "acme")]), None);
    assert_eq!(missing(&by_default, &[("tenant", "acme")]), None);
    assert_eq!(missing(&by_default, &[("ip", "192.0.2.9")]), None, "it is exempt");
    let request = Request::new("").with_attribute("path", "/other");
    assert!(by_default.rules().resolve(&request).problem().is_none(), "the rule does not match");
    let shared = parse(&format!("per: [tenant], on_missing: shared, {LEDGER}"));
    assert_eq!(missing(&shared, &[]), None);
}

#[test]
fn without_a_ledger_such_requests_share_one_subject_unless_the_file_says_otherwise() {
    for (fields, expected) in [
        (format!("per: [tenant], {QUOTA}"), None),
        (format!("per: [tenant], on_missing: shared, {QUOTA}"), None),
        (format!("per: [tenant], on_missing: error, {QUOTA}"), Some("tenant")),
        (
            "per: [attr:account], on_missing: error, token_bucket: { capacity: 5, refill: 1/s }".to_owned(),
            Some("attr:account"),
        ),
        (format!("per: [tenant], on_missing: error, mode: shadow, {QUOTA}"), None),
        (format!("per: [tenant], mode: shadow, {LEDGER}"), None),
        (format!("per: [tenant, attr:project], {LEDGER}"), Some("tenant")),
        (format!("per: [tenant, plan], on_missing: error, {QUOTA}"), Some("tenant")),
        (format!("per: [], {LEDGER}"), None),
    ] {
        assert_eq!(missing(&parse(&fields), &[]).as_deref(), expected, "{fields}");
    }
    let with_project = parse(&format!("per: [tenant, attr:project, plan], {LEDGER}"));
    assert_eq!(missing(&with_project, &[("tenant", "acme")]).as_deref(), Some("attr:project"));
    assert_eq!(missing(&with_project, &[("tenant", "acme"), ("project", "p1")]), None, "a plan identifies nobody");
    let rule = |file: &RuleFile| file.rules().rule("units").unwrap().on_missing;
    assert_eq!(rule(&with_project), OnMissing::Error);
}

/// A gateway resolves the rules first, and reads the body if they need it.
#[test]
fn a_value_of_the_body_is_not_missing_before_the_body_is_read() {
    let file = parse(&format!("per: [tenant, body:model], {LEDGER}"));
    assert_eq!(missing(&file, &[("tenant", "acme")]), None);
    assert_eq!(missing(&file, &[]).as_deref(), Some("tenant"));
    assert_eq!(missing(&file, &[("tenant", "acme"), ("body", "{}")]).as_deref(), Some("body:model"));
    assert_eq!(missing(&file, &[("tenant", "acme"), ("body", r#"{"model":"small"}"#)]), None);
}

#[test]
fn other_words_are_an_error_at_their_position() {
    let text =
        "version: 1\nrules:\n- { id: a, per: [ip], on_missing: refuse, token_bucket: { capacity: 5, refill: 1/s } }\n";
    let report = RuleFile::parse("rules.yaml", text).unwrap_err();
    assert_eq!(report.position(&report.problems()[0]), (3, 35), "{report}");
}
