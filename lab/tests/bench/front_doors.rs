//! The front ends, and the servers that they are compared with.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::bench::bench;
use crate::parse_output;

#[test]
fn every_front_door_is_measured() {
    let report = crate::bench::json(
        "rls check gateway --rounds 1 --requests 50 --connections 4 --rate 100 --seconds 0.2 --json",
    );
    let names: Vec<&Value> = report["subjects"].as_array().unwrap().iter().map(|subject| &subject["name"]).collect();
    let gateways = ["gateway", "gateway_limits", "gateway_lease"];
    let expected = ["rls_do_nothing", "rls_envoy_files", "rls_rule_file", "check"].into_iter().chain(gateways);
    assert!(names.iter().copied().eq(expected), "{names:?}");
    for subject in report["subjects"].as_array().unwrap() {
        assert!(subject["cpu_us"].as_f64().unwrap() > 0.0, "{subject}");
        assert!(subject["per_second_and_core"].as_f64().unwrap() > 0.0, "{subject}");
        let latency = &subject["latency"];
        assert_eq!((&latency["requests"], &latency["statuses"]), (&json!(20), &json!({ "200": 20 })), "{subject}");
        assert!(latency["fell_behind"].is_boolean() && latency["late_p99_us"].is_u64(), "{subject}");
        let micros = ["p50_us", "p90_us", "p99_us", "p99_9_us"].map(|name| latency[name].as_u64().unwrap());
        assert!(micros.is_sorted() && micros[0] > 0, "{subject}");
    }
    let ratios: Vec<_> =
        report["ratios"].as_array().unwrap().iter().map(|ratio| [&ratio["of"], &ratio["to"]]).collect();
    let expected = json!([
        ["rls_envoy_files", "rls_do_nothing"],
        ["rls_rule_file", "rls_do_nothing"],
        ["gateway_limits", "gateway"],
        ["gateway_lease", "gateway_limits"],
    ]);
    assert_eq!(json!(ratios), expected);
    assert_eq!((&report["rounds"], &report["requests"], &report["rate"]), (&json!(1), &json!(50), &json!(100)));
}

#[test]
fn the_table_shows_the_chosen_servers() {
    let (code, out, err) =
        parse_output(bench("check --rounds 1 --requests 20 --rate 100 --seconds 0.1").output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines.len() == 3 && lines[0].ends_with("latencies at 100 a second") && lines[2].starts_with("check API "),
        "{out}"
    );
    assert!(!err.contains('\r'), "progress is for terminals only: {err}");
}

#[test]
fn the_front_doors_on_redis_are_compared_with_the_memory_store() {
    let program = env!("CARGO_BIN_EXE_tidegate-lab");
    let line = format!("shared --rounds 1 --requests 50 --seconds 0.2 --rate 100 --baseline {program} --json");
    let report = crate::bench::json(&line);
    let tables = report["tables"].as_array().unwrap();
    let names =
        |table: &Value| table["rows"].as_array().unwrap().iter().map(|row| row["name"].clone()).collect::<Vec<_>>();
    let gateways = ["gateway on Redis", "gateway in memory, limit 0"];
    assert_eq!(
        (names(&tables[0]), names(&tables[1])),
        (gateways.map(Value::from).to_vec(), gateways.map(Value::from).to_vec())
    );
    assert_eq!((names(&tables[2]).len(), names(&tables[3]).len(), tables.len()), (3, 2, 4));
    let passed = |row: usize| tables[0]["rows"][row]["figures"]["passed"].as_f64();
    assert!(passed(0) >= Some(100.0) && passed(1) == Some(0.0), "{report}");
    for ratio in tables.iter().flat_map(|table| table["ratios"].as_array().unwrap()) {
        assert!(ratio["ratio"].as_f64().unwrap() > 0.0, "{ratio}");
    }
}

/// Trap: servers that outlive the program keep their ports and their CPU core busy.
#[test]
fn a_signal_stops_all_started_servers() {
    let process = bench("rls --requests 100000000").spawn().unwrap();
    let id = process.id();
    let children = || {
        let listed = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        listed.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    while children().len() < 3 || !handles_terminate(id) {
        std::thread::yield_now();
    }
    let started = children();
    assert!(Command::new("kill").args(["-TERM", &id.to_string()]).status().unwrap().success());
    let (code, out, err) = parse_output(process.wait_with_output().unwrap());
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.ends_with("error: stopped by a signal, so there are no figures\n"), "{err}");
    for child in started {
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "{child} still runs");
    }
}

/// Whether a process has a handler for SIGTERM, by its signal mask in `/proc`.
fn handles_terminate(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.is_some_and(|caught| caught & (1 << 14) != 0)
}

#[test]
fn bad_arguments_are_rejected_before_anything_starts() {
    for (line, expected) in [
        ("gatway", "'gateway'"),
        ("rls --rate 0", "--rate"),
        ("rls --rounds 0", "--rounds"),
        ("rls --connections 0", "--connections"),
        ("rls --seconds 0", "must be from 0.01 to 86400 seconds"),
        ("rls --server-core 999", "--server-core 999: this process cannot use that core; available: "),
        ("rls --load-core 5000", "--load-core 5000: this process cannot use that core"),
        ("rls serve-nothing", "serve-nothing cannot be combined"),
        ("rls shared", "shared cannot be combined"),
        ("rls --baseline x", "--baseline needs the target shared"),
        ("rls --url http://127.0.0.1:1/", "--url"),
        ("rls -d x", "--url"),
    ] {
        let (code, out, err) = parse_output(bench(line).output().unwrap());
        assert!(code == Some(2) && out.is_empty() && err.contains(expected), "{line}: {err}");
    }
}
