//! `tidegate surge` on a store of the user: it uses keys of its own, and deletes them.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use conformance::server::{Kind, Server};
use tidegate::{Limit, Limiter, Rate, Request, Rule, RuleSet};
use tidegate_cli::{Exit, Output, run};
use tidegate_redis::RedisOptions;

fn surge(url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let page_path = folder.path().join("report.html");
    let page_path = page_path.to_str().unwrap();
    let line = ["tidegate", "surge", "--users", "10", "--instances", "2", "--seconds", "1", "--json", "--store", url];
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = run(line.into_iter().chain(["--report", page_path]), &mut Output::new(&mut out, &mut err));
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    assert_eq!(exit, Exit::Success, "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let goals = report["aims"].as_array().unwrap();
    let judged =
        |phase: &str| &goals.iter().find(|goal| goal["what"].as_str().unwrap().starts_with(phase)).unwrap()["reached"];
    assert_eq!(judged("phase 3:"), true);
    // The admission log has one time per request, and a cluster decides two rules at two times.
    let expected = if url.starts_with("redis+cluster:") { serde_json::Value::Null } else { true.into() };
    assert_eq!(judged("phase 4:"), &expected);
    let page = std::fs::read_to_string(page_path).unwrap();
    assert!(!out.contains(url) && !page.contains(url), "the URL may contain a password");
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
async fn forget_prefix_deletes_that_prefix_and_no_other() {
    for server in [Server::start(Kind::Redis), Server::start_alone_in_cluster(Kind::Valkey)] {
        let limit = Limit::token_bucket(5, Rate::per_hour(1).unwrap()).unwrap();
        let rules = RuleSet::new([Rule::new("rides", limit).with_per(["user"])]).unwrap();
        // `*` is no pattern here.
        let (theirs, ours) = ("runs", "r*s");
        for prefix in [theirs, ours] {
            let store = server.store_with(RedisOptions::new().with_prefix(prefix).with_heartbeats(false)).await;
            let limiter = Limiter::new(rules.clone(), store);
            for user in 0..1500 {
                let user = user.to_string();
                assert!(limiter.check(&Request::new("").with_attribute("user", &user)).await.unwrap().is_allowed());
            }
        }
        let ours = server.store_with(RedisOptions::new().with_prefix(ours).with_heartbeats(false)).await;
        assert_eq!(ours.forget_prefix().await.unwrap(), 1500);
        assert_eq!(ours.forget_prefix().await.unwrap(), 0);
        let left: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
        assert_eq!(left, 1500);
    }
}
