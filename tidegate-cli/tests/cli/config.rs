//! Flags in a file.

use std::fs;
use std::process::{Command, Output};

const RULES: &str =
    "version: 1\nrules: [{ id: a, per: [], fixed_window: { limit: 1, window: 1h }, on_failure: open }]\n";

/// `tidegate check` with this config file, these arguments and this variable.
fn check(config: &str, arguments: &[&str], variable: Option<(&str, &str)>) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    fs::write(folder.path().join("tidegate.yaml"), config).unwrap();
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .current_dir(&folder)
        .env("TIDEGATE_CONFIG", "tidegate.yaml")
        .envs(variable)
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn what_the_file_says_counts_where_neither_flag_nor_variable_does() {
    let decided = |config: &str, arguments: &[&str], variable| check(config, arguments, variable).status.code();
    assert_eq!(decided("rules: rules.yaml\n", &["check"], None), Some(0));
    assert_eq!(decided("rules: other.yaml\n", &["check"], None), Some(2));
    assert_eq!(decided("rules: other.yaml\n", &["check", "--rules", "rules.yaml"], None), Some(0));
    assert_eq!(decided("rules: other.yaml\n", &["check"], Some(("TIDEGATE_RULES", "rules.yaml"))), Some(0));
    let both = decided("", &["check", "--rules", "rules.yaml"], Some(("TIDEGATE_RULES", "other.yaml")));
    assert_eq!(both, Some(0), "a flag goes before its variable");
    assert_eq!(decided("rules: rules.yaml\nhttp: 127.0.0.1:0\n", &["check"], None), Some(0), "that of another command");
    let flag = ["check", "--config", "nowhere.yaml"];
    assert_eq!(decided("rules: rules.yaml\n", &flag, None), Some(2), "the flag goes before the variable here, too");
}

#[test]
fn what_is_wrong_is_told_with_its_place_all_at_once_and_without_a_value() {
    for (config, expected) in [
        (
            "rulse: rules.yaml\nhttp: hunter2\ndrain: [1]\nenvoy-strict: hunter2\ngrpc:\n",
            "tidegate.yaml:1:1: there is no flag --rulse; did you mean `rules`?\n\
             tidegate.yaml:2:7: --http does not take this value: invalid socket address syntax\n\
             tidegate.yaml:3:8: --drain takes a single value, not a list\n\
             tidegate.yaml:4:15: --envoy-strict is true or false\n",
        ),
        ("- hunter2\n", "tidegate.yaml:1:3: flags are wanted here, such as `http: 127.0.0.1:8080`\n"),
        ("secret: \"hunter2\n", "tidegate.yaml:"),
        ("config: other.yaml\n", "tidegate.yaml:1:1: there is no flag --config;"),
    ] {
        let done = check(config, &["serve"], None);
        let told = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{told}");
        assert!(told.starts_with(&format!("error: {expected}")), "{config:?}: {told}");
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[test]
fn what_belongs_together_may_come_from_two_places() {
    let done = check("upstream: ftp://h\n", &["serve", "--gateway", "127.0.0.1:0"], None);
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(told.contains("--upstream: "), "{told}");
    let done = check("upstream: http://h\n", &["serve"], None);
    assert!(String::from_utf8(done.stderr).unwrap().contains("--gateway and --upstream need each other"));
}
