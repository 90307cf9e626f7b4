//! `tidegate rules validate`.

use std::io::Write;
use std::process::Stdio;

use crate::shell::{RULES, Ran, Shell};

const WRONG: &str = "\
version: 1
ruls: []
rules:
  - id: api
    per: [ip]
    token_bucket: { capacity: many, refill: 10/s }
";

#[test]
fn a_good_file_is_told_in_one_line() {
    let ran = Shell::new().run("rules validate rules.yaml");
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), "rules.yaml: 5 rules, no problems\n", ""));
}

#[test]
fn every_problem_is_shown_at_once_with_a_picture_of_its_place() {
    let shell = Shell::new();
    shell.write("wrong.yaml", WRONG);
    let ran = shell.run("rules validate wrong.yaml rules.yaml");
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
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(1), expected, ""));
}

#[test]
fn warnings_fail_only_where_that_is_asked_for() {
    let shell = Shell::new();
    shell.write("rules.yaml", RULES.replace("127.0.0.0/8", "0.0.0.0/0"));
    let ran = shell.run("rules validate rules.yaml");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("warning[trust-everyone]") && ran.out.ends_with("1 warning in rules.yaml\n"), "{ran:?}");
    assert_eq!(shell.run("rules validate --strict rules.yaml").code, Some(1));
}

#[test]
fn programs_read_problems_with_their_places() {
    let shell = Shell::new();
    shell.write("wrong.yaml", WRONG);
    let ran = shell.run("rules validate --json wrong.yaml rules.yaml");
    let found = ran.json();
    assert_eq!((ran.code, &found["ok"]), (Some(1), &false.into()));
    let [wrong, good] = [&found["files"][0], &found["files"][1]];
    assert_eq!((&wrong["file"], &wrong["errors"], &wrong["rules"]), (&"wrong.yaml".into(), &2.into(), &().into()));
    let problem = &wrong["problems"][0];
    assert_eq!((&problem["line"], &problem["column"]), (&2.into(), &1.into()));
    assert_eq!((&problem["severity"], &problem["code"]), (&"error".into(), &"unknown-field".into()));
    assert_eq!(problem["help"], "did you mean `rules`?");
    assert_eq!((&good["ok"], &good["rules"], &good["checklist"]), (&true.into(), &5.into(), &().into()));
}

#[test]
fn the_checklist_fails_on_what_is_not_met_and_says_what_to_do() {
    let shell = Shell::new();
    let line = "rules validate --production --store redis://cache:6379 rules.yaml";
    let without = shell.run(line);
    assert_eq!(without.code, Some(1), "{without:?}");
    assert!(without.out.contains("✗ keys are versioned and subjects hashed\n"), "{without:?}");
    assert!(without.out.contains("TIDEGATE_SECRET"), "{without:?}");
    let found = shell.run(&format!("{line} --json")).json();
    let unmet = |item: &&serde_json::Value| item["state"] == "unmet";
    let before = found["files"][0]["checklist"].as_array().unwrap().iter().filter(unmet).count();

    let with = shell.command().args(line.split(' ')).arg("--json").env("TIDEGATE_SECRET", "s3cret").output().unwrap();
    let with = Ran::from(with);
    let after = with.json()["files"][0]["checklist"].as_array().unwrap().iter().filter(unmet).count();
    assert_eq!(after + 1, before, "{with:?}");
    assert!(!with.out.contains("s3cret"), "{with:?}");
}

#[test]
fn a_store_that_is_none_is_no_proof() {
    let shell = Shell::new();
    for (store, why) in [
        ("hunter2", "a store is a URL: `memory:`, or one such as `redis://127.0.0.1:6379`"),
        ("redis://", "the address is missing: write one such as `redis://127.0.0.1:6379`"),
        ("valkey://:hunter2@cache", "a Valkey server is written `redis://`, too"),
    ] {
        let ran = shell.run(&format!("rules validate --production --store {store} rules.yaml"));
        let expected = format!("error: --store: {why}\n");
        assert_eq!((ran.code, ran.out.as_str(), ran.err), (Some(2), "", expected), "{store}");
    }
    let proven = |store: &str| {
        let ran = shell.run(&format!("rules validate --production --store {store} --json rules.yaml"));
        let items = ran.json()["files"][0]["checklist"].clone();
        let item = items.as_array().unwrap().iter().find(|item| item["name"] == "concurrency is proven").cloned();
        item.unwrap()["state"].clone()
    };
    assert_eq!((proven("redis://cache"), proven("memory:")), ("met".into(), "unknown".into()));
}

/// A report keeps the first hundred problems, so it must not say that these are all.
#[test]
fn of_more_problems_than_are_told_the_number_is_said_to_be_the_least() {
    let shell = Shell::new();
    let unknown = |count: usize| (0..count).map(|number| format!("x{number}: 1")).collect::<Vec<_>>().join("\n");
    for (count, summary, cut) in [(99, "\n99 errors in", false), (150, "\nat least 100 errors in", true)] {
        shell.write("wrong.yaml", format!("version: 1\nrules: []\n{}", unknown(count)));
        let ran = shell.run("rules validate wrong.yaml");
        assert!(ran.code == Some(1) && ran.out.ends_with(&format!("{summary} wrong.yaml\n")), "{ran:?}");
        assert_eq!(shell.run("rules validate --json wrong.yaml").json()["files"][0]["cut"], cut);
    }
}

#[test]
fn a_dash_is_the_standard_input() {
    let shell = Shell::new();
    let mut command = shell.command();
    command.args(["rules", "validate", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(WRONG.as_bytes()).unwrap();
    let ran = Ran::from(process.wait_with_output().unwrap());
    assert!(ran.out.ends_with("2 errors in standard input\n"), "{ran:?}");
    assert_eq!(ran.code, Some(1));
}

#[test]
fn colour_is_for_terminals_and_those_who_ask() {
    let shell = Shell::new();
    assert!(!shell.run("rules validate rules.yaml").out.contains('\x1b'));
    assert!(shell.run("rules validate rules.yaml --color always").out.contains("\x1b[1;32mno problems\x1b[0m"));
    assert!(!shell.run("--color never rules validate rules.yaml").out.contains('\x1b'));
    assert!(shell.run("--color always --help").out.contains('\x1b'), "what clap writes is no exception");
    assert!(shell.run("rules explain --color=always").err.contains('\x1b'));
}
