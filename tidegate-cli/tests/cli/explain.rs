//! `tidegate rules explain`.

use crate::cli::shell::{RULES, RunOutput, Shell};

#[test]
fn the_output_shows_matching_rules_subjects_and_a_timeline() {
    let output =
        Shell::new().run("rules explain rules.yaml -X POST --path /rides?x=1 -H x-api-key:k1 --ip 203.0.113.9");
    let expected = "\
client address  203.0.113.9
tenant          none
plan            none

Rules that apply
  rides
    counts by  client = k1 (from header:x-api-key)
    subject    SUBJECT
    cost       1
    limit      token bucket: 3 at once, then 1/d
    key        KEY
    on failure share

Rules that do not apply
  login      no action, the rule requires login
  trial      path is /rides, the rule requires /rides/*
  locations  path is /rides, the rule requires /locations
  old        path is /rides, the rule requires /old

Timeline of a new subject that repeats this request
  now  3 pass, the 4th is denied by rides, retry after 1d
  +1d  1 passes, the 2nd is denied by rides, retry after 1d
  +2d  1 passes, the 2nd is denied by rides, retry after 1d
  +5d  3 pass, the 4th is denied by rides, retry after 1d
";
    let value_of = |name: &str| output.out.split(name).nth(1).and_then(|rest| rest.split('\n').next()).unwrap().trim();
    let (subject, key) = (value_of("subject "), value_of("key   "));
    assert!(subject.len() == 32 && key.starts_with("tg1{"), "{output:?}");
    assert_eq!(output.out, expected.replace("SUBJECT", subject).replace("KEY", key));
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
}

#[test]
fn the_running_period_of_a_quota_is_shown_in_its_time_zone() {
    let shell = Shell::with_examples();
    let line = "rules explain examples/plan-quotas.yaml --path /api/rides -H x-tenant-id:acme";
    let text = shell.run(line).out;
    let limit = "limit      quota: 1000 in each month of Europe/Berlin from day 31 on, then 50 in grace (plan pro)\n    period     ";
    assert!(text.contains(limit), "{text}");
    let json = shell.run(&format!("{line} --json")).json();
    let period = &json["rules"][0]["limits"][0]["period"];
    let instant = |name: &str| period[name].as_str().unwrap_or_else(|| panic!("{json}"));
    assert_eq!(instant("timezone"), "Europe/Berlin");
    assert!(text.contains(&format!("period     {} to {}\n", instant("begins"), instant("ends"))), "{text}");
    assert!(instant("begins") < instant("ends"), "{text}");
    assert!(json["rules"][1]["limits"][0].get("period").is_none(), "{json}");
}

#[test]
fn a_ledger_and_the_policy_that_follows_from_it_are_shown() {
    let shell = Shell::with_examples();
    let line = "rules explain examples/billing.yaml --path /api/rides -H x-tenant-id:acme";
    let text = shell.run(line).out;
    assert!(text.contains("on failure closed (the default with a ledger)\n"), "{text}");
    let json = shell.run(&format!("{line} --json")).json();
    let rules = json["rules"].as_array().unwrap_or_else(|| panic!("{json}"));
    let ledger = |id: &str| rules.iter().find(|rule| rule["id"] == id).map(|rule| rule["ledger"].clone());
    assert_eq!(ledger("api-units"), Some("async".into()), "{json}");
    assert_eq!(ledger("exports"), Some(serde_json::Value::Null), "it does not apply");
}

#[test]
fn the_timeline_of_a_quota_says_how_many_pass_in_grace() {
    let shell = Shell::new();
    shell.write(
        "quota.yaml",
        "version: 1\nrules:\n- { id: q, match: {}, per: [], on_failure: closed, cost: { default: 2, actual: x-used }, \
         quota: { amount: 6, period: year, grace: 50% } }\n",
    );
    let text = shell.run("rules explain quota.yaml").out;
    assert!(
        text.contains("  now ") && text.contains("  4 pass, 1 of them in grace, the 5th is denied by q, retry after "),
        "{text}"
    );
    assert!(text.contains("    cost       2, corrected by the response header x-used\n"), "{text}");
    let timeline = &shell.run("rules explain quota.yaml --json").json()["timeline"][0];
    assert_eq!((timeline["allowed"].as_u64(), timeline["in_grace"].as_u64()), (Some(4), Some(1)), "{timeline}");
}

#[test]
fn a_spoofed_forwarded_header_does_not_change_the_client_address() {
    let shell = Shell::new();
    let client = |line: &str| {
        let output = shell.run(&format!("rules explain rules.yaml -X POST --path /rides --json {line}"));
        output.json()["client_ip"].as_str().unwrap_or_else(|| panic!("{output:?}")).to_owned()
    };
    assert_eq!(client("--ip 203.0.113.9 -H x-forwarded-for:198.51.100.1"), "203.0.113.9");
    assert_eq!(client("--ip 127.0.0.1 -H x-forwarded-for:198.51.100.1"), "198.51.100.1");
}

#[test]
fn exempt_disabled_and_shadow_rules_are_distinguished() {
    let shell = Shell::new();
    let exempt = shell.run("rules explain rules.yaml --path /health").out;
    assert!(exempt.contains("exempt          by the entry in line 9\n"), "{exempt}");
    assert!(exempt.contains("No rule applies: the request passes\n"), "{exempt}");
    let disabled = shell.run("rules explain rules.yaml --path /old").out;
    assert!(disabled.contains("  old        disabled\n"), "{disabled}");
    let shadow = shell.run("rules explain rules.yaml --path /rides/7").out;
    assert!(shadow.contains("trial  (shadow: counts and reports, but denies nothing)"), "{shadow}");
    assert!(shadow.contains("counts by  nothing: one count for all requests"), "{shadow}");
    assert!(shadow.contains("now  100000 pass, and more would\n"), "{shadow}");
}

#[test]
fn an_exemption_from_one_rule_is_shown_at_that_rule() {
    let shell = Shell::new();
    let rules = RULES.replace("- path: /health\n", "- path: /health\n  - { tenant: acme, rules: [rides] }\n");
    shell.write("rules.yaml", rules.replace("path: '/rides/*'", "path: /rides"));
    let line = "rules explain rules.yaml -X POST --path /rides -H x-tenant-id:acme";
    let shown = shell.run(line).out;
    assert!(shown.contains("  rides      exempt by the entry in line 10\n"), "{shown}");
    assert!(shown.contains("\n  trial  (shadow") && !shown.contains("\nexempt "), "another rule applies: {shown}");
    let json = shell.run(&format!("{line} --json")).json();
    assert_eq!((&json["exempt_line"], &json["rules"][0]["exempt_line"]), (&().into(), &10.into()), "{json}");
}

#[test]
fn plans_delays_and_missing_subjects_are_shown() {
    let shell = Shell::new();
    let pro = shell.run("rules explain rules.yaml -X POST --path /rides -H x-tenant-id:acme").out;
    assert!(pro.contains("tenant          acme\nplan            pro\n"), "{pro}");
    assert!(pro.contains("limit      token bucket: 100 at once, then 50/s (plan pro)\n"), "{pro}");
    let missing = "counts by  client, missing: all requests without it share one count\n";
    assert!(pro.contains(missing), "{pro}");
    let delayed = shell.run("rules explain rules.yaml --path /locations").out;
    assert!(
        delayed.contains("  2 pass, the last with a delay of 20s, the 3rd is denied by locations, retry after 20s\n"),
        "{delayed}"
    );
    let free = shell.run("rules explain rules.yaml --action login --attr account=a7 --cost 0").out;
    assert!(free.contains("cost       0\n") && !free.contains("Timeline"), "{free}");
    let costly = shell.run("rules explain rules.yaml --action login --attr account=a7 --cost 3").out;
    assert!(costly.contains("now  none passes, denied by login, never allowed\n"), "{costly}");
}

#[test]
fn json_output_has_the_same_content() {
    let output = Shell::new().run("rules explain rules.yaml --action login --attr account=a7 --json");
    let explained = output.json();
    assert_eq!((output.code, output.out.lines().count()), (Some(0), 1));
    let login = &explained["rules"][1];
    assert_eq!((&login["id"], &login["applies"], &login["cost"]), (&"login".into(), &true.into(), &1.into()));
    assert_eq!(login["subject"][0]["value"], "a7");
    assert_eq!(login["subject_hash"].as_str().unwrap().len(), 32);
    assert_eq!(login["limits"][0]["text"], "sliding log: 2 in any 1d");
    let rides = &explained["rules"][0];
    assert_eq!((&rides["reason"], &rides["differs"]["wanted"]), (&"differs".into(), &"POST".into()));
    let first = &explained["timeline"][0];
    assert_eq!((&first["at_ms"], &first["allowed"], &first["denied_by"]), (&0.into(), &2.into(), &"login".into()));
    assert_eq!(first["retry_after_ms"], 86_400_000);
    for member in ["client_ip", "tenant", "plan", "exempt_line"] {
        assert!(explained.get(member).is_some(), "{member} is missing in {explained}");
    }
}

#[test]
fn the_secret_changes_the_hash_and_never_appears() {
    let shell = Shell::new();
    let line = ["rules", "explain", "rules.yaml", "--action", "login", "--attr", "account=a7", "--json"];
    let hash = |secret: &str| {
        let output = RunOutput::from(shell.command().args(line).env("TIDEGATE_SECRET", secret).output().unwrap());
        assert!(!output.out.contains(secret), "{output:?}");
        output.json()["rules"][1]["subject_hash"].to_string()
    };
    assert_ne!(hash("hunter2"), hash("hunter3"));
    assert_eq!(hash("hunter2"), hash("hunter2"));
    let help = shell.command().args(["rules", "explain", "--help"]).env("TIDEGATE_SECRET", "hunter2").output().unwrap();
    assert!(!RunOutput::from(help).out.contains("hunter2"));
}

#[test]
fn a_tenant_that_nobody_authenticates_is_shown_as_ignored() {
    let shell = Shell::new();
    shell.write("forged.yaml", RULES.replace("authenticated: [x-api-key, x-tenant-id]", "authenticated: [x-api-key]"));
    let explain = |file: &str, more: &str| {
        shell.run(&format!("rules explain {file} -X POST --path /rides -H x-api-key:k1 -H x-tenant-id:acme {more}"))
    };
    let (forged, verified) = (explain("forged.yaml", ""), explain("rules.yaml", ""));
    let ignored = "\ntenant          acme, which nobody authenticates: it separates no subjects and selects no plan\nplan            none\n";
    assert!(forged.out.contains(ignored), "{forged:?}");
    assert!(verified.out.contains("\ntenant          acme\nplan            pro\n"), "{verified:?}");
    assert_eq!(explain("forged.yaml", "--json").json()["tenant_is_ignored"], true);
    assert_eq!(explain("rules.yaml", "--json").json()["tenant_is_ignored"], serde_json::Value::Null);
}

#[test]
fn control_characters_in_values_are_escaped() {
    let shell = Shell::new();
    let mut command = shell.command();
    command.args(["rules", "explain", "rules.yaml", "--action", "login", "--attr", "account=x\u{1b}[2jx\u{202e}"]);
    let output = RunOutput::from(command.output().unwrap());
    assert!(output.out.contains("attr:account = x\\u{1b}[2jx\\u{202e}\n"), "{output:?}");
}

#[test]
fn the_output_shows_what_happens_while_the_store_fails() {
    let shell = Shell::new();
    shell.write(
        "failing.yaml",
        "version: 1\nrules:\n- { id: a, per: [ip], token_bucket: { capacity: 3, refill: 1/s }, \
         on_failure: { POST /pay: closed, POST: { static: 600/m }, default: local } }\n",
    );
    let out = |line: &str| shell.run(&format!("rules explain failing.yaml --ip 203.0.113.9 {line}")).out;
    assert!(out("-X GET --path /").contains("\n    on failure local\n"));
    assert!(out("-X POST --path /pay").contains("\n    on failure closed\n"));
    let capped = "    on failure static, token bucket: 600 at once, then 10/s, for all subjects together\n";
    assert!(out("-X POST --path /").contains(capped), "{}", out("-X POST --path /"));
    assert!(out("").contains("\n    anonymous  the subject is not authenticated\n"), "{}", out(""));
    let json = shell.run("rules explain failing.yaml -X POST --path / --json").json();
    let rule = &json["rules"][0];
    assert_eq!((&rule["on_failure"], &rule["anonymous"]), (&"static".into(), &true.into()));
    assert_eq!(rule["emergency"], "token bucket: 600 at once, then 10/s");
}

#[test]
fn a_claim_is_shown_with_who_must_have_verified_it() {
    let shell = Shell::new();
    shell.write(
        "claims.yaml",
        "version: 1\nidentify: { user: claim:sub, tenant: claim:org, token: x-token, authenticated: x-token }\nrules:\n\
         - { id: a, per: [user, claim:jti], token_bucket: { capacity: 3, refill: 1/s } }\n\
         - { id: b, match: { path: /b }, per: [claim:other], token_bucket: { capacity: 3, refill: 1/s } }\n",
    );
    // {"sub":"ann","org":"acme","jti":"t1"}
    let token = "-H x-token:e30.eyJzdWIiOiJhbm4iLCJvcmciOiJhY21lIiwianRpIjoidDEifQ.x";
    let out = shell.run(&format!("rules explain claims.yaml {token}")).out;
    let verified = "the file states that x-token is verified in front of Tidegate, which does not verify it";
    for line in [
        format!("token           tenant from claim:org: {verified}"),
        format!("token           user from claim:sub: {verified}"),
        format!("token           claim:jti: {verified}"),
    ] {
        assert!(out.lines().any(|found| found == line), "{line}:\n{out}");
    }
    assert!(!out.contains("claim:other:"), "rule b does not apply: {out}");
    let front = "stated as verified in front";
    let counts = format!(
        "counts by  tenant = acme (from claim:org, {front}), user = ann (from claim:sub, {front}), claim:jti = t1 (from claim:jti, {front})\n"
    );
    assert!(out.contains(&counts), "{out}");
    let json = shell.run(&format!("rules explain claims.yaml --json {token}")).json();
    let claim = &json["claims"][1];
    assert_eq!((&claim["identity"], &claim["claim"]), (&"user".into(), &"claim:sub".into()), "{json}");
    assert_eq!((&claim["header"], &claim["verified"]), (&"x-token".into(), &"in front".into()), "{json}");

    // A value that the application sets is not a claim.
    let out = shell.run(&format!("rules explain claims.yaml {token} --attr user=bob --tenant acme")).out;
    assert!(out.contains("tenant = acme, user = bob, claim:jti = t1 (from") && !out.contains("claim:sub"), "{out}");
    assert_eq!(shell.run("rules explain claims.yaml --json").json()["claims"], serde_json::json!([]));
}

#[test]
fn a_concurrency_limit_denies_until_one_of_the_requests_ends() {
    let shell = Shell::with_examples();
    let command = "rules explain examples/exports.yaml -X POST --path /exports -H x-tenant-id:acme --attr rows=1000";
    let output = shell.run(command).out;
    assert!(
        output.contains("limit      concurrency: 3 at the same time, each for 30s without a renewal\n"),
        "{output}"
    );
    assert!(
        output.ends_with("\n  now  3 pass, the 4th is denied by export-active, until one of them ends\n"),
        "{output}"
    );
    let timeline = &shell.run(&format!("{command} --json")).json()["timeline"];
    assert_eq!((timeline.as_array().map(Vec::len), &timeline[0]["until_release"]), (Some(1), &true.into()));
}

#[test]
fn the_format_of_errors_is_shown_unless_it_is_the_stable_json() {
    let shell = Shell::with_examples();
    shell.write("llm.yaml", include_str!("../../../examples/llm-gateway/rules.yaml"));
    let line = "rules explain llm.yaml -X POST --path /v1/messages -H x-api-key:k1";
    let text = shell.run(line).out;
    assert_eq!(text.matches("    errors     openai\n").count(), 2, "{text}");
    assert_eq!(shell.run(&format!("{line} --json")).json()["rules"][0]["error_format"], "openai");
    let other = "rules explain examples/plan-quotas.yaml --path /api/rides -H x-tenant-id:acme";
    assert!(!shell.run(other).out.contains("    errors "));
    assert_eq!(shell.run(&format!("{other} --json")).json()["rules"][0]["error_format"], "json");
}
