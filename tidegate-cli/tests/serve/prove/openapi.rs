//! The `OpenAPI` description matches the server: schemathesis generates requests from it, and every response must be described.

use std::path::Path;
use std::process::Command;

use crate::serve::Running;

#[test]
fn every_response_matches_the_api_description() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schemathesis = here.join("../.tools/python/bin/schemathesis");
    assert!(schemathesis.exists(), "schemathesis is missing: `make tools-prove` installs it");
    // Calls that would wait for tokens are answered at once.
    let server = Running::start(&["--max-wait", "0"]);
    let output = Command::new(schemathesis)
        .arg("--config-file")
        .arg(here.join("tests/serve/prove/schemathesis.toml"))
        .args(["run", "--no-color", "--seed", "1", "--max-examples", "100"])
        .arg(format!("http://{}/openapi.json", server.http))
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains("14 selected"), "{report}");
}
