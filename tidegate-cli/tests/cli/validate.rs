//! `tidegate rules validate`.

use std::io::Write;
use std::process::Stdio;

use crate::cli::shell::{RULES, RunOutput, Shell};

const WRONG: &str = "\
version: 1
ruls: []
rules:
  - id: api
    per: [ip]
    token_bucket: { capacity: many, refill: 10/s }
";

#[test]
fn a_valid_file_is_summarized_in_one_line() {
    let output = Shell::new().run("rules validate rules.yaml");
    assert_eq!(
        (output.code, output.out.as_str(), output.err.as_str()),
        (Some(0), "rules.yaml: 5 rules, no problems\n", "")
    );
}

#[test]
fn all_problems_are_shown_at_once_with_an_excerpt() {
    let shell = Shell::new();
    shell.write("wrong.yaml", WRONG);
    let output = shell.run("rules validate wrong.yaml rules.yaml");
    let expected = "\
error[unknown-field]: unknown field `ruls`
 --> wrong.yaml:2:1
  |
2 | ruls: []
  | ^^^^
  |
  = help: did you mean `rules`?

error[type]: expected a whole number, found text
 --> wrong.yaml:6:31
  |
6 |     token_bucket: { capacity: many, refill: 10/s }
  |                               ^^^^

2 errors in wrong.yaml
rules.yaml: 5 rules, no problems
";
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (Some(1), expected, ""));
}

#[test]
fn warnings_are_errors_only_with_strict() {
    let shell = Shell::new();
    shell.write("rules.yaml", RULES.replace("127.0.0.0/8", "0.0.0.0/0"));
    let output = shell.run("rules validate rules.yaml");
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(
        output.out.contains("warning[trust-everyone]") && output.out.ends_with("1 warning in rules.yaml\n"),
        "{output:?}"
    );
    assert_eq!(shell.run("rules validate --strict rules.yaml").code, Some(1));
}

#[test]
fn json_output_has_problems_with_their_position() {
    let shell = Shell::new();
    shell.write("wrong.yaml", WRONG);
    let output = shell.run("rules validate --json wrong.yaml rules.yaml");
    let json = output.json();
    assert_eq!((output.code, &json["ok"]), (Some(1), &false.into()));
    let [wrong, good] = [&json["files"][0], &json["files"][1]];
    assert_eq!((&wrong["file"], &wrong["errors"], &wrong["rules"]), (&"wrong.yaml".into(), &2.into(), &().into()));
    let problem = &wrong["problems"][0];
    assert_eq!((&problem["line"], &problem["column"]), (&2.into(), &1.into()));
    assert_eq!((&problem["severity"], &problem["code"]), (&"error".into(), &"unknown-field".into()));
    assert_eq!(problem["help"], "did you mean `rules`?");
    assert_eq!((&good["ok"], &good["rules"], &good["checklist"]), (&true.into(), &5.into(), &().into()));
}

#[test]
fn unmet_items_of_the_checklist_cause_exit_code_1_with_advice() {
    let shell = Shell::new();
    let line = "rules validate --production --store redis://cache:6379 rules.yaml";
    let without_secret = shell.run(line);
    assert_eq!(without_secret.code, Some(1), "{without_secret:?}");
    assert!(without_secret.out.contains("✗ keys are versioned and subjects hashed\n"), "{without_secret:?}");
    assert!(without_secret.out.contains("TIDEGATE_SECRET"), "{without_secret:?}");
    let json = shell.run(&format!("{line} --json")).json();
    let unmet = |item: &&serde_json::Value| item["state"] == "unmet";
    let before = json["files"][0]["checklist"].as_array().unwrap().iter().filter(unmet).count();

    let with_secret =
        shell.command().args(line.split(' ')).arg("--json").env("TIDEGATE_SECRET", "s3cret").output().unwrap();
    let with_secret = RunOutput::from(with_secret);
    let after = with_secret.json()["files"][0]["checklist"].as_array().unwrap().iter().filter(unmet).count();
    assert_eq!(after + 1, before, "{with_secret:?}");
    assert!(!with_secret.out.contains("s3cret"), "{with_secret:?}");
}

