//! `tidegate check`.

use std::net::TcpListener;

use crate::cli::shell::{RULES, RunOutput, Shell};

#[test]
fn an_allowed_request_shows_what_remains_and_the_response_headers() {
    let output = Shell::new().run("check --rules rules.yaml -X POST --path /rides --ip 203.0.113.9");
    let expected = "\
allowed

  rule   algorithm     verdict  cost  remaining  retry after  reset after
  rides  token_bucket  allowed  1     2 of 3     -            1d

Response headers
  ratelimit-policy: \"rides\";q=3;w=259200
  ratelimit: \"rides\";r=2;t=86400
";
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (Some(0), expected, ""));
}

#[test]
fn a_request_in_the_grace_of_a_quota_is_marked() {
    let shell = Shell::new();
    shell.write(
        "quota.yaml",
        "version: 1\nrules:\n- { id: q, match: {}, per: [], on_failure: closed, quota: { amount: 2, period: year, grace: 1 } }\n",
    );
    let output = shell.run("check --rules quota.yaml --times 4");
    let start = "1 to 2       allowed\n3            allowed in grace\n4            denied by q\n";
    assert!(output.out.starts_with(start), "{output:?}");
    assert!(
        shell.run("check --rules quota.yaml --cost 3").out.contains("  q     quota      in grace  3     0 of 2"),
        "{output:?}"
    );
}

