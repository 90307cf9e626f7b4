//! The metrics page: its formats, what it counts, and what never appears in it.

use crate::serve::{Running, ask};

const HELLO: &str = r#"{"path":"/hello","ip":"203.0.113.9"}"#;

/// A server that has allowed, refused and answered Envoy.
pub(crate) fn server() -> Running {
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
