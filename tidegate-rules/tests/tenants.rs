//! A tenant scopes a subject and selects a plan only if a client cannot choose it.

use tidegate::Request;
use tidegate::spi::Subject;
use tidegate_rule_tools::parse_and_lint;
use tidegate_rules::{Problem, RuleFile};

fn parse(identify: &str, rule: &str) -> Result<RuleFile, String> {
    let text = format!(
        "version: 1\nidentify: {{ {identify} }}\n\
         plans: {{ pro: {{ r: {{ sliding_log: {{ limit: 50, window: 10m }} }} }} }}\ntenants: {{ acme: pro }}\n\
         rules:\n- {{ id: r, {rule}, sliding_log: {{ limit: 5, window: 10m }} }}\n"
    );
    parse_and_lint("rules.yaml", &text).map_err(|report| report.to_string())
}

/// The subject and the limit of a request.
fn judge(file: &RuleFile, attributes: &[(&str, &str)]) -> (Subject, String) {
    let request =
        attributes.iter().fold(Request::new(""), |request, (name, value)| request.with_attribute(name, value));
    let plan = file.rules().resolve(&request);
    let check = &plan.checks()[0];
    (check.key().subject(), check.gate().plan().to_owned())
}

const TOKEN: &str = "Bearer e30.eyJvcmciOiJhY21lIn0.x";
const KEY: (&str, &str) = ("header:x-api-key", "k1");

