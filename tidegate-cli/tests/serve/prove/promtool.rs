//! Prometheus reads the metrics page in both of its formats.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::serve::metrics::server;
use crate::serve::{ask, ask_with};

/// What Prometheus sends.
const ACCEPT: &str = "accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Runs promtool with `input` on its standard input, and returns its output. It must succeed.
fn promtool(arguments: &[&str], input: &str) -> String {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/promtool");
    assert!(program.exists(), "promtool is missing: `make tools-prove` installs it into .tools/bin");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success(), "{text}\n{input}");
    text
}

#[test]
fn promtool_finds_no_fault_with_the_prometheus_text() {
    let (_, page) = ask(&server().admin, "GET", "/metrics", "");
    let text = promtool(&["check", "metrics"], &page);
    assert_eq!(text.trim(), "");
}

#[test]
fn promtool_reads_the_open_metrics_text() {
    let server = server();
    let (status, page) = ask_with(&server.admin, "GET", "/metrics", &[ACCEPT], "");
    assert!(status == 200 && page.ends_with("\n# EOF\n") && page.matches("# EOF").count() == 1, "{page}");
    // It reads this format for importing only, which needs a time at each sample.
    let timed = |line: &str| if line.starts_with('#') { format!("{line}\n") } else { format!("{line} 1700000000\n") };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics");
    std::fs::write(&file, page.lines().map(timed).collect::<String>()).unwrap();
    let blocks = folder.path().join("blocks");
    let arguments = ["tsdb", "create-blocks-from", "openmetrics", file.to_str().unwrap(), blocks.to_str().unwrap()];
    promtool(&arguments, "");
    assert_eq!(std::fs::read_dir(blocks).unwrap().count(), 1, "one block of samples");
}
