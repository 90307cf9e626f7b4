//! Which subjects are anonymous (unauthenticated), and the bounds that a rule sets for them.

use std::time::Duration;

use tidegate::{Request, Secret};
use tidegate_rule_tools::{RuleStatus, explain};
use tidegate_rules::{Report, RuleFile};

const IDENTIFY: &str = "identify:
  client: [header:x-api-key, ip]
  device: cookie:device
  session: cookie:session
  tenant: [claim:org, header:x-org]
  plan: header:x-plan
  zone: path
  authenticated: [X-Api-Key, cookie:session, authorization, query:key]
";

fn file(per: &str, more: &str) -> Result<RuleFile, Report> {
    let rule = format!("- {{ id: a, per: {per}, fixed_window: {{ limit: 9, window: 1m }}{more} }}");
    RuleFile::parse("rules.yaml", &format!("version: 1\n{IDENTIFY}rules:\n{rule}\n"))
}

/// Whether the subject of a request is anonymous under a rule.
fn is_anonymous(per: &str, attributes: &[(&str, &str)]) -> bool {
    is_anonymous_with(per, "", attributes)
}

fn is_anonymous_with(per: &str, more: &str, attributes: &[(&str, &str)]) -> bool {
    let file = file(per, more).unwrap_or_else(|report| panic!("{report}"));
    let request =
        attributes.iter().fold(Request::new("act"), |request, (name, value)| request.with_attribute(name, value));
    let explanation = explain(&file, &request, &Secret::public());
    let RuleStatus::Applies(applied) = &explanation.rules[0].status else { panic!("it applies") };
    applied.anonymous
}

const IP: (&str, &str) = ("ip", "203.0.113.9");
/// A token with the claim `org`.
const TOKEN: (&str, &str) = ("header:authorization", "Bearer e30.eyJvcmciOiJhY21lIn0.x");

#[test]
fn an_address_is_anonymous_and_a_verified_key_is_not() {
    for per in ["ip", "net:24/56", "client"] {
        assert!(is_anonymous(per, &[IP]), "{per}");
    }
    assert!(!is_anonymous("client", &[IP, ("header:x-api-key", "k1")]));
    assert!(is_anonymous("client", &[IP, ("header:x-api-key", " ")]), "an empty key is none");
}

#[test]
fn a_subject_that_a_client_can_forge_is_anonymous() {
    for (per, attribute) in [
        ("header:x-device", ("header:x-device", "d1")),
        ("query:q", ("query", "q=1")),
        ("device", ("header:cookie", "device=1")),
        ("body:email", ("body", "{\"email\":\"a@b\"}")),
        ("tenant", ("header:x-org", "acme")),
    ] {
        assert!(is_anonymous(per, &[attribute]), "{per}");
    }
}

#[test]
fn a_subject_that_is_verified_or_set_by_the_application_is_not_anonymous() {
    for (per, attribute) in [
        ("header:x-api-key", ("header:x-api-key", "k1")),
        ("query:key", ("query", "key=1")),
        ("session", ("header:cookie", "session=1")),
        ("claim:org", TOKEN),
        ("tenant", TOKEN),
        ("attr:account", ("account", "a7")),
        ("user", ("user", "ann")),
        ("device", ("device", "set by the application")),
        ("tenant", ("tenant", "acme")),
    ] {
        assert!(!is_anonymous(per, &[IP, attribute]), "{per}");
    }
}

/// An authenticated client cannot create more subjects by changing its address.
#[test]
fn one_authenticated_part_is_enough() {
    assert!(!is_anonymous("[ip, user]", &[IP, ("user", "ann")]));
    assert!(is_anonymous("[ip, user]", &[IP]));
    assert!(is_anonymous("[ip, device]", &[IP, ("header:cookie", "device=1")]));
    assert!(!is_anonymous("[ip, tenant]", &[IP, TOKEN]));
}

/// Subjects are counted within their tenant, so the tenant is a part of them, unless the rule has `scope: global`.
#[test]
fn an_authenticated_tenant_authenticates_its_subjects() {
    let cookie = ("header:cookie", "device=1");
    assert!(!is_anonymous("device", &[cookie, TOKEN]));
    assert!(is_anonymous("device", &[cookie, ("header:x-org", "acme")]), "an unauthenticated tenant");
    assert!(is_anonymous_with("device", ", scope: global", &[cookie, TOKEN]), "the scope ignores tenants");
    assert!(is_anonymous("ip", &[IP, TOKEN]), "addresses belong to no tenant");
}

#[test]
fn a_request_without_an_identity_is_anonymous() {
    for per in ["user", "attr:account", "tenant", "header:x-api-key", "ip"] {
        assert!(is_anonymous(per, &[]), "{per}");
    }
}

