//! The client libraries of OpenAI and Anthropic read the errors of the gateway, and wait for as long as it says.

use std::path::Path;
use std::process::Command;

use crate::serve::Running;
use crate::serve::language_models::Upstream;

/// For users who may retry within the test, and one who may not.
const RULES: &str = "
version: 1
rules:
  - id: minute
    per: [header:x-user]
    cost: &tokens { expression: 'int(request.body.max_tokens, 100)', usage: output, default: 100 }
    token_bucket: { capacity: 1000, refill: 1000/m }
  - id: month
    match: { header: { x-user: quota } }
    per: []
    cost: *tokens
    quota: { amount: 500, period: month }
";

#[test]
fn the_libraries_of_openai_and_anthropic_read_every_error_and_retry_in_time() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = here.join("../.tools/python/bin/python");
    assert!(python.exists(), "Python packages are missing: `make tools-prove` installs them");
    let folder = tempfile::tempdir().unwrap();
    let (upstream, rules) = (Upstream::start(), folder.path().join("rules.yaml"));
    std::fs::write(&rules, RULES).unwrap();
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", &upstream.url];
    let server = Running::start(&[&["--rules", rules.to_str().unwrap()], &gateway[..]].concat());
    let script = here.join("tests/serve/prove/model_clients.py");
    let output = Command::new(python).arg(script).arg(format!("http://{}", server.gateway)).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("both libraries read every error"), "{text}");
}
