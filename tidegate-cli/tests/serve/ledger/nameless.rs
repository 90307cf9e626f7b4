//! A request without the subject that a ledger bills opens no account of nobody.

use serde_json::json;

use super::{CHANGE, Fixture, READ};

#[test]
fn a_request_without_a_tenant_under_a_rule_with_a_ledger_is_refused_and_bills_nobody() {
    let fixture = Fixture::start();
    let nameless = json!({ "path": "/exports", "cost": 7 });
    let mut reserve = nameless.clone();
    reserve["idempotency_key"] = "job-1".into();
    for (path, body) in [
        ("/v1/check", &nameless),
        ("/v1/quotas/reserve", &reserve),
        ("/v1/quotas/outstanding", &nameless),
        ("/v1/acquire", &nameless),
        ("/v1/check/batch", &json!({ "atomic": true, "checks": [nameless] })),
    ] {
        let (status, answer) = fixture.server().post(path, &body.to_string());
        assert_eq!((status, &answer["error"]), (400, &json!("bad_request")), "{path}: {answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(
            message.ends_with("The request has no `tenant`, by which it is counted. Send it."),
            "{path}: {message}"
        );
    }
    // Another request of the batch is decided.
    let named = json!({ "path": "/exports", "headers": { "x-tenant-id": "acme" } });
    let (_, answer) = fixture.server().post("/v1/check/batch", &json!({ "checks": [nameless, named] }).to_string());
    assert_eq!((&answer["answers"][0]["allowed"], &answer["answers"][1]["allowed"]), (&json!(false), &json!(true)));
    let rows = fixture.usage_of("exports", 1);
    assert_eq!(rows.len(), 1, "no account of nobody: {rows:?}");
    let (code, shown, _) = fixture.run(&["subject", "show", "--path", "/exports"], READ);
    assert!(code == Some(1) && shown.contains("exports: needs tenant of the request"), "{shown}");
    let (_, metrics) = fixture.call_text("GET", "/metrics", CHANGE, "");
    assert!(metrics.contains("rate_limit_ledger_entries_total{outcome=\"posted\"} 1\n"), "{metrics}");
}
