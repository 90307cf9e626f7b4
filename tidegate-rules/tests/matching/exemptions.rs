//! Requests that are exempt from all rules, or from some.

use tidegate::Secret;
use tidegate_rule_tools::{RuleStatus, explain, run_tests};

use super::{LIMIT, ids, parse, request};

#[test]
fn exempt_requests_and_disabled_rules_are_not_checked() {
    let file = parse(&format!(
        "exempt: [{{ path: /healthz }}, {{ ip: 10.0.0.0/8, header: {{ x-test: 1 }} }}]\n\
         rules:\n- {{ id: all, {LIMIT} }}\n- {{ id: off, mode: disabled, {LIMIT} }}\n- {{ id: try, mode: shadow, {LIMIT} }}\n"
    ));
    assert_eq!(ids(&file, "", &[("path", "/api")]), ["all", "try"]);
    assert!(ids(&file, "", &[("path", "/healthz")]).is_empty());
    assert!(ids(&file, "", &[("ip", "10.0.0.9"), ("header:x-test", "1")]).is_empty());
    assert_eq!(ids(&file, "", &[("ip", "10.0.0.9")]).len(), 2);
    assert_eq!(ids(&file, "", &[("ip", "192.0.2.1"), ("header:x-test", "1")]).len(), 2);
}

#[test]
fn an_exemption_that_names_rules_lifts_no_other() {
    let file = parse(&format!(
        "identify: {{ tenant: header:x-tenant, authenticated: x-tenant }}\n\
         exempt: [{{ tenant: bigco, rules: [api, off] }}, {{ path: /healthz, rules: all }}, {{ path: /healthz, ip: 10.0.0.0/8 }}]\n\
         rules:\n- {{ id: all, {LIMIT} }}\n- {{ id: off, mode: disabled, {LIMIT} }}\n- {{ id: api, match: {{ path: '/api/*' }}, {LIMIT} }}\n\
         - {{ id: login, match: {{ path: /api/login }}, {LIMIT} }}\n- {{ id: health, match: {{ path: /healthz }}, {LIMIT} }}\n"
    ));
    let at = |attributes: &[(&'static str, &'static str)]| ids(&file, "", attributes).join(" ");
    let (bigco, login) = (("header:x-tenant", "bigco"), ("path", "/api/login"));
    assert_eq!(at(&[login]), "all api login");
    assert_eq!(at(&[login, bigco]), "all login", "a customer is not exempt from what protects everybody");
    assert_eq!(at(&[login, ("header:x-tenant", "other")]), "all api login");
    assert_eq!(at(&[("path", "/healthz"), bigco]), "health");
    assert_eq!(at(&[("path", "/healthz"), ("ip", "10.0.0.9")]), "", "a later one is from all rules");
    let explained = explain(&file, &request("", &[login, bigco]), &Secret::public());
    let exempt = explained.rules.iter().filter_map(|rule| match rule.status {
        RuleStatus::Exempt { line } => Some((rule.id.as_str(), line)),
        _ => None,
    });
    assert_eq!((explained.exempt, exempt.collect::<Vec<_>>()), (None, vec![("api", 3)]));
}

#[test]
fn a_failed_test_names_the_exemption_from_the_rule_that_it_expects() {
    let folder = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");
    write(
        "rules.yaml",
        &format!(
            "version: 1\nexempt:\n- {{ path: /x }}\n- {{ ip: 203.0.113.0/24, rules: search }}\n\
         rules:\n- {{ id: search, match: {{ path: /search }}, {LIMIT} }}\n- {{ id: all, {LIMIT} }}\n"
        ),
    );
    write(
        "rules.test.yaml",
        "rules: rules.yaml\nrequest: { path: /search, ip: 203.0.113.9 }\ntests:\n  - name: a test\n    steps:\n      \
         - { expect: { denied: search } }\n      - { request: { path: /list }, expect: { denied: search } }\n",
    );
    let run = run_tests(&folder.path().join("rules.test.yaml")).expect("tests that can be run");
    let failures = run.tests.iter().flat_map(|test| &test.failures);
    let hints: Vec<&str> = failures.filter_map(|failure| failure.note.as_deref()).collect();
    let [exempt, other] = hints[..] else { panic!("{hints:?}") };
    assert_eq!(exempt, "the exemption in line 4 of the rules applies");
    assert!(other.starts_with("`search` does not apply: its path is /search"), "{other}");
}