#[test]
fn a_request_that_costs_more_than_the_limit_is_never_allowed() {
    let output = Shell::new().run("check --rules rules.yaml -X POST --path /rides --ip 203.0.113.9 --cost 4");
    let expected = "\
denied by rides, never allowed: it costs more than the limit

  rule   algorithm     verdict  cost  remaining  retry after  reset after
  rides  token_bucket  denied   4     3 of 3     never        0s

Response 429
  ratelimit-policy: \"rides\";q=3;w=259200
  ratelimit: \"rides\";r=3
  content-type: application/json
  cache-control: no-store

  {\"error\":\"rate_limit_exceeded\",\"message\":\"The request costs more than the limit ever allows at once. \
Waiting does not help.\",\"rule_id\":\"rides\"}
";
    assert_eq!((output.code, output.out.as_str()), (Some(1), expected));
}

#[test]
fn equal_decisions_are_grouped_and_one_denial_causes_exit_code_1() {
    let shell = Shell::new();
    let output = shell.run("check --rules rules.yaml -X POST --path /rides --ip 203.0.113.9 --times 5");
    assert_eq!(output.code, Some(1));
    let start =
        "1 to 3       allowed\n4 to 5       denied by rides\n\nLast decision:\ndenied by rides, retry after 1d\n";
    assert!(output.out.starts_with(start), "{output:?}");
    assert!(output.out.contains("\nResponse 429\n") && output.out.contains("  retry-after: 86"), "{output:?}");
    let output = shell.run("check --rules rules.yaml -X POST --path /rides --ip 203.0.113.9 --times 3");
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn peek_consumes_nothing() {
    let output = Shell::new().run("check --rules rules.yaml -X POST --path /rides --times 9 --peek --json");
    assert_eq!((output.code, output.out.lines().count()), (Some(0), 9), "{output:?}");
    assert!(output.out.lines().all(|line| line.contains("\"remaining\":3,")), "{output:?}");
}

#[test]
fn json_output_has_one_line_per_decision() {
    let output = Shell::new().run("check --rules rules.yaml --action login --attr account=a7 --times 3 --json");
    let decisions: Vec<serde_json::Value> =
        output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let allowed: Vec<_> = decisions.iter().map(|decision| decision["allowed"] == true).collect();
    assert_eq!((output.code, allowed), (Some(1), vec![true, true, false]));
    let denied = &decisions[2];
    assert_eq!((&denied["rule"], &denied["limit"], &denied["remaining"]), (&"login".into(), &2.into(), &0.into()));
    assert!(denied["retry_after_ms"].as_u64().is_some_and(|wait| (80_000_000..=86_400_000).contains(&wait)));
    assert_eq!((&denied["delay_ms"], &denied["degraded"]), (&0.into(), &false.into()));
    assert_eq!((&denied["permanent"], &denied["shadow_would_reject"]), (&false.into(), &serde_json::json!([])));
    let check = &denied["checks"][0];
    assert_eq!((&check["rule"], &check["algorithm"]), (&"login".into(), &"sliding_log".into()));
    assert!(denied["reset_after_ms"].is_u64() && check["reset_after_ms"].is_u64());
    assert!(!output.out.contains("a7\""), "the output contains a subject: {output:?}");
    assert_eq!(decisions[0]["retry_after_ms"], serde_json::Value::Null);
}

#[test]
fn a_security_rule_reveals_nothing_in_its_response() {
    let output = Shell::new().run("check --rules rules.yaml --action login --attr account=a7 --times 3");
    let response = output.out.split("Response 429").nth(1).unwrap();
    assert!(response.contains("\"message\":\"Too many requests.\"") && !response.contains("login"), "{output:?}");
}

#[test]
fn the_output_shows_shadow_rules_delays_and_requests_without_a_rule() {
    let shell = Shell::new();
    let shadow = shell.run("check --rules rules.yaml --path /rides/7 --times 2");
    assert_eq!(shadow.code, Some(0));
    assert!(shadow.out.contains("allowed\ntrial would deny it (shadow)\n"), "{shadow:?}");
    assert!(shadow.out.contains("would deny"), "{shadow:?}");
    let delayed = shell.run("check --rules rules.yaml --path /locations --times 2");
    assert!(delayed.out.contains("\nallowed, delay "), "{delayed:?}");
    let free = shell.run("check --rules rules.yaml --path /health");
    assert_eq!((free.code, free.out.as_str()), (Some(0), "allowed: no rule applies\n"));
}

/// Each request fits only because the command waited for the delay of the one before.
#[test]
fn the_flag_wait_spaces_requests_by_their_delay() {
    let shell = Shell::new();
    shell.write("rules.yaml", RULES.replace("rate: 3/m", "rate: 10/s"));
    let output = shell.run("check --rules rules.yaml --path /locations --times 4 --wait");
    assert!(output.code == Some(0) && output.out.starts_with("1 to 4       allowed\n"), "{output:?}");
    let both = shell.run("check --rules rules.yaml --path /locations --wait --peek");
    assert_eq!((both.code, both.out.as_str()), (Some(2), ""), "--wait conflicts with --peek: {both:?}");
    assert!(shell.run("check --help").out.contains("even with a delay (see --wait)"));
}

/// Otherwise each run would leave a slot taken for the length of its lease.
#[test]
fn slots_are_held_for_the_decisions_of_one_command_and_then_released() {
    let shell = Shell::new();
    let rule =
        "- { id: exports, match: { action: export }, per: [], concurrency: { max: 2, lease: 30s }, on_failure: share }";
    shell.write("exports.yaml", format!("version: 1\nrules:\n{rule}\n"));
    let run = |flags: &str| shell.run(&format!("check --rules exports.yaml --action export {flags}"));
    let output = run("--times 3");
    assert_eq!(output.code, Some(1));
    assert!(output.out.starts_with("1 to 2       allowed\n3            denied by exports\n"), "{output:?}");
    assert_eq!(output.err, "released 2 slots: this command holds none after its end\n");
    let output = run("--json");
    assert_eq!((output.code, output.out.lines().count()), (Some(0), 1), "{output:?}");
    assert_eq!(output.err, "released 1 slot: this command holds none after its end\n");
    assert_eq!(run("--peek").err, "");
}

#[test]
fn an_unreachable_store_has_an_exit_code_of_its_own() {
    let shell = Shell::new();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let line = format!("check --rules rules.yaml --store redis://:hunter2@127.0.0.1:{port}");
    let shared = shell.run(&format!("{line} -X POST --path /rides"));
    assert_eq!((shared.code, shared.out.as_str()), (Some(3), ""));
    let expected = "\
warning: anyone who reads the store can guess subjects; set TIDEGATE_SECRET
error: the store failed: nothing listens at the address of the store; is it up?
Until it answers, each instance decides this request on its own, as `on_failure` of a matching rule says.
";
    assert_eq!(shared.err, expected);
    shell.write("open.yaml", RULES.replace("on_failure: share", "on_failure: open"));
    let open = shell.run(&format!("{} -X POST --path /rides", line.replace("rules.yaml", "open.yaml")));
    let expected = "Until it answers, front ends let this request pass, as `on_failure` of the matching rules says.\n";
    assert!(open.code == Some(3) && open.err.ends_with(expected), "{open:?}");
    let closed = shell.run(&format!("{line} --action login --secret s3cret"));
    assert_eq!(closed.code, Some(3));
    assert!(
        closed.err.contains("front ends reject this request with 503") && !closed.err.contains("warning"),
        "{closed:?}"
    );
}

#[test]
fn rule_file_and_store_can_be_set_by_environment_variables() {
    let shell = Shell::new();
    let mut command = shell.command();
    let output =
        command.arg("check").env("TIDEGATE_RULES", "rules.yaml").env("TIDEGATE_STORE", "memory:").output().unwrap();
    assert_eq!(RunOutput::from(output).out, "allowed: no rule applies\n");
}

#[test]
fn an_unusable_rule_file_is_a_usage_error() {
    let shell = Shell::new();
    shell.write("rules.yaml", RULES.replace("capacity: 3", "capacity: three"));
    let output = shell.run("check --rules rules.yaml");
    assert_eq!((output.code, output.out.as_str()), (Some(2), ""));
    assert!(output.err.contains("rules.yaml:17:"), "{output:?}");
    assert_eq!(shell.run("check --rules missing.yaml").code, Some(2));
}

#[test]
fn a_request_denied_by_slots_may_retry_after_a_second() {
    let shell = Shell::with_examples();
    let command = "check --rules examples/exports.yaml -X POST --path /exports -H x-tenant-id:acme --attr rows=1000";
    assert!(shell.run(command).out.starts_with("allowed\n"));
    let denied = shell.run(&format!("{command} --times 4"));
    assert_eq!(denied.code, Some(1));
    assert!(denied.out.contains("denied by export-active, retry after 1s\n"), "{denied:?}");
    assert!(denied.out.contains("  retry-after: 1\n"), "{denied:?}");
}

#[test]
fn a_penalty_has_no_amount_and_a_block_shows_only_when_to_retry() {
    let shell = Shell::with_examples();
    let command = "check --rules examples/login.yaml --action login --ip 203.0.113.9";
    shell.write(
        "block.yaml",
        "version: 1\nrules:\n- { id: pin, match: { action: pin }, per: [ip], sliding_log: { limit: 1, window: 1s }, security: true, \
         on_failure: share, penalty: { after: 1, block: 10m, max: 1h } }\n",
    );
    let blocked = shell.run("check --rules block.yaml --action pin --ip 203.0.113.9 --times 3 --json");
    let last: serde_json::Value = serde_json::from_str(blocked.out.lines().last().unwrap()).unwrap();
    assert_eq!((&last["allowed"], &last["rule"]), (&false.into(), &"pin".into()));
    assert_eq!((&last["limit"], &last["remaining"]), (&().into(), &().into()));
    let penalty = &last["checks"][1];
    assert_eq!((&penalty["algorithm"], &penalty["allowed"]), (&"penalty".into(), &false.into()));
    assert_eq!((&penalty["limit"], &penalty["remaining"]), (&().into(), &().into()));
    let text = shell.run("check --rules block.yaml --action pin --ip 203.0.113.9 --times 3").out;
    let response = text.split("Response 429").nth(1).unwrap();
    assert!(response.starts_with("\n  retry-after: 600\n  retry-after-ms: 600000\n  content-type"), "{response}");
    assert!(!response.contains("pin") && !response.contains("penalty"), "{response}");
    assert!(!shell.run(&format!("{command} --json")).out.contains("4503599627370495"));
}
