//! The `OpenAPI` descriptions match the server: schemathesis generates requests from them, and every response must be described.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::serve::Running;
use crate::serve::ledger::{CHANGE, Fixture};

/// Asserts that the server at this address answers as its description says, which has this number of operations beside itself.
fn assert_described(address: &str, arguments: &[&str], operations: usize) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schemathesis = here.join("../.tools/python/bin/schemathesis");
    assert!(schemathesis.exists(), "schemathesis is missing: `make tools-prove` installs it");
    let output = Command::new(schemathesis)
        .arg("--config-file")
        .arg(here.join("tests/serve/prove/schemathesis.toml"))
        .args(["run", "--no-color", "--seed", "1", "--max-examples", "100"])
        .args(arguments)
        .arg(format!("http://{address}/openapi.json"))
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains(&format!("{operations} selected")), "{report}");
}

#[test]
fn every_response_matches_the_api_description() {
    // Calls that would wait for tokens are answered at once.
    let server = Running::start(&["--max-wait", "0"]);
    assert_described(&server.http, &[], 14);
}

#[test]
fn every_response_of_the_admin_address_matches_its_description() {
    let fixture = Fixture::start();
    fixture.consume("/exports", "acme", 60);
    let token = format!("Authorization: Bearer {CHANGE}");
    assert_described(&fixture.server().admin, &["--header", &token], 18);
    // Otherwise 429 would have been the response to most of them.
    assert_eq!(fixture.call("GET", "/v1/status", CHANGE, &Value::Null).0, 200, "no call was a guess");
}
