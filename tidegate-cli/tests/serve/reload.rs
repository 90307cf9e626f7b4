//! Reloading: changed files in every way in which files change, wrong ones, and SIGHUP.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::serve::{Running, ask, ask_with};

fn rules(capacity: u32) -> String {
    format!(
        "version: 1\nrules:\n- {{ id: all, per: [], token_bucket: {{ capacity: {capacity}, refill: 1/h }}, on_failure: share }}\n"
    )
}

/// A file with this many rules, each with this limit.
fn many_rules(count: usize, limit: usize) -> String {
    let rule = |index| {
        format!(
            "- {{ id: rule-{index}, match: {{ path: /{index} }}, per: [ip], fixed_window: {{ limit: {limit}, window: 1m }} }}\n"
        )
    };
    format!("version: 1\nrules:\n{}", (0..count).map(rule).collect::<String>())
}

fn ready(server: &Running) -> Value {
    let (status, body) = ask(&server.http, "GET", "/readyz", "");
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}

/// A folder with a rule file, and a server with it.
fn start(text: &str) -> (TempDir, Running) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, text).unwrap();
    let server = Running::with_rules(&path);
    (folder, server)
}

/// Writes a file beside `path` and renames it into place.
fn replace(path: &Path, text: &str) {
    let new = path.with_file_name("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

fn reloads(server: &Running, outcome: &str) -> u64 {
    let (_, page) = ask(&server.admin, "GET", "/metrics", "");
    let name = format!("rate_limit_rule_reloads_total{{outcome=\"{outcome}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&*name)).map_or(0, |count| count.parse().unwrap())
}

#[test]
fn a_changed_rule_file_is_loaded_and_one_with_errors_is_not() {
    let (folder, mut server) = start(&rules(1));
    let path = folder.path().join("rules.yaml");
    assert_eq!(
        (server.check("{}")["allowed"].clone(), server.check("{}")["allowed"].clone()),
        (json!(true), json!(false))
    );

    replace(&path, &rules(2));
    server.wait_for_log("rules reloaded");
    assert_eq!(
        server.check("{}")["allowed"],
        json!(true),
        "raising a limit helps at once, and what was spent stays spent"
    );
    assert_eq!(server.check("{}")["allowed"], json!(false));

    let version = ready(&server)["rules"]["version"].clone();
    replace(&path, &rules(3).replace("capacity", "capacty"));
    server.wait_for_log("rules not reloaded");
    let ready = ready(&server);
    assert_eq!(ready["rules"]["version"], version);
    assert!(ready["rules"]["refused"].as_str().unwrap().contains("did you mean `capacity`?"));
    assert_eq!(server.check("{}")["limit"], json!(2));
}

#[test]
fn a_hangup_signal_reloads_the_rules() {
    let mut server = Running::start(&[]);
    server.signal("HUP");
    server.wait_for_log("rules reloaded version=2");
    assert_eq!(ready(&server)["rules"]["version"], json!(2));
}

/// A prefix of a list is a valid file: this one would limit nothing but the first rule for a second.
#[test]
fn a_half_written_file_is_never_loaded() {
    let (folder, mut server) = start(&many_rules(4, 5));
    let script = "( head -n 3 good; sleep 1; tail -n +4 good ) > rules.yaml";
    for (version, count) in [(2, 5), (3, 6)] {
        fs::write(folder.path().join("good"), many_rules(count, 5)).unwrap();
        assert!(Command::new("sh").args(["-c", script]).current_dir(folder.path()).status().unwrap().success());
        let line = server.wait_for_log("rules reloaded");
        assert!(line.contains(&format!("version={version} rules={count} added=\"rule-{}\"", count - 1)), "{line}");
    }
    assert_eq!((reloads(&server, "ok"), reloads(&server, "refused")), (2, 0));
}

/// `cp` empties the file before it writes to it, in several steps.
#[test]
fn a_file_that_is_copied_over_is_loaded_once_and_never_refused() {
    let (folder, mut server) = start(&many_rules(2000, 1));
    for save in 2..8 {
        fs::write(folder.path().join("good"), many_rules(2000, save)).unwrap();
        assert!(Command::new("cp").args(["good", "rules.yaml"]).current_dir(folder.path()).status().unwrap().success());
        let line = server.wait_for_log("rules ");
        assert!(line.contains(&format!("rules reloaded version={save} rules=2000 changed=\"rule-0, ")), "{line}");
    }
    assert_eq!((reloads(&server, "ok"), reloads(&server, "refused")), (6, 0));
}

/// As the kubelet updates a volume: a new folder, then one rename of the link that the name of the file leads through.
#[test]
fn a_kubernetes_config_map_is_loaded_whenever_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let write = |version: u32| {
        fs::create_dir(at(&format!("..{version}"))).unwrap();
        fs::write(at(&format!("..{version}/rules.yaml")), rules(version)).unwrap();
        symlink(format!("..{version}"), at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    write(1);
    symlink("..data/rules.yaml", at("rules.yaml")).unwrap();
    let mut server = Running::with_rules(&at("rules.yaml"));
    for version in 2..5 {
        write(version);
        fs::remove_dir_all(at(&format!("..{}", version - 1))).unwrap();
        server.wait_for_log(&format!("rules reloaded version={version}"));
        assert_eq!(server.check("{}")["limit"], json!(version));
    }
    assert_eq!((reloads(&server, "ok"), reloads(&server, "refused")), (3, 0));
}

#[test]
fn a_file_that_stays_empty_or_without_a_version_is_refused() {
    let (folder, mut server) = start(&rules(1));
    let path = folder.path().join("rules.yaml");
    for wrong in ["", "rules: []\n"] {
        fs::write(&path, wrong).unwrap();
        server.wait_for_log("rules not reloaded, the old version stays");
        assert_eq!(server.check("{}")["limit"], json!(1), "{wrong:?}");
    }
    assert_eq!((reloads(&server, "ok"), reloads(&server, "refused")), (0, 2));
    // The file as it was is loaded again, which clears the error.
    fs::write(&path, rules(1)).unwrap();
    server.wait_for_log("rules reloaded");
    assert_eq!(ready(&server)["rules"]["refused"], Value::Null);
}

#[test]
fn a_hangup_signal_reads_a_file_at_once_also_while_it_is_open() {
    let (folder, mut server) = start(&rules(1));
    let path = folder.path().join("rules.yaml");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(rules(7).as_bytes()).unwrap();
    server.signal("HUP");
    server.wait_for_log("rules reloaded version=2");
    assert_eq!(server.check("{}")["limit"], json!(7));
}

#[test]
fn a_reload_names_the_rules_that_changed_and_warns_of_those_that_are_gone() {
    let rule =
        |id: &str, limit: u32| format!("- {{ id: {id}, per: [ip], fixed_window: {{ limit: {limit}, window: 1m }} }}\n");
    let file = |user: &str, rules: &[String]| {
        format!("version: 1\nidentify: {{ user: header:{user} }}\nrules:\n{}", rules.concat())
    };
    let (folder, mut server) = start(&file("x-user", &[rule("a", 1), rule("b", 1), rule("c", 1)]));
    replace(&folder.path().join("rules.yaml"), &file("x-account", &[rule("d", 1), rule("c", 2), rule("a", 1)]));
    let line = server.wait_for_log("rules reloaded");
    assert!(line.contains("added=\"d\" changed=\"c\" removed=\"b\" settings=\"identify\""), "{line}");
    let line = server.wait_for_log("no longer has");
    assert!(line.contains("WARN") && line.contains("removed=\"b\""), "{line}");
}

/// As at the start.
#[test]
fn a_reload_logs_the_warnings_of_the_new_file() {
    let (folder, mut server) = start(&rules(1));
    let path = folder.path().join("rules.yaml");
    replace(&path, &rules(2).replace("on_failure: share", "on_failure: open"));
    server.wait_for_log("warning[fails-open]");
}

#[test]
fn a_changed_token_file_is_loaded_and_the_old_token_permits_nothing() {
    const OLD: &str = "old-token-0123456789";
    const NEW: &str = "new-token-0123456789";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, OLD).unwrap();
    let mut server = Running::start(&["--admin-read-token-file", path.to_str().unwrap()]);
    let status = |server: &Running, token: &str| {
        ask_with(&server.admin, "GET", "/v1/status", &[&format!("authorization: Bearer {token}")], "").0
    };
    assert_eq!((status(&server, OLD), status(&server, NEW)), (200, 401));
    fs::write(&path, NEW).unwrap();
    server.wait_for_log("admin tokens reloaded");
    assert_eq!((status(&server, OLD), status(&server, NEW)), (401, 200));
    // A file without a token opens nothing.
    fs::write(&path, "").unwrap();
    let line = server.wait_for_log("admin tokens not reloaded, the old version stays");
    assert!(!line.contains(NEW), "{line}");
    assert_eq!((status(&server, ""), status(&server, NEW)), (401, 200));
}
