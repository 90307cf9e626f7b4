//! What a run finds.

use serde_json::{Value, json};

use crate::Place;

#[test]
fn four_phases_are_found_and_shared_limits_are_kept_to_the_request() {
    let place = Place::new();
    let ran = place.run("--users 30 --instances 3 --seconds 2 --seed 7 --json");
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&found["seed"], &found["users"], &found["instances"]), (&json!(7), &json!(30), &json!(3)));
    assert_eq!(found["command"], "tidegate surge --users 30 --instances 3 --seconds 2 --seed 7");
    assert!(found["store"].as_str().unwrap().ends_with(" of its own"), "{}", found["store"]);
    let phases = found["phases"].as_array().unwrap();
    assert_eq!(phases.iter().map(|phase| phase["phase"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    for phase in phases {
        complete(phase);
    }
    let ride_limit = |phase: usize| {
        let limits = phases[phase - 1]["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["rule"] == "ride-request").cloned().unwrap_or_default()
    };
    assert_eq!(phases[0]["limits"], json!([]));
    assert_eq!(phases[0]["bot"]["refused"]["count"], 0);
    // The bot asks each of the three gateways for more than its limit.
    assert!(ride_limit(2)["overshoot"].as_u64().unwrap() > 20, "{}", ride_limit(2));
    for phase in [3, 4] {
        assert_eq!(phases[phase - 1]["undecided"], 0, "the store did not answer in time, so limits need not hold");
        for limit in phases[phase - 1]["limits"].as_array().unwrap() {
            assert_eq!((&limit["overshoot"], &limit["beyond"]), (&json!(0), &json!(0)), "phase {phase}: {limit}");
        }
        assert!(ride_limit(phase)["admitted"].as_u64().unwrap() >= 20, "{}", ride_limit(phase));
        assert!(phases[phase - 1]["bot"]["refused"]["count"].as_u64().unwrap() > 0);
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let aims = found["aims"].as_array().unwrap();
    let judged: Vec<&Value> = aims.iter().filter(|aim| !aim["reached"].is_null()).collect();
    assert_eq!((aims.len(), judged.len()), (7, 2), "a short run judges no times: {aims:?}");
    assert_eq!(place.names(), ["tidegate-surge.html"], "nothing else is left");
}

/// What every phase tells, whatever the numbers are.
fn complete(phase: &Value) {
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
    let everybody: u64 = phase["endpoints"].as_array().unwrap().iter().map(count).sum();
    assert!(count(&phase["riders"]) + count(&phase["bot"]) < everybody, "drivers and clerks are there, too");
    assert_eq!((&phase["crowd"]["riders"], phase["crowd"]["curve"].as_array().unwrap().len()), (&json!(30), 30));
    assert_eq!(phase["timeline"].as_array().unwrap().len(), 2);
    assert!(phase["service"]["requests"].as_u64().unwrap() > 0 && phase["load"]["late"]["count"].as_u64().unwrap() > 0);
}

#[test]
fn without_a_program_for_a_store_one_gateway_runs_and_it_is_said() {
    let place = Place::new();
    let mut surge = place.surge("--users 5 --seconds 1");
    let ran = crate::Ran::of(surge.env("PATH", place.path("nowhere")).output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(
        ran.err.contains("neither redis-server nor valkey-server") && ran.err.contains("ONE gateway"),
        "{}",
        ran.err
    );
    let tables = ["Phase 1: no limits\n", "Phase 4: shared", "\nBefore and after\n", "40 s → 590 ms", "rides/request"];
    for words in tables {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
    assert!(ran.out.contains("✓ reached     phase 3: nobody has more"), "{}", ran.out);
    assert!(!ran.out.contains('\x1b') && !ran.err.contains('\r'), "colours and progress are for terminals");
    assert!(
        ran.err.contains("\n   1 of 1 s   served ") && ran.err.ends_with("report: tidegate-surge.html\n"),
        "{}",
        ran.err
    );
}