/// Regression: three values of `x-tenant-id` were three times five logins, and "10 a minute for each API key" was for each key and tenant.
#[test]
fn a_tenant_that_a_client_can_choose_multiplies_no_limit_and_selects_no_plan() {
    for (identify, name, values) in [
        ("tenant: header:x-tenant-id", "header:x-tenant-id", ["acme", "blue", "3"]),
        ("tenant: query:tenant", "query", ["tenant=acme", "tenant=blue", "tenant=3"]),
        ("tenant: cookie:tenant", "header:cookie", ["tenant=acme", "tenant=blue", "tenant=3"]),
        ("tenant: body:tenant", "body", [r#"{"tenant":"acme"}"#, r#"{"tenant":"blue"}"#, "{}"]),
        ("tenant: host", "host", ["acme", "blue", "red"]),
        ("tenant: path", "path", ["/acme", "/blue", "/red"]),
        ("tenant: ip", "ip", ["192.0.2.1", "192.0.2.2", "192.0.2.3"]),
    ] {
        for per in ["'header:x-api-key'", "'attr:account'", "user"] {
            let file = parse(identify, &format!("per: [{per}]")).unwrap();
            let subject = [KEY, ("account", "zed"), ("user", "zed")];
            let alone = judge(&file, &subject);
            assert_eq!(alone.1, "");
            for value in values {
                let [a, b, c] = subject;
                assert_eq!(judge(&file, &[a, b, c, (name, value)]), alone, "{identify} {per} {value}");
            }
            let problems: Vec<&str> = file.report().problems().iter().map(Problem::code).collect();
            assert!(problems.contains(&"unauthenticated-tenant"), "{identify}: {problems:?}");
        }
    }
}

#[test]
fn a_tenant_that_a_client_cannot_choose_scopes_subjects_and_selects_a_plan() {
    for (identify, name, acme, blue) in [
        ("tenant: header:x-tenant-id, authenticated: [x-tenant-id]", "header:x-tenant-id", "acme", "blue"),
        ("tenant: attr:org", "org", "acme", "blue"),
        ("tenant: host, authenticated: [host]", "host", "acme", "blue"),
        ("tenant: claim:org, authenticated: [authorization]", "header:authorization", TOKEN, "Bearer e30.e30.x"),
        ("", "tenant", "acme", "blue"),
    ] {
        let file = parse(identify, "per: ['header:x-api-key']").unwrap();
        let [alone, acme, blue] =
            [&[KEY][..], &[KEY, (name, acme)], &[KEY, (name, blue)]].map(|request| judge(&file, request));
        assert_ne!(acme.0, alone.0, "{identify}");
        assert_ne!(acme.0, blue.0, "{identify}");
        assert_eq!((acme.1.as_str(), blue.1.as_str()), ("pro", ""), "{identify}");
        let problems: Vec<&str> = file.report().problems().iter().map(Problem::code).collect();
        assert!(!problems.contains(&"unauthenticated-tenant"), "{identify}: {problems:?}");
    }
    // The application precedes a source that clients can choose.
    let file = parse("tenant: header:x-tenant-id", "per: ['header:x-api-key']").unwrap();
    let set = judge(&file, &[KEY, ("tenant", "acme"), ("header:x-tenant-id", "blue")]);
    assert_eq!((set.1.as_str(), set.0), ("pro", judge(&file, &[KEY, ("tenant", "acme")]).0));
}

/// Otherwise a header would hide the tenant of the token, with its plan.
#[test]
fn an_authenticated_tenant_counts_behind_one_that_is_not() {
    let file =
        parse("tenant: [header:x-tenant-id, claim:org], authenticated: [authorization]", "per: ['header:x-api-key']");
    let file = file.unwrap();
    let token = ("header:authorization", TOKEN);
    let verified = judge(&file, &[KEY, token]);
    assert_eq!(verified.1, "pro");
    assert_eq!(judge(&file, &[KEY, token, ("header:x-tenant-id", "blue")]), verified);
    assert_eq!(judge(&file, &[KEY, token, ("header:x-tenant-id", "acme")]), verified);
}

/// A rule says itself that it counts by the tenant, and a condition that it matches one.
#[test]
fn a_tenant_that_is_named_in_a_rule_counts_wherever_it_comes_from() {
    let file = parse("tenant: header:x-tenant-id", "per: [tenant]").unwrap();
    let subjects = ["acme", "blue"].map(|tenant| judge(&file, &[("header:x-tenant-id", tenant)]));
    assert_ne!(subjects[0].0, subjects[1].0);
    assert_eq!(subjects[0].1, "", "the plan of another customer");
    let file = parse("tenant: header:x-tenant-id", "match: { tenant: acme }, per: [user]").unwrap();
    let checks = |tenant| {
        let request = Request::new("").with_attribute("header:x-tenant-id", tenant);
        file.rules().resolve(&request).checks().len()
    };
    assert_eq!((checks("acme"), checks("blue")), (1, 0));
}

/// The account of a customer would begin anew.
#[test]
fn a_ledger_whose_accounts_would_change_cannot_be_used_and_says_what_to_write() {
    let load = |identify: &str, rule: &str| {
        let text = format!(
            "version: 1\nidentify: {{ client: header:x-api-key, {identify} }}\nplans: {{ pro: {{ r: {{ quota: {{ amount: 9, period: day }} }} }} }}\n\
             tenants: {{ acme: pro }}\nrules:\n- {{ id: r, {rule}, quota: {{ amount: 5, period: day, ledger: async }} }}\n"
        );
        RuleFile::parse("rules.yaml", &text).map(|_| ()).map_err(|report| report.to_string())
    };
    let forged = "tenant: header:x-tenant-id, authenticated: [x-api-key]";
    let report = load(forged, "per: [client]").unwrap_err();
    for part in [
        "error[ledger-without-tenant]: nobody authenticates the tenant from `header:x-tenant-id`",
        "every account would begin anew",
        "`authenticated: [x-tenant-id]` below `identify`, and accounts stay as they are; or write `scope: global`",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let report = load(forged, "scope: global, per: [client]").unwrap_err();
    assert!(report.contains("would no longer have the amounts of `tenants`"), "{report}");
    let mixed = "tenant: [attr:org, header:x-tenant-id], authenticated: [x-api-key]";
    assert!(load(mixed, "per: [client]").unwrap_err().contains("ledger-without-tenant"));
    for identify in [
        "tenant: header:x-tenant-id, authenticated: [x-api-key, x-tenant-id]",
        "tenant: attr:org, authenticated: [x-api-key]",
        "authenticated: [x-api-key]",
    ] {
        load(identify, "per: [client]").unwrap_or_else(|report| panic!("{report}"));
    }
}
