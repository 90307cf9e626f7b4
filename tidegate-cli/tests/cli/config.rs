//! The config file.

use std::fs;
use std::process::{Command, Output};

const RULES: &str =
    "version: 1\nrules: [{ id: a, per: [], fixed_window: { limit: 1, window: 1h }, on_failure: share }]\n";

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
fn flags_override_variables_and_variables_override_the_file() {
    let exit_code = |config: &str, arguments: &[&str], variable| check(config, arguments, variable).status.code();
    assert_eq!(exit_code("rules: rules.yaml\n", &["check"], None), Some(0));
    assert_eq!(exit_code("rules: other.yaml\n", &["check"], None), Some(2));
    assert_eq!(exit_code("rules: other.yaml\n", &["check", "--rules", "rules.yaml"], None), Some(0));
    assert_eq!(exit_code("rules: other.yaml\n", &["check"], Some(("TIDEGATE_RULES", "rules.yaml"))), Some(0));
    let both = exit_code("", &["check", "--rules", "rules.yaml"], Some(("TIDEGATE_RULES", "other.yaml")));
    assert_eq!(both, Some(0), "a flag overrides its variable");
    assert_eq!(
        exit_code("rules: rules.yaml\nhttp: 127.0.0.1:0\n", &["check"], None),
        Some(0),
        "a flag of another command"
    );
    let flag = ["check", "--config", "nowhere.yaml"];
    assert_eq!(exit_code("rules: rules.yaml\n", &flag, None), Some(2), "--config overrides TIDEGATE_CONFIG");
}

#[test]
fn the_namespace_comes_from_a_flag_a_variable_or_the_file() {
    let key = |config: &str, arguments: &[&str], variable| {
        let output = check(config, &[&["rules", "explain", "rules.yaml"], arguments].concat(), variable);
        let text = String::from_utf8(output.stdout).unwrap();
        let key = text.lines().find_map(|line| line.trim().strip_prefix("key ")).unwrap_or_else(|| panic!("{text}"));
        key.trim().split('{').next().unwrap().to_owned()
    };
    let (file, variable) = ("namespace: in-file\n", Some(("TIDEGATE_NAMESPACE", "in-variable")));
    assert_eq!(key("", &[], None), "tg1");
    assert_eq!(key(file, &[], None), "in-file1");
    assert_eq!(key(file, &[], variable), "in-variable1");
    assert_eq!(key(file, &["--namespace", "in-flag"], variable), "in-flag1");
}

#[test]
fn all_problems_are_reported_with_their_position_and_without_values() {
    for (config, expected) in [
        (
            "rulse: rules.yaml\nhttp: hunter2\ndrain: [1]\nenvoy-strict: hunter2\ngrpc:\n",
            "tidegate.yaml:1:1: unknown flag --rulse; did you mean `rules`?\n\
             tidegate.yaml:2:7: --http does not take this value: write an IP address and a port, such as 127.0.0.1:8080; 8080 or \
             localhost:8080 for this machine alone; :8080 for every address; or off\n\
             tidegate.yaml:3:8: --drain takes a single value, not a list\n\
             tidegate.yaml:4:15: --envoy-strict does not take this value: write true or false\n",
        ),
        ("- hunter2\n", "tidegate.yaml:1:3: expected flags, such as `http: 127.0.0.1:8080`\n"),
        ("secret: \"hunter2\n", "tidegate.yaml:"),
        ("config: other.yaml\n", "tidegate.yaml:1:1: unknown flag --config;"),
    ] {
        let output = check(config, &["serve"], None);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.starts_with(&format!("error: {expected}")), "{config:?}: {message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn flags_that_need_each_other_may_come_from_file_and_command_line() {
    let output = check("upstream: http://h\nrules: other.yaml\n", &["serve", "--gateway", "127.0.0.1:0"], None);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("other.yaml") && !message.contains("--upstream"), "{message}");
    let output = check("gateway: 127.0.0.1:0\n", &["serve"], None);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("error: tidegate.yaml:1:10: --gateway needs --upstream"), "{message}");
}
