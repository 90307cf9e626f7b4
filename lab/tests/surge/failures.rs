//! Bad arguments, a failing store, and signals.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Command;

use crate::surge::WorkDir;

#[test]
fn bad_arguments_are_rejected_before_anything_starts() {
    let dir = WorkDir::new();
    for (line, expected) in [
        ("--users 0", "--users"),
        ("--users 1000000", "--users"),
        ("--instances 0", "--instances"),
        ("--instances 1000", "--instances"),
        ("--seconds 0", "--seconds"),
        ("--flood 10001", "--flood"),
        ("--seed x", "--seed"),
        ("--store memory:", "error: --store: gateways cannot share `memory:`"),
        ("--store valkey://:hunter2@h", "error: --store: a Valkey server is written `redis://`, too"),
        ("--report no/such/folder.html", "error: --report no/such/folder.html: "),
    ] {
        let (code, out, err) = dir.run(line);
        assert!(code == Some(2) && out.is_empty() && err.contains(expected), "{line}: {err}");
        assert!(!err.contains("hunter2"), "{line}: {err}");
    }
    assert!(dir.names().is_empty(), "{:?}", dir.names());
}

#[test]
fn an_unreachable_store_has_the_exit_code_of_store_failures() {
    let dir = WorkDir::new();
    let (code, _, err) = dir.run("--users 1 --seconds 1 --store redis://:hunter2@127.0.0.1:1");
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("error: the store failed: nothing listens") && !err.contains("hunter2"), "{err}");
}

/// Trap: a server that outlives the program keeps its port and its memory.
#[test]
fn a_signal_stops_all_processes_and_leaves_a_partial_report() {
    for (signal, phase) in [("-INT", "phase 1"), ("-TERM", "phase 2")] {
        let dir = WorkDir::new();
        let mut process = dir.surge("--users 20 --instances 2 --flood 50 --seconds 5 --json").spawn().unwrap();
        let id = process.id();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut log = String::new();
        while !log.contains(phase) {
            assert!(stderr.read_line(&mut log).unwrap() > 0, "{log}");
        }
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let children: Vec<&str> = children.split_whitespace().collect();
        assert_eq!(children.len(), 1, "the store is the only child process");
        assert!(Command::new("kill").args([signal, &id.to_string()]).status().unwrap().success());
        stderr.read_to_string(&mut log).unwrap();
        let (code, out, _) = crate::parse_output(process.wait_with_output().unwrap());
        assert_eq!(code, Some(2), "{log}");
        assert!(log.contains("error: stopped by a signal"), "{log}");
        assert!(!Path::new(&format!("/proc/{}", children[0])).exists(), "the store still runs");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["stopped"], true);
        assert_eq!(report["phases"].as_array().unwrap().len(), if phase == "phase 1" { 1 } else { 2 });
        let page = std::fs::read_to_string(dir.path("tidegate-surge.html")).unwrap();
        assert!(page.contains("Stopped early") && page.ends_with("</html>\n"));
        assert_eq!(dir.names(), ["tidegate-surge.html"], "no other file is left");
    }
}
