//! What `subject show` and `subject reset` tell: the truth about the whole subject, and what was not done.

use std::collections::HashMap;

use serde_json::json;
use tidegate::{Request, Secret};
use tidegate_rules::RuleFile;

use super::{CHANGE, Fixture, RULES, run};
use crate::serve::Running;

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

/// The digits of the subject in the next line about a refusal.
fn logged_digits(server: &mut Running) -> String {
    let line = server.wait_for_log("refused");
    line.split("subject=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

/// Two keys whose subjects have the same first digits, which an attacker cannot find without the secret.
fn keys_with_the_same_digits() -> [String; 2] {
    let file = RuleFile::parse("rules.yaml", RULES).unwrap();
    let (rules, mut known) = (file.rules().clone().with_secret(&Secret::new("s1")), HashMap::new());
    for number in 0.. {
        let key = format!("key-{number}");
        let request = Request::new("").with_attribute("path", "/search").with_attribute("header:x-api-key", &key);
        let subject = rules.resolve(&request).checks()[0].key().subject();
        if let Some(other) = known.insert((subject.hash() >> 96) as u32, key.clone()) {
            return [other, key];
        }
    }
    unreachable!("there are more keys than digits")
}

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
    let rules = RULES.replace("limit: 100", "limit: 2");
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

#[test]
fn the_digits_of_a_line_of_the_log_lead_to_the_buckets_of_its_subject() {
    let mut fixture = Fixture::start();
    while fixture.is_allowed() {}
    let digits = logged_digits(&mut fixture.server);
    let subject = |command: &str, more: &[&str], token: &str| {
        let (code, shown, error) = fixture.run(&[&["subject", command], more].concat(), token);
        assert!(!shown.contains("hunter2") && !error.contains("hunter2"));
        (code, shown + &error)
    };
    let (code, shown) = subject("show", &["--hash", &digits], "read");
    assert!(code == Some(1) && shown.starts_with("search denies for "), "{shown}");
    assert!(shown.contains("search  fixed_window  0 of 2") && !shown.contains("export"), "{shown}");
    for (arguments, code, text) in [
        (&["--hash", "00000000"][..], 1, "has refused no subject with these digits in the last hour"),
        (&["--hash", &digits, "--rule", "export"], 1, "has refused no subject with these digits"),
        (&["--hash", &digits[..7]], 2, "8 to 32 hexadecimal digits"),
        (&["--hash", "hunter22"], 2, "8 to 32 hexadecimal digits"),
        (&["--hash", &digits, "-H", "x-api-key: k1"], 2, "--hash stands in place of a request"),
    ] {
        let (found, shown) = subject("reset", arguments, "change");
        assert!(found == Some(code) && shown.contains(text), "{arguments:?}: {shown}");
        assert!(!shown.contains("TIDEGATE_SECRET"), "the digits are the same in every process: {shown}");
    }
    let (code, shown) = subject("reset", &["--hash", &digits], "read");
    assert!(code == Some(2) && shown.contains("for reading only"), "{shown}");
    assert!(!fixture.is_allowed(), "nothing was reset so far");
    let (code, shown) = subject("reset", &["--hash", &digits.to_uppercase(), "--rule", "search"], "change");
    assert!(code == Some(0) && shown.starts_with("reset under 1 rule: search\n"), "{shown}");
    assert!(fixture.is_allowed());
    let log = fixture.server.stop_and_read_log().join("\n");
    let audit = log.lines().find(|line| line.contains("subject reset by an administrator")).unwrap();
    assert!(audit.contains(&digits) && !log.contains("hunter2"), "{audit}");
}

#[test]
fn digits_of_several_subjects_reset_none_of_them() {
    let mut fixture = Fixture::start();
    let keys = keys_with_the_same_digits();
    let is_allowed = |key: &str| {
        let headers = json!({ "x-api-key": key });
        fixture.server.check(&json!({ "path": "/search", "headers": headers }).to_string())["allowed"] == json!(true)
    };
    for key in &keys {
        while is_allowed(key) {}
    }
    let body = json!({ "request": { "path": "/search", "headers": { "x-api-key": keys[0] } } }).to_string();
    let shown = fixture.call("/v1/subjects/show", CHANGE, &body).1;
    let hash = shown["buckets"][0]["subject"].as_str().unwrap();
    let (code, listed, _) = fixture.run(&["subject", "reset", "--hash", &hash[..8]], "change");
    assert_eq!(code, Some(1), "{listed}");
    assert!(
        listed.starts_with("nothing was reset\n2 subjects have these digits: send more digits, or a `rule`.\n"),
        "{listed}"
    );
    assert!(listed.contains(&format!("  {}  search\n", &hash[..16])), "{listed}");
    assert!(keys.iter().all(|key| !is_allowed(key)));
    let (code, reset, _) = fixture.run(&["subject", "reset", "--hash", &hash[..16]], "change");
    assert_eq!(code, Some(0), "{reset}");
    assert_eq!([is_allowed(&keys[0]), is_allowed(&keys[1])], [true, false]);
    drop(fixture.server.stop_and_read_log());
}

#[test]
fn a_limit_that_all_senders_share_is_not_reset_by_its_digits() {
    let mut fixture = Fixture::with_rules(&RULES.replace("limit: 100", "limit: 1"));
    while fixture.is_allowed() {}
    let digits = logged_digits(&mut fixture.server);
    let (code, shown, _) = fixture.run(&["subject", "reset", "--hash", &digits], "change");
    assert!(code == Some(1) && shown.contains("all: all senders share its limit"), "{shown}");
    assert!(!fixture.is_allowed());
}

#[test]
fn without_a_secret_the_command_says_that_digits_belong_to_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let mut server = Running::with_rules(&rules);
    while server.check(super::SEARCH)["allowed"] == json!(true) {}
    let digits = logged_digits(&mut server);
    let show = |digits: &str| run(&["subject", "show", "--hash", digits, "--admin", &server.admin], None);
    let (code, shown, _) = show("00000000");
    assert!(code == Some(1) && shown.contains("Without TIDEGATE_SECRET, digits are good for the process"), "{shown}");
    let (code, shown, _) = show(&digits);
    assert!(code == Some(1) && shown.starts_with("search denies for "), "{shown}");
}
