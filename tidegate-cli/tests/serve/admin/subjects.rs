//! What `subject show` and `subject reset` tell: the truth about the whole subject, and what was not done.

use serde_json::json;

use super::{CHANGE, Fixture};

/// Keys that belong to tenants, three of which the file names.
const TENANTS: &str = "
version: 1
identify:
  client: [header:x-api-key, ip]
  tenant: header:x-tenant-id
  authenticated: [x-api-key, x-tenant-id]
rules:
  - { id: search, match: { path: /search }, per: [client], fixed_window: { limit: 2, window: 30d }, on_failure: share }
plans: { pro: { search: { fixed_window: { limit: 3, window: 30d } } } }
tenants: { acme: pro, globex: pro, initech: pro }
";

impl Fixture {
    /// Whether a search of this key is allowed under this tenant.
    fn is_allowed_under(&self, tenant: &str, key: &str) -> bool {
        let headers = json!({ "x-api-key": key, "x-tenant-id": tenant });
        self.server.check(&json!({ "path": "/search", "headers": headers }).to_string())["allowed"] == json!(true)
    }
}

/// It reported success, whoever was meant.
#[test]
fn a_reset_of_a_subject_that_has_used_nothing_says_so_and_exits_with_1() {
    let mut fixture = Fixture::start();
    while fixture.is_allowed() {}
    let (code, shown, error) = fixture.run(&["subject", "reset", "-H", "x-api-key: hunter3"], "change");
    assert_eq!((code, error.as_str()), (Some(1), ""), "{shown}");
    assert!(shown.starts_with("nothing was reset\nexport, search: was full, nothing to reset\n"), "{shown}");
    assert!(!shown.contains("tenant"), "the file has no tenants: {shown}");
    let body = json!({ "request": { "headers": { "x-api-key": "hunter3" } } }).to_string();
    let (status, answer) = fixture.call("/v1/subjects/reset", CHANGE, &body);
    assert_eq!(
        (status, &answer["error"], &answer["full"]),
        (422, &json!("nothing_to_reset"), &json!(["export", "search"]))
    );
    assert!(!answer.to_string().contains("hunter"), "{answer}");
    assert!(!fixture.is_allowed());
    let log = fixture.server.stop_and_read_log();
    assert!(!log.iter().any(|line| line.contains("subject reset by")), "{log:?}");
}

/// It reported success, and the customer stayed blocked.
#[test]
fn a_subject_that_is_counted_for_each_tenant_is_not_reset_without_its_tenant() {
    let fixture = Fixture::with_rules(TENANTS);
    for tenant in ["acme", "globex"] {
        while fixture.is_allowed_under(tenant, "hunter2") {}
    }
    let hint = "search: counted separately for each tenant: add --tenant; of the tenants that the file or the ledger names, with \
                state: 2\n";
    for (command, code) in [("reset", 1), ("show", 0)] {
        let (found, shown, error) = fixture.run(&["subject", command, "-H", "x-api-key: hunter2"], "change");
        assert_eq!((found, error.as_str()), (Some(code), ""), "{command}: {shown}");
        assert!(shown.contains(hint), "{command}: {shown}");
    }
    assert!(!fixture.is_allowed_under("acme", "hunter2"));
    let (code, shown, _) = fixture.run(&["subject", "reset", "-H", "x-api-key: hunter2", "--tenant", "acme"], "change");
    assert!(
        code == Some(0) && shown.starts_with("reset under 1 rule: search\n") && !shown.contains("--tenant"),
        "{shown}"
    );
    assert!(fixture.is_allowed_under("acme", "hunter2"));
    assert!(!fixture.is_allowed_under("globex", "hunter2"), "another tenant");
}

#[test]
fn a_reset_says_what_else_denies_the_next_request() {
    let rules = super::RULES.replace("limit: 100", "limit: 2");
    let fixture = Fixture::with_rules(&rules);
    while fixture.is_allowed() {}
    let (code, shown, _) =
        fixture.run(&["subject", "reset", "-H", "x-api-key: hunter2", "--path", "/search"], "change");
    assert!(code == Some(0) && shown.starts_with("reset under 1 rule: search\n"), "{shown}");
    assert!(shown.contains("its next request is still denied by all, retry after "), "{shown}");
}

/// "its next request is allowed" stood above a table that said "denies for 52s".
#[test]
fn without_a_path_the_first_line_is_about_the_limits_of_the_subject() {
    let fixture = Fixture::start();
    while fixture.is_allowed() {}
    let show = |arguments: &[&str]| {
        let (code, shown, error) = fixture.run(&[&["subject", "show"], arguments].concat(), "read");
        assert_eq!(error, "");
        (code, shown)
    };
    let (code, shown) = show(&["-H", "x-api-key: hunter2"]);
    assert!(code == Some(1) && shown.starts_with("search denies for "), "{shown}");
    assert!(shown.lines().next().unwrap().ends_with("add --path or --action") && !shown.contains("allowed"), "{shown}");
    let (code, shown) = show(&["-H", "x-api-key: hunter3"]);
    assert!(code == Some(0) && shown.starts_with("no limit of its own denies. "), "{shown}");
    let (code, shown) = show(&["-H", "x-api-key: hunter2", "--path", "/export"]);
    assert_eq!(code, Some(0), "{shown}");
    let mut lines = shown.lines();
    assert_eq!(lines.next(), Some("its next request is allowed"));
    let other = lines.next().unwrap();
    assert!(other.starts_with("search denies for ") && other.ends_with(", and does not match this request"), "{shown}");
}
