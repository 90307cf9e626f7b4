//! Values that come more than once, or have more than one reading: refused, united, or chosen as the file says.

use std::collections::HashSet;

use tidegate::Request;
use tidegate::spi::{Plan, RequestProblemKind};
use tidegate_rule_tools::explain;
use tidegate_rules::{RequestDescription, RuleFile};

/// A file with one rule that counts by `per`.
fn file(identify: &str, per: &str) -> RuleFile {
    let text = format!(
        "version: 1\nidentify:\n  authenticated: [x-key, authorization, query:account, cookie:sid, cookie]\n{identify}\n\
         rules:\n- {{ id: r, match: {{}}, per: {per}, token_bucket: {{ capacity: 5, refill: 1/s }} }}\n"
    );
    RuleFile::parse("rules.yaml", &text).unwrap_or_else(|report| panic!("{report}"))
}

fn plan<'f>(file: &'f RuleFile, request: &Request<'_>) -> Plan<'f> {
    file.rules().resolve(request)
}

/// The kind of the problem with a request, and the source.
fn problem(file: &RuleFile, request: &Request<'_>) -> Option<(RequestProblemKind, String)> {
    let plan = plan(file, request);
    let problem = plan.problem()?;
    assert!(plan.checks().is_empty(), "a request that cannot be judged has no checks");
    Some((problem.kind(), problem.source().to_owned()))
}

fn query(query: &str) -> Request<'_> {
    Request::new("").with_attribute("query", query)
}

fn cookies(cookies: &str) -> Request<'_> {
    Request::new("").with_attribute("header:cookie", cookies)
}

fn keys<'a>(first: &'a str, second: &'a str) -> Request<'a> {
    Request::new("").with_attribute("header:x-key", first).with_further_value("header:x-key", second)
}

const ACCOUNT: &str = "query:account";

#[test]
fn a_repeated_header_or_parameter_is_refused() {
    let by_key = file("", "[header:x-key]");
    assert_eq!(problem(&by_key, &keys("a", "b")), Some((RequestProblemKind::Repeated, "header:x-key".into())));
    assert_eq!(problem(&by_key, &keys("a", "a")), Some((RequestProblemKind::Repeated, "header:x-key".into())));
    let by_account = file("", "[query:account]");
    for repeated in ["account=a&account=b", "account=a&ACCOUNT=b", "account=&x&account=a", "account=a&acc%6funt=a"] {
        assert_eq!(
            problem(&by_account, &query(repeated)),
            Some((RequestProblemKind::Repeated, ACCOUNT.into())),
            "{repeated}"
        );
    }
    assert_eq!(problem(&by_account, &query("account=a;b")), Some((RequestProblemKind::Ambiguous, ACCOUNT.into())));
}

