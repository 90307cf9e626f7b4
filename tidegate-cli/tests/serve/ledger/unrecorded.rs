//! Rules and servers of which only one has a ledger.

use std::fs;

use serde_json::{Value, json};

use super::{CHANGE, Fixture, READ, RULES};
use crate::serve::Running;

/// The server recorded nothing and said nothing.
#[test]
fn quotas_that_the_ledger_does_not_record_are_named_at_the_start_in_the_status_and_in_the_usage() {
    let mut fixture = Fixture::start();
    let without = RULES
        .replace(", ledger: async", "")
        .replace("amount: 50, period: day, ledger: sync, keep_names: true", "amount: 50, period: day");
    fs::write(fixture.path("rules.yaml"), &without).unwrap();
    let line = fixture.server.as_mut().unwrap().wait_for_log("records nothing of these quotas");
    assert!(
        line.contains("WARN") && line.contains("calls reports") && line.contains("ledger: none"),
        "after a reload: {line}"
    );
    drop(fixture.server.take());
    let mut server = fixture.spawn_server(&[]);
    let line = server.wait_for_log("records nothing of these quotas");
    assert!(line.contains("calls reports"), "{line}");
    server.wait_for_log("store and ledger are ready");
    fixture.server = Some(server);
    fixture.consume("/calls", "acme", 5);
    let (code, shown, _) = fixture.run(&["status"], READ);
    assert!(code == Some(0) && shown.contains("not recorded, without `ledger`: calls, reports\n"), "{shown}");
    let (code, shown, error) = fixture.run(&["quota", "show", "--rule", "calls"], READ);
    assert_eq!((code, shown.as_str()), (Some(0), "nothing is used in the periods that run now\n"));
    assert_eq!(error, "warning: without `ledger`, nothing is recorded of calls\n");
    let (_, _, error) = fixture.run(&["quota", "show", "--rule", "exports"], READ);
    assert_eq!(error, "");

    let meant = without
        .replace("period: month }", "period: month, ledger: none }")
        .replace("period: day }", "period: day, ledger: none }");
    fs::write(fixture.path("rules.yaml"), meant).unwrap();
    drop(fixture.server.take());
    fixture.server = Some(fixture.spawn_server(&[]));
    let (_, status) = fixture.call("GET", "/v1/status", CHANGE, &Value::Null);
    assert_eq!(status["ledger"]["unrecorded"], json!([]));
    let log = fixture.server.as_mut().unwrap().stop_and_read_log();
    assert!(!log.iter().any(|line| line.contains("records nothing")), "{log:?}");
}

#[test]
fn rules_with_a_ledger_are_not_loaded_by_a_server_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, "version: 1\nrules: []\n").unwrap();
    let mut server = Running::with_rules(&path);
    fs::write(&path, RULES).unwrap();
    let line = server.wait_for_log("rule `exports` has a ledger");
    assert!(line.contains("rules not reloaded") && line.contains("--ledger"), "{line}");
}
