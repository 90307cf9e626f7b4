//! Addresses that are `off`: they open no port, and neither the start page nor the log has anything of them.

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use crate::serve::logging::upstream;
use crate::serve::{Running, ask, serve_alone};

/// Each address by its flag, and the first words of its lines on the start page.
const ADDRESSES: [(&str, &[&str]); 4] = [
    ("http", &["check", "forward-auth"]),
    ("grpc", &["Envoy"]),
    ("gateway", &["gateway"]),
    ("admin", &["metrics", "admin"]),
];

/// How a setting reaches the server.
#[derive(Clone, Copy, Debug)]
enum Way {
    Flag,
    Variable,
    File,
}

/// The ports at which a process listens.
fn ports(pid: u32) -> HashSet<u16> {
    let sockets =
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let inodes: HashSet<String> = sockets
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    lines
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A is LISTEN.
            let is_own = fields[3] == "0A" && inodes.contains(fields[9]);
            is_own.then(|| u16::from_str_radix(fields[1].rsplit(':').next().unwrap(), 16).unwrap())
        })
        .collect()
}

/// A server with a gateway, on free ports except for `off`.
fn start(off: &[&str], way: Way, further: &[&str]) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let upstream = upstream();
    let mut command = serve_alone();
    let mut lines = Vec::new();
    for (name, _) in ADDRESSES {
        let value = if off.contains(&name) { "off" } else { "127.0.0.1:0" };
        match way {
            _ if value != "off" => _ = command.arg(format!("--{name}={value}")),
            Way::Flag => _ = command.arg(format!("--{name}")).arg(value),
            Way::Variable => _ = command.env(format!("TIDEGATE_{}", name.to_uppercase()), value),
            Way::File => lines.push(format!("{name}: {value}\n")),
        }
    }
    let path = folder.path().join("tidegate.yaml");
    fs::write(&path, lines.concat()).unwrap();
    // With more, a machine with few descriptors would log that.
    command.args(["--max-connections", "100", "--max-upstream-connections", "100"]);
    command.arg("--config").arg(path).args(["--upstream", &upstream]).args(further);
    Running::start_command(command)
}

/// The first word of each line of the start page.
fn words(server: &Running) -> Vec<&str> {
    server.page.lines().filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
fn what_is_off_opens_no_port_and_has_no_line_on_the_start_page() {
    for way in [Way::Flag, Way::Variable, Way::File] {
        for (off, lines) in ADDRESSES {
            let mut server = start(&[off], way, &[]);
            let named = ADDRESSES.iter().filter(|(name, _)| *name != off).flat_map(|(_, lines)| *lines);
            for line in named {
                assert!(words(&server).contains(line), "{way:?} {off}: {}", server.page);
            }
            assert!(lines.iter().all(|line| !words(&server).contains(line)), "{way:?} {off}: {}", server.page);
            assert_eq!(ports(server.child.id()).len(), 3, "{way:?} {off}");
            let log = server.stop_and_read_log();
            assert_eq!(log.len(), 1, "only that it stops: {log:?}");
        }
    }
}

#[test]
fn with_every_front_end_off_the_server_does_not_start_and_says_what_to_write() {
    for further in [&["--gateway", "off", "--upstream", "http://127.0.0.1:1"][..], &[]] {
        let output = serve_alone().args(["--http", "off", "--grpc", "off"]).args(further).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        let expected =
            "error: every front end is off, and no request would reach the limits: write --http 8080, --grpc 8081, or ";
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn health_is_at_the_admin_address_if_http_is_off_and_needs_no_token() {
    let server = start(&["http"], Way::Flag, &["--admin-token", "change-token-0123456789"]);
    assert!(server.page.contains(&format!("health        http://{}/readyz", server.admin)), "{}", server.page);
    let (status, body) = ask(&server.admin, "GET", "/readyz", "");
    assert!(status == 200 && body.contains("\"ready\":true"), "{body}");
    assert_eq!(ask(&server.gateway, "GET", "/healthz", "").0, 200, "a path of the upstream");
    let status =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["status", "--admin", &server.admin]).output().unwrap();
    let shown = String::from_utf8(status.stdout).unwrap();
    assert!(status.status.success() && shown.contains("grpc") && !shown.contains("http  "), "{shown}");
    let server = start(&["http", "admin"], Way::Flag, &[]);
    assert!(server.page.contains(&format!("health        {} (gRPC)", server.grpc)), "{}", server.page);
    let server = start(&["http", "grpc", "admin"], Way::Flag, &[]);
    assert!(!words(&server).contains(&"health"), "{}", server.page);
    assert_eq!(ports(server.child.id()).len(), 1);
}

#[test]
fn what_is_off_reads_no_files_and_logs_no_warnings_of_its_own_also_after_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    // Neither forward-auth nor Envoy learns when a request ends.
    let text = "version: 1\nrules:\n- { id: exports, match: { path: /exports }, per: [], concurrency: { max: 3 }, on_failure: share }\n";
    fs::write(&rules, text).unwrap();
    let rules = rules.to_str().unwrap();
    let flags = [
        "--rules",
        rules,
        "--admin-token-file",
        "/no/such/file",
        "--envoy-config",
        "/no/such/folder",
        "--envoy-headers",
    ];
    let mut server = start(&["http", "grpc", "admin"], Way::Flag, &flags);
    server.signal("HUP");
    server.wait_for_log("rules reloaded");
    let log = server.stop_and_read_log();
    assert_eq!(log.len(), 1, "{log:?}");
    // The same without `off` says what is wrong.
    let flags = ["--rules", rules, "--envoy-headers"];
    let log = start(&[], Way::Flag, &flags).stop_and_read_log();
    let has = |text: &str| log.iter().any(|line| line.contains(text));
    assert!(has("door=\"forward-auth\"") && has("--envoy-headers has no effect"), "{log:?}");
    let log = start(&["http"], Way::Flag, &flags).stop_and_read_log();
    let has = |text: &str| log.iter().any(|line| line.contains(text));
    assert!(!has("forward-auth") && has("door=\"envoy\""), "{log:?}");
}

#[test]
fn a_command_that_calls_an_admin_address_that_is_off_says_so() {
    for arguments in [&["status"][..], &["subject", "show", "--ip", "203.0.113.9"], &["quota", "show"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).env("TIDEGATE_ADMIN", "off").output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        let expected = "error: the variable TIDEGATE_ADMIN: the admin address is off, and this command calls a server there; write a URL such as http://127.0.0.1:8082";
        assert!(output.status.code() == Some(2) && error.starts_with(expected), "{error}");
    }
}
