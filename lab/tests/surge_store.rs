//! `tidegate-lab surge` on a store of the user: it uses keys of its own, and deletes them. Its flood passes the limit of one bot.

use conformance::server::{Kind, Server};
use conformance::suite::long_timeout_options;
use lab::run;
use serde_json::Value;
use tidegate::{Limit, Limiter, Rate, Request, Rule, RuleSet};
use tidegate_server::command::{Exit, Output};

/// Gateways of a run.
const GATEWAYS: u32 = 2;

/// Riders of a run. The first eight wait for each response, so that none of them has two requests waiting for the store.
const RIDERS: &str = "8";

/// Runs it with a flood over 1,000 connections on the store at `url`, and checks the results.
fn surge(url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let page_path = folder.path().join("report.html");
    let page_path = page_path.to_str().unwrap();
    let gateways = GATEWAYS.to_string();
    let line = ["tidegate-lab", "surge", "--users", RIDERS, "--instances", &gateways, "--seconds", "1", "--json"];
    let line = line.into_iter().chain(["--store", url, "--report", page_path]);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = run(line, &mut Output::new(&mut out, &mut err));
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {err}"));
    // The admission log has one time per request, and a cluster decides two rules at two times.
    let judges_last = !url.starts_with("redis+cluster:");
    let goals = report["aims"].as_array().unwrap();
    for phase in [3, 4] {
        let results = &report["phases"][phase - 1];
        assert_flood(results, judges_last || phase == 3);
        let of_phase = |goal: &&Value| goal["what"].as_str().unwrap().starts_with(&format!("phase {phase}:"));
        let judged: Vec<bool> = goals.iter().filter(of_phase).map(|goal| goal["reached"].is_boolean()).collect();
        if results["undecided"] == 0 {
            assert_eq!(judged, [judges_last || phase == 3; 2], "{goals:?}");
        }
    }
    let store_answered = report["phases"].as_array().unwrap().iter().all(|phase| phase["undecided"] == 0);
    assert!(exit == Exit::Success || !store_answered, "{err}");
    let page = std::fs::read_to_string(page_path).unwrap();
    assert!(!out.contains(url) && !page.contains(url), "the URL may contain a password");
}

/// The bot of the flood gets its limit and no more, and the riders keep their service. If a busy machine keeps the store from
/// answering in time, the memory of each gateway admits at most the limit on top.
fn assert_flood(phase: &Value, is_exact: bool) {
    let count = |row: &str, field: &str| phase[row][field].as_u64().unwrap();
    assert!(count("flood", "requests") >= 1000, "{}", phase["flood"]);
    let limit = &phase["flood_limit"];
    if phase["undecided"] == 0 && is_exact {
        assert_eq!(limit["overshoot"], 0, "{limit}");
    }
    assert!(limit["factor"].as_f64().unwrap() <= f64::from(GATEWAYS + 1), "{limit}");
    // A gateway that gets no CPU time for a while is overloaded, and refuses those who share a subject with the most others: the riders
    // share the capacity of the service.
    if phase["undecided"] == 0 {
        assert_eq!(count("riders", "failures"), 0, "{}", phase["riders"]);
    }
    assert!(count("riders", "requests") >= 8, "{}", phase["riders"]);
}

#[test]
fn surge_leaves_foreign_keys_and_none_of_its_own() {
    for server in [Server::start(Kind::Redis), Server::start_alone_in_cluster(Kind::Valkey)] {
        let mut connection = server.connection();
        // Key names as similar to those of a run as possible.
        for name in ["other", "surge", "surge:mine", "tg1{00}ride-request:t"] {
            let _: () = redis::cmd("SET").arg(name).arg("theirs").query(&mut connection).unwrap();
        }
        surge(&server.url());
        let mut left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        left.sort();
        assert_eq!(left, ["other", "surge", "surge:mine", "tg1{00}ride-request:t"]);
    }
}

#[tokio::test]
async fn forget_namespace_deletes_that_namespace_and_no_other() {
    for server in [Server::start(Kind::Redis), Server::start_alone_in_cluster(Kind::Valkey)] {
        let limit = Limit::token_bucket(5, Rate::per_hour(1).unwrap()).unwrap();
        let rules = RuleSet::new([Rule::new("rides", limit).with_per(["user"])]).unwrap();
        let options = |name: &str| long_timeout_options().with_namespace(name.parse().unwrap());
        // Theirs begins with ours, and with the version after it.
        let (theirs, ours) = ("run1s", "run");
        for namespace in [theirs, ours] {
            let store = server.store_with(options(namespace)).await;
            let limiter = Limiter::new(rules.clone(), store);
            for user in 0..1500 {
                let user = user.to_string();
                assert!(limiter.check(&Request::new("").with_attribute("user", &user)).await.unwrap().is_allowed());
            }
        }
        let ours = server.store_with(options(ours)).await;
        assert_eq!(ours.forget_namespace().await.unwrap(), 1500);
        assert_eq!(ours.forget_namespace().await.unwrap(), 0);
        let left: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
        assert_eq!(left, 1500);
    }
}