#[test]
fn an_invalid_store_url_is_rejected_and_memory_is_not_shared() {
    let shell = Shell::new();
    for (store, reason) in [
        ("hunter2", "a store is a URL: `memory:`, or one such as `redis://127.0.0.1:6379`"),
        ("redis://", "the address is missing: write one such as `redis://127.0.0.1:6379`"),
        ("valkey://:hunter2@cache", "a Valkey server is written `redis://`, too"),
    ] {
        let output = shell.run(&format!("rules validate --production --store {store} rules.yaml"));
        let expected = format!("error: --store: {reason}\n");
        assert_eq!((output.code, output.out.as_str(), output.err), (Some(2), "", expected), "{store}");
    }
    let state = |store: &str| {
        let output = shell.run(&format!("rules validate --production --store {store} --json rules.yaml"));
        let items = output.json()["files"][0]["checklist"].clone();
        let item = items.as_array().unwrap().iter().find(|item| item["name"] == "instances share one count").cloned();
        item.unwrap()["state"].clone()
    };
    assert_eq!((state("redis://cache"), state("memory:")), ("met".into(), "unknown".into()));
}

/// A report keeps the first hundred problems, so the summary must not look complete.
#[test]
fn an_incomplete_report_counts_at_least_that_many_problems() {
    let shell = Shell::new();
    let unknown = |count: usize| (0..count).map(|number| format!("x{number}: 1")).collect::<Vec<_>>().join("\n");
    for (count, summary, cut) in [(99, "\n99 errors in", false), (150, "\nat least 100 errors in", true)] {
        shell.write("wrong.yaml", format!("version: 1\nrules: []\n{}", unknown(count)));
        let output = shell.run("rules validate wrong.yaml");
        assert!(output.code == Some(1) && output.out.ends_with(&format!("{summary} wrong.yaml\n")), "{output:?}");
        assert_eq!(shell.run("rules validate --json wrong.yaml").json()["files"][0]["cut"], cut);
    }
}

#[test]
fn a_dash_reads_standard_input() {
    let shell = Shell::new();
    let mut command = shell.command();
    command.args(["rules", "validate", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(WRONG.as_bytes()).unwrap();
    let output = RunOutput::from(process.wait_with_output().unwrap());
    assert!(output.out.ends_with("2 errors in standard input\n"), "{output:?}");
    assert_eq!(output.code, Some(1));
}

#[test]
fn color_is_used_on_terminals_or_on_request() {
    let shell = Shell::new();
    assert!(!shell.run("rules validate rules.yaml").out.contains('\x1b'));
    assert!(shell.run("rules validate rules.yaml --color always").out.contains("\x1b[1;32mno problems\x1b[0m"));
    assert!(!shell.run("--color never rules validate rules.yaml").out.contains('\x1b'));
    assert!(shell.run("--color always --help").out.contains('\x1b'), "also in help");
    assert!(shell.run("rules explain --color=always").err.contains('\x1b'));
}

const DOORS: &str = "\
version: 1
identify: { trusted_proxies: [10.0.0.0/8] }
rules:
  - id: login
    match: { path: /login }
    per: [body:email, ip]
    sliding_log: { limit: 5, window: 15m }
    on_failure: share
    security: true
";

#[test]
fn what_a_front_door_never_has_is_a_warning() {
    let shell = Shell::new();
    shell.write("doors.yaml", DOORS);
    let output = shell.run("rules validate --door gateway --door forward-auth doors.yaml");
    let expected = "\
warning[unavailable-at-door]: rule `login` counts by `body:email`, which forward-auth never has: requests there are counted without it
 --> doors.yaml:6:11
  |
6 |     per: [body:email, ip]
  |           ^^^^^^^^^^
  |
  = help: limit the route at the gateway, the tower layer or the check API, which have the body; or let the proxy send the value as a header

1 warning in doors.yaml
";
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (Some(0), expected, ""));
    assert_eq!(shell.run("rules validate --door forward-auth --strict doors.yaml").code, Some(1));
    assert_eq!(shell.run("rules validate --door gateway --strict doors.yaml").code, Some(0));
    let json = shell.run("rules validate --door envoy --strict --json doors.yaml").json();
    assert_eq!((&json["ok"], &json["files"][0]["notes"]), (&true.into(), &1.into()), "notes are no failures: {json}");
    let message = json["files"][0]["problems"][0]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "for rule `login` at Envoy's service, a descriptor must have `body`, `remote_address`, `:path`"
    );
}

