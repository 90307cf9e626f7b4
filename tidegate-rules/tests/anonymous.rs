//! Whom nobody vouches for, and what a rule says about them.

use std::time::Duration;

use tidegate::{Request, Secret};
use tidegate_rules::{Report, RuleFile, RuleStatus};

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

/// Whether nobody vouches for whom a rule counts in a request.
fn is_anonymous(per: &str, attributes: &[(&str, &str)]) -> bool {
    of_rule(per, "", attributes)
}

fn of_rule(per: &str, more: &str, attributes: &[(&str, &str)]) -> bool {
    let file = file(per, more).unwrap_or_else(|report| panic!("{report}"));
    let request =
        attributes.iter().fold(Request::new("act"), |request, (name, value)| request.with_attribute(name, value));
    let explanation = file.explain(&request, &Secret::public());
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
fn what_a_client_can_send_vouches_for_nobody() {
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
fn what_somebody_has_verified_or_the_application_says_vouches() {
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

/// One part is enough: whoever is vouched for cannot be many by having many addresses.
#[test]
fn one_part_that_is_vouched_for_is_enough() {
    assert!(!is_anonymous("[ip, user]", &[IP, ("user", "ann")]));
    assert!(is_anonymous("[ip, user]", &[IP]));
    assert!(is_anonymous("[ip, device]", &[IP, ("header:cookie", "device=1")]));
    assert!(!is_anonymous("[ip, tenant]", &[IP, TOKEN]));
}

/// The tenant tells users apart, so it is a part of whom a rule counts, where it counts at all.
#[test]
fn a_tenant_vouches_for_what_belongs_to_it() {
    let cookie = ("header:cookie", "device=1");
    assert!(!is_anonymous("device", &[cookie, TOKEN]));
    assert!(is_anonymous("device", &[cookie, ("header:x-org", "acme")]), "anyone can say that");
    assert!(of_rule("device", ", scope: global", &[cookie, TOKEN]), "tenants do not matter there");
    assert!(is_anonymous("ip", &[IP, TOKEN]), "addresses belong to no tenant");
}

#[test]
fn who_lacks_an_identity_is_anonymous() {
    for per in ["user", "attr:account", "tenant", "header:x-api-key", "ip"] {
        assert!(is_anonymous(per, &[]), "{per}");
    }
}

#[test]
fn what_says_nothing_about_who_it_is_does_not_matter() {
    let about = [("path", "/a"), ("host", "a.example"), ("method", "GET")];
    for per in ["[]", "path", "host", "method", "action", "const:x", "zone", "plan", "[plan, path]"] {
        assert!(!is_anonymous(per, &about), "{per}");
        assert!(!is_anonymous(per, &[]), "{per} that is missing");
    }
    assert!(is_anonymous("[path, ip]", &[about[0], IP]));
    assert!(!is_anonymous("[path, user]", &[about[0], ("user", "ann")]));
    // The application may choose the plan, which is no name of anybody; a client that chooses it could choose a million.
    assert!(is_anonymous("[plan, ip]", &[("plan", "pro"), IP]));
    assert!(is_anonymous("plan", &[("header:x-plan", "p17")]));
}

#[test]
fn a_rule_says_how_many_and_for_how_long() {
    let all = file("ip", ", anonymous: { most: 200k, forget_after: 10m }").unwrap();
    let debug = format!("{:?}", all.rules().rule("a").unwrap());
    assert!(debug.contains("AnonymousBounds { max_subjects: 200000, forget_after: Some(600s) }"), "{debug}");
    let some = file("ip", ", anonymous: { forget_after: 90s }").unwrap();
    let debug = format!("{:?}", some.rules().rule("a").unwrap());
    let expected = tidegate::AnonymousBounds::default().with_forget_after(Duration::from_secs(90));
    assert!(debug.contains(&format!("{expected:?}")), "{debug}");
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
