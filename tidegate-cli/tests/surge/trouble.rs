//! What can go wrong.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Command;

use crate::{Place, Ran};

#[test]
fn nonsense_is_told_before_anything_starts() {
    let place = Place::new();
    for (line, expected) in [
        ("--users 0", "--users"),
        ("--users 1000000", "--users"),
        ("--instances 0", "--instances"),
        ("--instances 1000", "--instances"),
        ("--seconds 0", "--seconds"),
        ("--seed x", "--seed"),
        ("--store memory:", "error: --store: gateways cannot share `memory:`"),
        ("--store valkey://:hunter2@h", "error: --store: a Valkey server is written `redis://`, too"),
        ("--report no/such/folder.html", "error: --report no/such/folder.html: "),
    ] {
        let ran = place.run(line);
        assert!(ran.code == Some(2) && ran.out.is_empty() && ran.err.contains(expected), "{line}: {}", ran.err);
        assert!(!ran.err.contains("hunter2"), "{line}: {}", ran.err);
    }
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[test]
fn a_store_that_does_not_answer_is_a_failure_of_the_store() {
    let place = Place::new();
    let ran = place.run("--users 1 --seconds 1 --store redis://:hunter2@127.0.0.1:1");
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(
        ran.err.contains("error: the store failed: nothing listens") && !ran.err.contains("hunter2"),
        "{}",
        ran.err
    );
}

/// Trap: a server that outlives the program that started it holds its port and its memory until somebody finds it.
#[test]
fn a_signal_in_any_phase_ends_everything_and_leaves_a_report_of_what_was_found() {
    for (signal, phase) in [("-INT", "phase 1"), ("-TERM", "phase 2")] {
        let place = Place::new();
        let mut process = place.surge("--users 20 --instances 2 --seconds 5 --json").spawn().unwrap();
        let id = process.id();
        let mut said = BufReader::new(process.stderr.take().unwrap());
        let mut heard = String::new();
        while !heard.contains(phase) {
            assert!(said.read_line(&mut heard).unwrap() > 0, "{heard}");
        }
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let children: Vec<&str> = children.split_whitespace().collect();
        assert_eq!(children.len(), 1, "a store of its own");
        assert!(Command::new("kill").args([signal, &id.to_string()]).status().unwrap().success());
        said.read_to_string(&mut heard).unwrap();
        let ran = Ran::of(process.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(2), "{heard}");
        assert!(heard.contains("error: stopped by a signal"), "{heard}");
        assert!(!Path::new(&format!("/proc/{}", children[0])).exists(), "the store still runs");
        let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(found["stopped"], true);
        assert_eq!(found["phases"].as_array().unwrap().len(), if phase == "phase 1" { 1 } else { 2 });
        let page = std::fs::read_to_string(place.path("tidegate-surge.html")).unwrap();
        assert!(page.contains("Stopped before its time") && page.ends_with("</html>\n"));
        assert_eq!(place.names(), ["tidegate-surge.html"], "nothing else is left");
    }
}