/// Without `--door` nobody has said which front ends are used.
#[test]
fn rules_that_never_apply_at_a_front_end_are_named_without_being_asked_for() {
    let shell = Shell::new();
    let rules = |login: &str| {
        format!(
            "version: 1\nrules:\n  - id: login\n    match: {{ action: login }}\n{login}    per: [attr:account]\n    sliding_log: {{ limit: 5, window: 10m }}\n    \
             on_failure: share\n    security: true\n  - {{ id: job, match: {{ action: job }}, per: [ip], token_bucket: {{ capacity: 9, refill: 1/s }} }}\n"
        )
    };
    shell.write("rules.yaml", rules(""));
    let output = shell.run("rules validate rules.yaml");
    let expected = "\
warning[never-applies]: rule `login` matches by `action`, which the gateway and forward-auth never have: it never applies there, and a server with a gateway refuses the file
 --> rules.yaml:4:14
  |
4 |     match: { action: login }
  |              ^^^^^^
  |
  = help: match a path, such as `match: { method: POST, path: /login }`; if the rule is meant for callers that send actions, say so: `front_ends: [check]`

note[never-applies]: rule `job` matches by `action`, which the gateway and forward-auth never have: it never applies there
";
    assert!(output.code == Some(0) && output.out.starts_with(expected), "{output:?}");
    assert!(output.out.ends_with("1 warning, 1 note in rules.yaml\n"), "{output:?}");
    assert_eq!(shell.run("rules validate --strict rules.yaml").code, Some(1));
    let gateway = shell.run("rules validate --door gateway --json rules.yaml");
    let json = gateway.json();
    let counts = ["errors", "warnings"].map(|count| json["files"][0][count].clone());
    assert_eq!((gateway.code, &json["ok"], counts), (Some(1), &false.into(), [1.into(), 1.into()]), "{json}");
    shell.write("rules.yaml", rules("    front_ends: [check]\n"));
    let output = shell.run("rules validate --strict rules.yaml");
    assert!(output.code == Some(0) && output.out.ends_with("\n1 note in rules.yaml\n"), "{output:?}");
    assert_eq!(shell.run("rules validate --door gateway rules.yaml").code, Some(0));
}

#[test]
fn an_unknown_front_door_is_refused_with_the_known_ones() {
    let output = Shell::new().run("rules validate --door proxy rules.yaml");
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.err.contains("write gateway, forward-auth, check, tower, envoy or library"), "{output:?}");
}

/// Whoever writes claims that nobody verifies must not find it out from a log.
#[test]
fn a_file_with_unverified_claims_cannot_be_used_and_says_what_a_client_could_do() {
    let shell = Shell::new();
    let file = RULES.replace("tenant: header:x-tenant-id", "tenant: claim:org");
    shell.write("claims.yaml", &file);
    let output = shell.run("rules validate claims.yaml");
    assert_eq!(output.code, Some(1), "{output:?}");
    for text in [
        "error[unverified-claim]",
        "forge every claim",
        "another customer",
        "never verifies",
        "`authenticated: [authorization]`",
    ] {
        assert!(output.out.contains(text), "{text}: {output:?}");
    }
    shell.write("claims.yaml", file.replace("authenticated: [", "authenticated: [authorization, "));
    assert_eq!(shell.run("rules validate claims.yaml").code, Some(0));
}
