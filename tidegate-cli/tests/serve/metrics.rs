//! The metrics page: its formats, what it counts, and what never appears in it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Running, ask, ask_with};

const HELLO: &str = r#"{"path":"/hello","ip":"203.0.113.9"}"#;

/// What Prometheus sends.
const ACCEPT: &str = "accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Runs promtool with `input` on its standard input, and returns its output. It must succeed.
fn promtool(arguments: &[&str], input: &str) -> String {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/promtool");
    assert!(program.exists(), "promtool is missing: `make tools` installs it into .tools/bin");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success(), "{text}\n{input}");
    text
}

/// A server that has allowed, refused and answered Envoy.
fn server() -> Running {
    let server = Running::start(&["--near-limit", "0.5"]);
    for _ in 0..4 {
        server.check(HELLO);
    }
    server.post("/json", r#"{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#);
    server
}

#[test]
fn metrics_count_by_rule_and_contain_no_subject() {
    let server = server();
    let (_, metrics) = ask(&server.admin, "GET", "/metrics", "");
    for line in [
        r#"rate_limit_checks_total{rule="hello",algorithm="token_bucket",outcome="allowed"} 3"#,
        r#"rate_limit_rejected_total{rule="hello",subject_type="client",reason="limit"} 1"#,
        r#"rate_limit_near_limit_total{rule="hello"} 2"#,
        r#"rate_limit_store_latency_seconds_count{script="decide",outcome="ok"} 4"#,
        &format!(r#"tidegate_build_info{{version="{}",revision=""#, env!("CARGO_PKG_VERSION")),
        "process_cpu_seconds_total 0.",
        "process_resident_memory_bytes ",
        "process_open_fds ",
        "process_max_fds ",
        "process_start_time_seconds ",
    ] {
        assert!(metrics.lines().any(|found| found.starts_with(line)), "{line} is not in\n{metrics}");
    }
    assert!(!metrics.contains("203.0.113.9"));
    assert_eq!(ask(&server.http, "GET", "/metrics", "").0, 404, "clients do not see them");
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
