//! `tidegate check`.

use std::net::TcpListener;

use crate::shell::{RULES, Ran, Shell};

#[test]
fn an_allowed_request_is_told_with_what_is_left_and_what_the_answer_carries() {
    let ran = Shell::new().run("check --rules rules.yaml -X POST --path /rides --ip 203.0.113.9");
    let expected = "\
allowed

  rule   algorithm     says     cost  remaining  retry after  reset after
  rides  token_bucket  allowed  1     2 of 3     -            1d

The answer carries
  ratelimit-policy: \"rides\";q=3;w=259200
  ratelimit: \"rides\";r=2;t=86400
";
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), expected, ""));
}

#[test]
fn a_request_that_can_never_pass_is_told_so() {
    let ran = Shell::new().run("check --rules rules.yaml -X POST --path /rides --ip 203.0.113.9 --cost 4");
    let expected = "\
denied by rides for good: it costs more than the limit ever allows, and no waiting helps

  rule   algorithm     says    cost  remaining  retry after  reset after
  rides  token_bucket  denied  4     3 of 3     never        0s

The answer is 429
  ratelimit-policy: \"rides\";q=3;w=259200
  ratelimit: \"rides\";r=3
  content-type: application/json
  cache-control: no-store

  {\"error\":\"rate_limit_exceeded\",\"message\":\"The request costs more than the limit ever allows at once. \
Waiting does not help.\",\"rule_id\":\"rides\"}
";
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), expected));
}

#[test]
fn of_several_the_runs_are_told_and_one_denial_is_a_denial() {
    let shell = Shell::new();
    let ran = shell.run("check --rules rules.yaml -X POST --path /rides --ip 203.0.113.9 --times 5");
    assert_eq!(ran.code, Some(1));
    let begins =
        "1 to 3       allowed\n4 to 5       denied by rides\n\nThe last one:\ndenied by rides, retry after 1d\n";
    assert!(ran.out.starts_with(begins), "{ran:?}");
    assert!(ran.out.contains("\nThe answer is 429\n") && ran.out.contains("  retry-after: 86"), "{ran:?}");
    let ran = shell.run("check --rules rules.yaml -X POST --path /rides --ip 203.0.113.9 --times 3");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn to_peek_spends_nothing() {
    let ran = Shell::new().run("check --rules rules.yaml -X POST --path /rides --times 9 --peek --json");
    assert_eq!((ran.code, ran.out.lines().count()), (Some(0), 9), "{ran:?}");
    assert!(ran.out.lines().all(|line| line.contains("\"remaining\":3,")), "{ran:?}");
}

#[test]
fn programs_read_every_decision_on_a_line_of_its_own() {
    let ran = Shell::new().run("check --rules rules.yaml --action login --attr account=a7 --times 3 --json");
    let answers: Vec<serde_json::Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let allowed: Vec<_> = answers.iter().map(|answer| answer["allowed"] == true).collect();
    assert_eq!((ran.code, allowed), (Some(1), vec![true, true, false]));
    let denied = &answers[2];
    assert_eq!((&denied["rule"], &denied["limit"], &denied["remaining"]), (&"login".into(), &2.into(), &0.into()));
    assert!(denied["retry_after_ms"].as_u64().is_some_and(|wait| (80_000_000..=86_400_000).contains(&wait)));
    assert_eq!((&denied["delay_ms"], &denied["degraded"]), (&0.into(), &false.into()));
    assert_eq!((&denied["permanent"], &denied["shadow_would_reject"]), (&false.into(), &serde_json::json!([])));
    let check = &denied["checks"][0];
    assert_eq!((&check["rule"], &check["algorithm"]), (&"login".into(), &"sliding_log".into()));
    assert!(denied["reset_after_ms"].is_u64() && check["reset_after_ms"].is_u64());
    assert!(!ran.out.contains("a7\""), "a subject is told: {ran:?}");
    assert_eq!(answers[0]["retry_after_ms"], serde_json::Value::Null);
}

#[test]
fn a_rule_against_guessing_gives_nothing_away_over_http() {
    let ran = Shell::new().run("check --rules rules.yaml --action login --attr account=a7 --times 3");
    let answer = ran.out.split("The answer is 429").nth(1).unwrap();
    assert!(answer.contains("\"message\":\"Too many requests.\"") && !answer.contains("login"), "{ran:?}");
}

#[test]
fn shadow_holding_and_no_rule_at_all_are_told() {
    let shell = Shell::new();
    let shadow = shell.run("check --rules rules.yaml --path /rides/7 --times 2");
    assert_eq!(shadow.code, Some(0));
    assert!(shadow.out.contains("allowed\ntrial would deny it, but is in shadow\n"), "{shadow:?}");
    assert!(shadow.out.contains("would deny"), "{shadow:?}");
    let held = shell.run("check --rules rules.yaml --path /locations --times 2");
    assert!(held.out.contains("\nallowed, to be held for "), "{held:?}");
    let free = shell.run("check --rules rules.yaml --path /health");
    assert_eq!((free.code, free.out.as_str()), (Some(0), "allowed: no rule applies\n"));
}

/// Each of these has room only because the one before was waited for.
#[test]
fn who_waits_comes_at_the_time_that_was_said() {
    let shell = Shell::new();
    shell.write("rules.yaml", RULES.replace("rate: 3/m", "rate: 10/s"));
    let ran = shell.run("check --rules rules.yaml --path /locations --times 4 --wait");
    assert!(ran.code == Some(0) && ran.out.starts_with("1 to 4       allowed\n"), "{ran:?}");
    let both = shell.run("check --rules rules.yaml --path /locations --wait --peek");
    assert_eq!((both.code, both.out.as_str()), (Some(2), ""), "what is only looked at is not held: {both:?}");
    assert!(shell.run("check --help").out.contains("also if it is to be held (see --wait)"));
}

#[test]
fn a_store_that_does_not_answer_is_neither_allowed_nor_denied() {
    let shell = Shell::new();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let line = format!("check --rules rules.yaml --store redis://:hunter2@127.0.0.1:{port}");
    let open = shell.run(&format!("{line} -X POST --path /rides"));
    assert_eq!((open.code, open.out.as_str()), (Some(3), ""));
    let expected = "\
warning: anyone who reads the store can guess subjects; set TIDEGATE_SECRET
error: the store failed: nothing listens at the address of the store; is it up?
Meanwhile doors let this request pass: no rule that applies says otherwise in `on_failure`.
";
    assert_eq!(open.err, expected);
    let closed = shell.run(&format!("{line} --action login --secret s3cret"));
    assert_eq!(closed.code, Some(3));
    assert!(closed.err.contains("doors refuse this request with 503") && !closed.err.contains("warning"), "{closed:?}");
}

#[test]
fn the_file_and_the_store_may_come_from_the_environment() {
    let shell = Shell::new();
    let mut command = shell.command();
    let ran =
        command.arg("check").env("TIDEGATE_RULES", "rules.yaml").env("TIDEGATE_STORE", "memory:").output().unwrap();
    assert_eq!(Ran::from(ran).out, "allowed: no rule applies\n");
}

#[test]
fn a_file_that_cannot_be_used_is_no_denial() {
    let shell = Shell::new();
    shell.write("rules.yaml", RULES.replace("capacity: 3", "capacity: three"));
    let ran = shell.run("check --rules rules.yaml");
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("rules.yaml:17:"), "{ran:?}");
    assert_eq!(shell.run("check --rules missing.yaml").code, Some(2));
}