#[test]
fn a_repeated_field_of_a_body_is_refused_unless_the_file_says_which_counts() {
    let body = |body| Request::new("").with_attribute("body", body);
    let twice = body(r#"{"account":"a","Account":"b"}"#);
    let rejecting = file("", "['body:account']");
    assert_eq!(problem(&rejecting, &twice), Some((RequestProblemKind::Repeated, "body:account".into())));
    let subject = |file: &RuleFile, request: &Request<'_>| plan(file, request).checks()[0].key().subject();
    for (setting, counts) in [("first", r#"{"account":"a"}"#), ("last", r#"{"account":"b"}"#)] {
        for repeated in [format!("  repeated: {setting}"), format!("  repeated: {{ 'body:account': {setting} }}")] {
            let file = file(&repeated, "['body:account']");
            assert_eq!(subject(&file, &twice), subject(&file, &body(counts)), "{repeated}");
        }
    }
}

#[test]
fn values_that_no_rule_reads_may_come_twice() {
    let by_account = file("", "[query:account]");
    let request = keys("a", "b").with_attribute("query", "account=a&x=1&x=2&y=a;b");
    assert_eq!(problem(&by_account, &request), None);
    assert_eq!(plan(&by_account, &request).checks().len(), 1);
}

/// A rule that does not apply reads no parameter; a header is refused for every request, so that the order of rules does not matter.
#[test]
fn a_parameter_is_refused_only_where_a_rule_reads_it() {
    let text = "version: 1\nrules:\n\
                - { id: r, match: { path: /a }, per: [query:account, ip], token_bucket: { capacity: 5, refill: 1/s } }\n";
    let file = RuleFile::parse("rules.yaml", text).unwrap();
    let twice = |path| query("account=a&account=b").with_attribute("path", path);
    assert!(problem(&file, &twice("/a")).is_some());
    assert!(problem(&file, &twice("/b")).is_none());
}

#[test]
fn a_repeated_header_in_a_condition_is_refused() {
    let text = "version: 1\nexempt: [ { header: { x-internal: '1' } } ]\nrules:\n\
                - { id: r, match: { header: { x-mode: bulk } }, per: [ip], token_bucket: { capacity: 5, refill: 1/s } }\n";
    let file = RuleFile::parse("rules.yaml", text).unwrap();
    for (name, first, second) in [
        ("header:x-internal", "1", "0"),
        ("header:x-internal", "0", "1"),
        ("header:x-mode", "bulk", "single"),
        ("header:x-mode", "single", "bulk"),
    ] {
        let request = Request::new("").with_attribute(name, first).with_further_value(name, second);
        assert_eq!(problem(&file, &request), Some((RequestProblemKind::Repeated, name.to_owned())));
    }
}

#[test]
fn the_file_may_say_which_value_counts() {
    let subject = |file: &RuleFile, request: &Request<'_>| plan(file, request).checks()[0].key().subject();
    let once = |value| Request::new("").with_attribute("header:x-key", value);
    for (setting, counts) in [("first", "a"), ("last", "b")] {
        for repeated in [
            format!("  repeated: {setting}"),
            format!("  repeated: {{ header:x-key: {setting} }}"),
            format!("  repeated: {{ header:X-Key: {setting} }}"),
        ] {
            let file = file(&repeated, "[header:x-key]");
            assert_eq!(subject(&file, &keys("a", "b")), subject(&file, &once(counts)), "{repeated}");
        }
        let named = file(
            &format!("  customer: [header:x-key, query:account]\n  repeated: {{ customer: {setting} }}"),
            "[customer]",
        );
        assert_eq!(subject(&named, &keys("a", "b")), subject(&named, &once(counts)));
        assert_eq!(
            subject(&named, &query("account=a&account=c&account=b")),
            subject(&named, &query(&format!("account={counts}")))
        );
        let cookie = file(&format!("  repeated: {{ cookie:sid: {setting} }}"), "[cookie:sid]");
        let request = cookies("sid=a; sid=c; sid=d; sid=e; sid=f; sid=b");
        assert_eq!(plan(&cookie, &request).checks().len(), 1);
        assert_eq!(subject(&cookie, &request), subject(&cookie, &cookies(&format!("sid={counts}"))));
    }
}

#[test]
fn each_value_of_a_repeated_cookie_counts() {
    let file = file("", "[cookie:sid]");
    let subjects = |header: &str| -> HashSet<_> {
        plan(&file, &cookies(header)).checks().iter().map(|check| check.key().subject()).collect()
    };
    let both: HashSet<_> = subjects("sid=a").union(&subjects("sid=b")).copied().collect();
    assert_eq!(subjects("sid=a; sid=b"), both);
    assert_eq!(subjects("sid=b; x=1; SID=a; sid=\"b\""), both);
    assert_eq!(subjects("sid=a; sid=b; sid=c; sid=d").len(), 4);
    assert_eq!(
        problem(&file, &cookies("sid=a; sid=b; sid=c; sid=d; sid=e")),
        Some((RequestProblemKind::TooManyValues, "cookie:sid".into()))
    );
}

#[test]
fn the_combinations_of_two_repeated_cookies_count_up_to_four() {
    let file = file("", "[cookie:sid, cookie:device]");
    let checks = |header: &str| plan(&file, &cookies(header)).checks().len();
    assert_eq!(checks("sid=a; device=x"), 1);
    assert_eq!(checks("sid=a; sid=b; device=x; device=y"), 4);
    let keys: HashSet<_> = plan(&file, &cookies("sid=a; sid=b; device=x; device=y"))
        .checks()
        .iter()
        .map(|check| check.key().subject())
        .collect();
    assert_eq!(keys.len(), 4);
    let too_many = problem(&file, &cookies("sid=a; sid=b; sid=c; device=x; device=y"));
    assert_eq!(too_many.map(|(kind, _)| kind), Some(RequestProblemKind::TooManyValues));
}

/// A request has one tenant, one plan and one cost.
#[test]
fn a_repeated_cookie_that_selects_a_tenant_is_refused() {
    let file = file("  tenant: cookie:org", "[tenant]");
    assert_eq!(problem(&file, &cookies("org=a")), None);
    assert_eq!(problem(&file, &cookies("org=a; org=b")), Some((RequestProblemKind::Repeated, "cookie:org".into())));
}

/// A token behind 8,300 spaces was not read, and its sender counted as nobody.
#[test]
fn a_value_that_is_too_long_is_refused_and_not_ignored() {
    let file = file("", "[claim:sub]");
    let token = "e30.eyJzdWIiOiJ1MSJ9.c2ln"; // {"sub":"u1"}
    let subject = |authorization: &str| {
        let request = Request::new("").with_attribute("header:authorization", authorization);
        plan(&file, &request).checks().first().map(|check| check.key().subject())
    };
    let expected = subject(&format!("Bearer {token}"));
    for spelling in
        [format!("Bearer{}{token}", " ".repeat(8_300)), format!("bearer\t{token}"), format!("Bearer \t {token}")]
    {
        assert_eq!(subject(&spelling), expected);
    }
    let long = format!("Bearer {token}{}", "x".repeat(8_300));
    let request = Request::new("").with_attribute("header:authorization", &long);
    assert_eq!(problem(&file, &request), Some((RequestProblemKind::TooLong, "header:authorization".into())));
    assert_eq!(plan(&file, &request).problem().map(tidegate::RequestProblem::status), Some(431));

    let by_body = self::file("", "[body:account]");
    let body = format!("{{\"account\":\"a\"{}}}", " ".repeat(65_536));
    let request = Request::new("").with_attribute("body", &body);
    assert_eq!(plan(&by_body, &request).problem().map(tidegate::RequestProblem::status), Some(413));
}

#[test]
fn an_explanation_says_that_a_request_is_refused() {
    let file = file("", "[header:x-key]");
    let description = RequestDescription::new().with_header("x-key", "a").with_header("X-Key", "b");
    let attributes = description.attributes().unwrap();
    let explanation = explain(&file, &attributes.request(), &tidegate::Secret::public());
    assert_eq!(
        explanation.problem.map(|problem| problem.to_string()).as_deref(),
        Some("The request has more than one `header:x-key`. Send it once.")
    );
}

#[test]
fn invalid_settings_are_reported() {
    for (repeated, expected) in [
        ("sometimes", "sometimes"),
        ("{ custmer: first }", "`custmer` is neither an identity nor a source"),
        ("{ ip: first }", "`ip` has no source that can come more than once"),
        ("{ customer: first, header:x-key: last }", "`header:x-key` is `last` here and `first` above"),
    ] {
        let text = format!(
            "version: 1\nidentify:\n  customer: header:x-key\n  repeated: {repeated}\nrules:\n\
             - {{ id: r, per: [customer, ip], token_bucket: {{ capacity: 5, refill: 1/s }} }}\n"
        );
        let report = RuleFile::parse("rules.yaml", &text).expect_err(repeated).to_string();
        assert!(report.contains(expected), "{repeated}:\n{report}");
    }
}
