//! The results of a run.

use serde_json::{Value, json};

use crate::surge::WorkDir;

#[test]
fn a_run_has_four_phases_and_shared_limits_are_exact() {
    let dir = WorkDir::new();
    let (code, out, err) = dir.run("--users 30 --instances 3 --flood 60 --seconds 2 --seed 7 --json");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["seed"], &report["users"], &report["instances"]), (&json!(7), &json!(30), &json!(3)));
    assert_eq!(report["command"], "tidegate-lab surge --users 30 --instances 3 --flood 60 --seconds 2 --seed 7");
    assert!(report["store"].as_str().unwrap().ends_with(", started for this run"), "{}", report["store"]);
    let phases = report["phases"].as_array().unwrap();
    assert_eq!(phases.iter().map(|phase| phase["phase"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    for phase in phases {
        assert_complete(phase);
    }
    let ride_limit = |phase: usize| {
        let limits = phases[phase - 1]["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["rule"] == "ride-request").cloned().unwrap_or_default()
    };
    assert_eq!(phases[0]["limits"], json!([]));
    assert_eq!(phases[0]["bot"]["refused"]["count"], 0);
    // The bot sends more than its limit to each of the three gateways.
    assert!(ride_limit(2)["overshoot"].as_u64().unwrap() > 20, "{}", ride_limit(2));
    for phase in [3, 4] {
        assert_limits(&phases[phase - 1], 3);
        assert!(ride_limit(phase)["admitted"].as_u64().unwrap() >= 20, "{}", ride_limit(phase));
        for bot in ["bot", "flood"] {
            assert!(phases[phase - 1][bot]["refused"]["count"].as_u64().unwrap() > 0, "{bot} in phase {phase}");
        }
    }
    let store_answered = phases.iter().all(|phase| phase["undecided"] == 0);
    let missed = report["aims"].as_array().unwrap().iter().any(|goal| goal["reached"] == false);
    assert_eq!(code, Some(i32::from(missed)), "{err}");
    assert!(!missed || !store_answered, "{err}");
    let goals = report["aims"].as_array().unwrap();
    let times = goals.iter().filter(|goal| goal["not_judged"].as_str().is_some_and(|it| it.contains("times")));
    assert_eq!((goals.len(), times.count()), (9, 5), "a short run judges no times: {goals:?}");
    let judged = goals.iter().filter(|goal| goal["reached"].is_boolean()).count();
    assert!(judged == 4 || !store_answered, "{goals:?}");
    assert_eq!(dir.names(), ["tidegate-surge.html"], "no other file is left");
}

/// Checks that limits are exact if the store answered in time. If a busy machine kept it from that, the memory of each gateway
/// admits at most the limit on top.
fn assert_limits(phase: &Value, gateways: u32) {
    for limit in phase["limits"].as_array().unwrap() {
        if phase["undecided"] == 0 {
            assert_eq!((&limit["overshoot"], &limit["beyond"]), (&json!(0), &json!(0)), "{limit}");
        }
        assert!(limit["factor"].as_f64().unwrap() <= f64::from(gateways + 1), "{limit}");
    }
}

/// Checks that a phase has all its results, whatever the numbers are.
fn assert_complete(phase: &Value) {
    let names: Vec<&Value> = phase["endpoints"].as_array().unwrap().iter().map(|row| &row["name"]).collect();
    let expected =
        ["rides/request", "fares/estimate", "drivers/nearby", "trips/history", "admin/zones/stats", "drivers/location"];
    assert_eq!(names, expected);
    let count = |row: &Value| {
        let of = |name: &str| row[name].as_u64().unwrap();
        assert_eq!(of("served") + of("failures") + of("cut_off"), row["allowed"]["count"].as_u64().unwrap(), "{row}");
        let all = row["allowed"]["count"].as_u64().unwrap() + row["refused"]["count"].as_u64().unwrap();
        assert_eq!(all, of("requests"), "{row}");
        all
    };
    let all_clients: u64 = phase["endpoints"].as_array().unwrap().iter().map(count).sum();
    let (riders, bots) = (count(&phase["riders"]), count(&phase["bot"]) + count(&phase["flood"]));
    assert!(riders + bots < all_clients, "drivers and clerks send requests, too");
    assert_eq!((&phase["crowd"]["riders"], phase["crowd"]["curve"].as_array().unwrap().len()), (&json!(30), 30));
    assert_eq!(phase["timeline"].as_array().unwrap().len(), 2);
    assert!(phase["service"]["requests"].as_u64().unwrap() > 0 && phase["load"]["late"]["count"].as_u64().unwrap() > 0);
}

#[test]
fn without_a_redis_server_one_gateway_runs_with_a_warning() {
    let dir = WorkDir::new();
    let mut surge = dir.surge("--users 5 --flood 50 --seconds 1");
    let (code, out, err) = crate::parse_output(surge.env("PATH", dir.path("nowhere")).output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("neither redis-server nor valkey-server") && err.contains("ONE gateway"), "{err}");
    let tables =
        ["Phase 1: no limits\n", "Phase 4: shared", "\nBefore and after\n", "\nWithout limits, ", "rides/request"];
    for text in tables {
        assert!(out.contains(text), "{text}: {out}");
    }
    assert!(out.contains("✓ reached     phase 3: no subject gets more"), "{out}");
    assert!(!out.contains('\x1b') && !err.contains('\r'), "colors and progress are for terminals only");
    assert!(err.contains("\n   1 of 1 s   served ") && err.ends_with("report: tidegate-surge.html\n"), "{err}");
}
