//! One person, one bucket: at every front end of a server that has a body or a header of the person.

use std::fs;

use crate::serve::logging::upstream;
use crate::serve::{Running, ask_with, serve};

/// Nobody authenticates the tenant.
const RULES: &str = "
version: 1
identify: { tenant: header:x-tenant-id, authenticated: [x-api-key] }
tenants: { acme: pro }
plans: { pro: { keys: { sliding_log: { limit: 100, window: 1h } } } }
rules:
  - { id: login, match: { path: /login }, per: ['body:account'], sliding_log: { limit: 5, window: 1h }, security: true, on_failure: share }
  - { id: keys, match: { path: /keys }, per: ['header:x-api-key'], sliding_log: { limit: 5, window: 1h }, on_failure: share }
";

/// Three tenants, and three spellings of an account, in turn.
fn turns() -> impl Iterator<Item = (&'static str, &'static str)> {
    let tenants = ["acme", "blue", "red"].into_iter().cycle();
    tenants.zip(["zed@x.io", "Zed@x.io", " ZED@x.io", "zed@X.IO"].into_iter().cycle())
}

/// Regression: three values of `x-tenant-id` were three times five logins, and so were three spellings of an account.
#[test]
fn neither_a_tenant_that_nobody_authenticates_nor_a_spelling_multiplies_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, RULES).unwrap();
    let upstream = upstream();
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", &upstream];
    let mut server = Running::start(&[&["--rules", file.to_str().unwrap()], &gateway[..]].concat());

    let login = |(tenant, account): (&str, &str)| {
        let tenant = format!("x-tenant-id: {tenant}");
        ask_with(&server.gateway, "POST", "/login", &[&tenant], &format!(r#"{{"account":"{account}"}}"#)).0
    };
    assert_eq!(turns().take(9).map(login).filter(|status| *status == 200).count(), 5, "the gateway");
    assert_eq!(login(("acme", "ann@x.io")), 200, "a bystander");

    let by_key = |(tenant, _): (&str, &str)| {
        let lines = [&format!("x-tenant-id: {tenant}"), "x-api-key: k1", "x-forwarded-uri: /keys"];
        ask_with(&server.http, "GET", "/v1/forward-auth", &lines, "").0
    };
    assert_eq!(turns().take(9).map(by_key).filter(|status| *status == 200).count(), 5, "forward-auth");

    let check = |call: &str| server.check(call)["allowed"] == true;
    let headers =
        |tenant: &str| check(&format!(r#"{{"path":"/keys","headers":{{"x-api-key":"k1","x-tenant-id":"{tenant}"}}}}"#));
    assert!(!headers("acme") && !headers("blue"), "the check API has counted the same subject");
    // The tenant of a call is set by the application, and so it counts, with its plan.
    let set = |tenant: &str| {
        let call = format!(r#"{{"path":"/keys","tenant":"{tenant}","headers":{{"x-api-key":"k1"}}}}"#);
        (0..6).filter(|_| check(&call)).count()
    };
    assert_eq!((set("blue"), set("acme")), (5, 6));

    // An operator finds the bucket in any spelling.
    let customer =
        r#"{"rule":"login","request":{"body":"{\"account\":\"ZED@x.io\"}","headers":{"x-tenant-id":"new"}}}"#;
    let (status, shown) = ask_with(&server.admin, "POST", "/v1/subjects/show", &[], customer);
    assert_eq!(status, 200, "{shown}");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["buckets"][0]["remaining"], 0, "{shown}");

    let log = server.stop_and_read_log().concat();
    assert!(log.contains("warning[unauthenticated-tenant]: a client can send any `header:x-tenant-id`"), "{log}");
    assert!(log.contains("it separates no subjects, and selects no plan through `tenants`"), "{log}");
}

#[test]
fn a_server_whose_accounts_would_begin_anew_does_not_start_and_says_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let rules = "version: 1\nidentify: { client: header:x-api-key, tenant: header:x-tenant-id, authenticated: [x-api-key] }\nrules:\n\
                 - { id: units, per: [client], quota: { amount: 5, period: day, ledger: async } }\n";
    fs::write(&file, rules).unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let mut command = serve(&["--rules", file.to_str().unwrap(), "--ledger", &sqlite]);
    let output = command.env("TIDEGATE_SECRET", "s1").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        error.contains("error[ledger-without-tenant]") && error.contains("every account would begin anew"),
        "{error}"
    );
    assert!(
        error.contains("`authenticated: [x-tenant-id]` below `identify`, and accounts stay as they are"),
        "{error}"
    );
}
