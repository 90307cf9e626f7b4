//! `tidegate surge` on an existing server: it uses keys under its own prefix and touches no others.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use conformance::server::{Kind, Server};
use tidegate::{Limit, Limiter, Rate, Request, Rule, RuleSet};
use tidegate_cli::{Exit, Output, run};
use tidegate_redis::RedisOptions;

fn surge(url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html");
    let report = report.to_str().unwrap();
    let line = ["tidegate", "surge", "--users", "10", "--instances", "2", "--seconds", "1", "--json", "--store", url];
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = run(line.into_iter().chain(["--report", report]), &mut Output::new(&mut out, &mut err));
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    assert_eq!(exit, Exit::Success, "{err}");
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    let aims = found["aims"].as_array().unwrap();
    let judged =
        |phase: &str| &aims.iter().find(|aim| aim["what"].as_str().unwrap().starts_with(phase)).unwrap()["reached"];
    assert_eq!(judged("phase 3:"), true);
    // The request log has one time per request, but a cluster decides two rules at two times.
    let expected = if url.starts_with("redis+cluster:") { serde_json::Value::Null } else { true.into() };
    assert_eq!(judged("phase 4:"), &expected);
    let page = std::fs::read_to_string(report).unwrap();
    assert!(!out.contains(url) && !page.contains(url), "there may be a password in it");
}

#[test]
fn surge_leaves_foreign_keys_and_none_of_its_own() {
    for server in [Server::start(Kind::Redis), Server::start_alone_in_cluster(Kind::Valkey)] {
        let mut connection = server.connection();
        // Foreign names that resemble its own.
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
        // `*` in a prefix is not a pattern.
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