#[test]
fn parts_that_identify_nobody_do_not_count() {
    let neutral = [("path", "/a"), ("host", "a.example"), ("method", "GET")];
    for per in ["[]", "path", "host", "method", "action", "const:x", "zone", "plan", "[plan, path]"] {
        assert!(!is_anonymous(per, &neutral), "{per}");
        assert!(!is_anonymous(per, &[]), "missing {per}");
    }
    assert!(is_anonymous("[path, ip]", &[neutral[0], IP]));
    assert!(!is_anonymous("[path, user]", &[neutral[0], ("user", "ann")]));
    // A plan set by the application identifies nobody. A client that chooses its plan could invent a million of them.
    assert!(is_anonymous("[plan, ip]", &[("plan", "pro"), IP]));
    assert!(is_anonymous("plan", &[("header:x-plan", "p17")]));
}

#[test]
fn a_rule_sets_the_bounds_for_anonymous_subjects() {
    let all = file("ip", ", anonymous: { most: 200k, forget_after: 10m }").unwrap();
    let debug = format!("{:?}", all.rules().rule("a").unwrap());
    assert!(debug.contains("AnonymousBounds { max_subjects: 200000, forget_after: Some(600s) }"), "{debug}");
    let some = file("ip", ", anonymous: { forget_after: 90s }").unwrap();
    let debug = format!("{:?}", some.rules().rule("a").unwrap());
    let expected = tidegate::rules::AnonymousBounds::default().with_forget_after(Duration::from_secs(90));
    assert!(debug.contains(&format!("{expected:?}")), "{debug}");
}

#[test]
fn a_rule_sets_the_bound_for_authenticated_subjects() {
    let bound = |more: &str| file("ip", more).unwrap().rules().rule("a").unwrap().max_subjects;
    assert_eq!(bound(", authenticated: { most: 5M }"), 5_000_000);
    assert_eq!((bound(""), bound(", authenticated: {}")), (10_000_000, 10_000_000));
    for (authenticated, message) in [
        ("{ most: 0 }", "0 is out of range"),
        ("{ forget_after: 10m }", "unknown field `forget_after`"),
        ("5M", "expected a map, found text"),
    ] {
        let report = file("ip", &format!(", authenticated: {authenticated}")).unwrap_err();
        assert_eq!(report.problems().len(), 1, "{report}");
        assert!(report.problems()[0].message().contains(message), "{report}");
    }
}

/// Newcomers of one network share overflow buckets.
#[test]
fn a_subject_with_an_address_has_its_network() {
    let network = |per: &str, attributes: &[(&str, &str)]| {
        let file = file(per, "").unwrap();
        let request =
            attributes.iter().fold(Request::new("act"), |request, (name, value)| request.with_attribute(name, value));
        file.rules().resolve(&request).checks()[0].network()
    };
    let at = |address: &'static str| [("ip", address)];
    for per in ["ip", "client", "[path, ip]", "net:32/128", "[device, ip]"] {
        let here = network(per, &at("203.0.113.9"));
        assert!(here.is_some(), "{per}");
        assert_eq!(here, network(per, &at("203.0.113.200")), "{per}");
        assert_eq!(here, network(per, &at("::ffff:203.0.113.1")), "{per}");
        assert_ne!(here, network(per, &at("203.0.114.9")), "{per}");
        let v6 = network(per, &at("2001:db8:1:2::9"));
        assert!(v6.is_some() && v6 == network(per, &at("2001:db8:1:ffff::1")), "{per}");
        assert_ne!(v6, network(per, &at("2001:db8:2:2::9")), "{per}");
    }
    // A subject that is a larger network has one hash, too.
    assert_eq!(network("net:16/32", &at("203.0.113.9")), network("net:16/32", &at("203.0.250.1")));
    assert_eq!(network("client", &[IP, ("header:x-api-key", "k1")]), None, "it is counted by its key");
    for per in ["header:x-api-key", "path", "user", "[]"] {
        assert_eq!(network(per, &[IP, ("path", "/a"), ("header:x-api-key", "203.0.113.9")]), None, "{per}");
    }
}

#[test]
fn invalid_bounds_are_reported_with_their_position() {
    for (anonymous, message) in [
        ("{ most: 0 }", "0 is out of range"),
        ("{ most: 1.5 }", "expected a whole number"),
        ("{ forget_after: 0s }", "forgotten at once has no limit"),
        ("{ forget_after: 10 }", "lacks a unit"),
        ("{ forget_after: month }", "differ in length"),
        ("{ forgetafter: 10m }", "unknown field `forgetafter`"),
        ("10m", "expected a map, found text"),
    ] {
        let report = file("ip", &format!(", anonymous: {anonymous}")).unwrap_err();
        assert_eq!(report.problems().len(), 1, "{report}");
        assert!(report.problems()[0].message().contains(message), "{report}");
    }
}
