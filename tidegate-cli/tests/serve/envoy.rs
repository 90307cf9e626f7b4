//! The flags of Envoy's rate limit service, and its pages at the admin address.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::serve::{Running, ask};

const LIMITS: &str = "
domain: edge
descriptors:
  - { key: k, rate_limit: { unit: hour, requests_per_unit: 1 }, metadata: { to: here } }
";

const HIT: &str = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"secret7"}]}]}"#;

fn get(server: &Running, path: &str) -> (u16, String) {
    ask(&server.admin, "GET", path, "")
}

#[test]
fn flags_set_the_modes_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("edge.yaml"), LIMITS).unwrap();
    let config = folder.path().to_str().unwrap();
    let more = ["--envoy-shadow", "--envoy-metadata", "--envoy-headers", "--envoy-limit-header", "X-Most"];
    let server = Running::start(&[&["--envoy-config", config], &more[..]].concat());
    for code in ["OK", "OVER_LIMIT"] {
        let (status, answer) = server.post("/json", HIT);
        assert_eq!((status, &answer["overallCode"], &answer["statuses"][0]["code"]), (200, &json!("OK"), &json!(code)));
        assert_eq!(answer["responseHeadersToAdd"][0], json!({ "key": "X-Most", "value": "1" }));
        assert_eq!(answer["responseHeadersToAdd"][1]["key"], json!("RateLimit-Remaining"));
        assert_eq!(answer["dynamicMetadata"]["domain"], json!("edge"));
    }
    let (status, stats) = get(&server, "/stats");
    assert_eq!(status, 200);
    for line in [
        "ratelimit.service.rate_limit.edge.k.total_hits: 2\n",
        "ratelimit.service.rate_limit.edge.k.over_limit: 1\n",
        "ratelimit.service.global_shadow_mode: 1\n",
        "ratelimit_server.ShouldRateLimit.total_requests: 2\n",
    ] {
        assert!(stats.contains(line), "{line}{stats}");
    }
    let metrics = get(&server, "/metrics").1;
    assert!(metrics.contains("\nratelimit_service_rate_limit_total_hits{domain=\"edge\",key1=\"k\"} 2\n"), "{metrics}");
    assert!(metrics.contains("rate_limit_checks_total{"), "{metrics}");
    assert!(!metrics.contains("secret7") && !stats.contains("secret7"));
    assert!(get(&server, "/rlconfig").1.starts_with("edge.k: unit=HOUR requests_per_unit=1"));
    assert!(get(&server, "/").1.contains("/stats"));
}

#[test]
fn hits_are_given_back_over_http_only_if_a_flag_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("edge.yaml"), LIMITS).unwrap();
    let config = ["--envoy-config", folder.path().to_str().unwrap()];
    let refund = HIT.replace("]}]}", r#"],"isNegativeHits":true}]}"#);
    for (flags, refunded, again) in [(&[][..], 403, 429), (&["--envoy-json-refunds"][..], 200, 200)] {
        let server = Running::start(&[&config[..], flags].concat());
        let post = |body: &str| ask(&server.http, "POST", "/json", body).0;
        assert_eq!([post(HIT), post(&refund), post(HIT)], [200, refunded, again], "{flags:?}");
    }
}

#[test]
fn a_changed_configuration_is_loaded_and_one_with_errors_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (path, new) = (folder.path().join("edge.yaml"), folder.path().join("new"));
    fs::write(&path, LIMITS).unwrap();
    let mut server = Running::start(&["--envoy-config", folder.path().to_str().unwrap()]);
    let write = |text: &str| {
        fs::write(&new, text).unwrap();
        fs::rename(&new, &path).unwrap();
    };
    write(&LIMITS.replace("unit: hour", "unit: day"));
    while !get(&server, "/rlconfig").1.contains("unit=DAY") {
        server.wait_for_log("Envoy configuration reloaded");
    }
    write("limits: wrong\n");
    server.wait_for_log("Envoy configuration not reloaded");
    assert!(get(&server, "/rlconfig").1.contains("unit=DAY"));
    let stats = get(&server, "/stats").1;
    assert!(!stats.contains("config_load_error: 0\n"), "{stats}");
}

#[test]
fn wrong_flags_are_refused_and_flags_without_effect_are_reported() {
    let serve = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("serve").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for share in ["1.5", "-1", "NaN", "much"] {
        let (code, said) = serve(&[&format!("--envoy-near-limit={share}")]);
        assert!(code == Some(2) && said.contains("a number from 0 to 1"), "{share}: {said}");
    }
    let (code, said) = serve(&["--envoy-reset-header", "no name"]);
    assert!(code == Some(2) && said.contains("not the name of a header field"), "{said}");
    let (code, said) = serve(&["--envoy-quota", "--http", "192.0.2.1:1"]);
    assert!(code == Some(2) && said.contains("--envoy-quota has no effect without --envoy-config"), "{said}");
}

#[test]
fn without_an_envoy_configuration_its_page_is_a_404() {
    let server = Running::start(&[]);
    assert_eq!(get(&server, "/rlconfig").0, 404);
    assert!(get(&server, "/metrics").1.contains("ratelimit_service_total_requests"));
}
