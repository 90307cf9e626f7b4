//! `tidegate rules explain`.

use crate::shell::{Ran, Shell};

#[test]
fn a_page_says_which_rules_apply_whom_they_count_and_what_comes_next() {
    let ran = Shell::new().run("rules explain rules.yaml -X POST --path /rides?x=1 -H x-api-key:k1 --ip 203.0.113.9");
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
    on failure open

Rules that do not apply
  login      there is no action, the rule wants login
  trial      path is /rides, the rule wants /rides/*
  locations  path is /rides, the rule wants /locations
  old        path is /rides, the rule wants /old

If somebody new sent this request again and again
  now  3 pass, the 4th is refused by rides, retry after 1d
  +1d  1 passes, the 2nd is refused by rides, retry after 1d
  +2d  1 passes, the 2nd is refused by rides, retry after 1d
  +5d  3 pass, the 4th is refused by rides, retry after 1d
";
    let told = |name: &str| ran.out.split(name).nth(1).and_then(|rest| rest.split('\n').next()).unwrap().trim();
    let (subject, key) = (told("subject "), told("key   "));
    assert!(subject.len() == 32 && key.starts_with("tg1{"), "{ran:?}");
    assert_eq!(ran.out, expected.replace("SUBJECT", subject).replace("KEY", key));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn a_spoofed_header_moves_nobody() {
    let shell = Shell::new();
    let client = |line: &str| {
        let ran = shell.run(&format!("rules explain rules.yaml -X POST --path /rides --json {line}"));
        ran.json()["client_ip"].as_str().unwrap_or_else(|| panic!("{ran:?}")).to_owned()
    };
    assert_eq!(client("--ip 203.0.113.9 -H x-forwarded-for:198.51.100.1"), "203.0.113.9");
    assert_eq!(client("--ip 127.0.0.1 -H x-forwarded-for:198.51.100.1"), "198.51.100.1");
}

#[test]
fn exempt_disabled_and_unlimited_requests_are_told_apart() {
    let shell = Shell::new();
    let exempt = shell.run("rules explain rules.yaml --path /health").out;
    assert!(exempt.contains("exempt          by the entry in line 9\n"), "{exempt}");
    assert!(exempt.contains("No rule applies: the request passes\n"), "{exempt}");
    let disabled = shell.run("rules explain rules.yaml --path /old").out;
    assert!(disabled.contains("  old        disabled\n"), "{disabled}");
    let shadow = shell.run("rules explain rules.yaml --path /rides/7").out;
    assert!(shadow.contains("trial  (shadow: it counts and reports, and refuses nothing)"), "{shadow}");
    assert!(shadow.contains("counts by  nothing: everybody shares it"), "{shadow}");
    assert!(shadow.contains("now  100000 pass, and more would\n"), "{shadow}");
}

#[test]
fn plans_delays_and_missing_subjects_are_told() {
    let shell = Shell::new();
    let pro = shell.run("rules explain rules.yaml -X POST --path /rides -H x-tenant-id:acme").out;
    assert!(pro.contains("tenant          acme\nplan            pro\n"), "{pro}");
    assert!(pro.contains("limit      token bucket: 100 at once, then 50/s (plan pro)\n"), "{pro}");
    let lacks = "counts by  client, which the request lacks: all who lack it are counted as one\n";
    assert!(pro.contains(lacks), "{pro}");
    let held = shell.run("rules explain rules.yaml --path /locations").out;
    assert!(
        held.contains("  2 pass, the last held for 20s, the 3rd is refused by locations, retry after 20s\n"),
        "{held}"
    );
    let free = shell.run("rules explain rules.yaml --action login --attr account=a7 --cost 0").out;
    assert!(free.contains("cost       0\n") && !free.contains("again and again"), "{free}");
    let costly = shell.run("rules explain rules.yaml --action login --attr account=a7 --cost 3").out;
    assert!(costly.contains("now  none passes, login refuses it, for good: no waiting helps\n"), "{costly}");
}

#[test]
fn programs_read_the_same() {
    let ran = Shell::new().run("rules explain rules.yaml --action login --attr account=a7 --json");
    let explained = ran.json();
    assert_eq!((ran.code, ran.out.lines().count()), (Some(0), 1));
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
fn the_secret_decides_the_hash_and_is_never_shown() {
    let shell = Shell::new();
    let line = ["rules", "explain", "rules.yaml", "--action", "login", "--attr", "account=a7", "--json"];
    let hash = |secret: &str| {
        let ran = Ran::from(shell.command().args(line).env("TIDEGATE_SECRET", secret).output().unwrap());
        assert!(!ran.out.contains(secret), "{ran:?}");
        ran.json()["rules"][1]["subject_hash"].to_string()
    };
    assert_ne!(hash("hunter2"), hash("hunter3"));
    assert_eq!(hash("hunter2"), hash("hunter2"));
    let help = shell.command().args(["rules", "explain", "--help"]).env("TIDEGATE_SECRET", "hunter2").output().unwrap();
    assert!(!Ran::from(help).out.contains("hunter2"));
}

#[test]
fn what_a_terminal_would_obey_is_shown_and_not_obeyed() {
    let shell = Shell::new();
    let mut command = shell.command();
    command.args(["rules", "explain", "rules.yaml", "--action", "login", "--attr", "account=\u{1b}[2Jx\u{202e}"]);
    let ran = Ran::from(command.output().unwrap());
    assert!(ran.out.contains("attr:account = \\u{1b}[2Jx\\u{202e}\n"), "{ran:?}");
}

#[test]
fn it_says_what_happens_to_this_request_while_the_store_fails() {
    let shell = Shell::new();
    shell.write(
        "failing.yaml",
        "version: 1\nrules:\n- { id: a, per: [ip], token_bucket: { capacity: 3, refill: 1/s }, \
         on_failure: { POST /pay: closed, POST: { static: 600/m }, default: local } }\n",
    );
    let out = |line: &str| shell.run(&format!("rules explain failing.yaml --ip 203.0.113.9 {line}")).out;
    assert!(out("-X GET --path /").contains("\n    on failure local\n"));
    assert!(out("-X POST --path /pay").contains("\n    on failure closed\n"));
    let capped = "    on failure static, token bucket: 600 at once, then 10/s, of everybody together\n";
    assert!(out("-X POST --path /").contains(capped), "{}", out("-X POST --path /"));
    assert!(out("").contains("\n    anonymous  nobody vouches for this subject\n"), "{}", out(""));
    let told = shell.run("rules explain failing.yaml -X POST --path / --json").json();
    let rule = &told["rules"][0];
    assert_eq!((&rule["on_failure"], &rule["anonymous"]), (&"static".into(), &true.into()));
    assert_eq!(rule["emergency"], "token bucket: 600 at once, then 10/s");
}
