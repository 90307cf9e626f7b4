//! A wrong value of each setting of `tidegate serve`, from its flag, its variable and the config file: the error names where the value is
//! from and what to write, and never the value.

use std::collections::BTreeSet;
use std::process::Command;

use crate::cli::shell::{RunOutput, Shell};

/// A setting: its flag, a wrong value, what the error says to write, and the flags beside it.
type Row = (&'static str, &'static str, &'static str, &'static [&'static str]);

const ADDRESS: &str = "write an IP address and a port, such as 127.0.0.1:8080; 8080 or localhost:8080 for this machine alone; :8080 for every \
                       address; or off";
const SECONDS: &str = "write a duration from 1s to 365d, such as 10s, 250ms or 2m; a number alone is in seconds";
const MILLIS: &str = "write a duration from 1ms to 1m, such as 10s, 250ms or 2m; a number alone is in milliseconds";
const POSITIVE: &str = "write a whole number, at least 1";
const SHARE: &str = "a share is a number from 0 to 1, such as 0.8";
const SWITCH: &str = "write true or false";
const TOKEN: &str = "a token has 16 to 4096 letters, digits and signs";
const FILE: &str = "No such file";
const WITH_UPSTREAM: &[&str] = &["--upstream", "https://127.0.0.1:1"];

const ROWS: &[Row] = &[
    ("store", "hunter2", "a store is a URL: `memory:`, or one such as `redis://127.0.0.1:6379`", &[]),
    ("store-budget", "hunter2", MILLIS, &[]),
    ("queue-wait", "0", MILLIS, &[]),
    ("memory-keys", "hunter2", "write a whole number from 1 to 1000000000", &[]),
    ("memory-keys", "0", "write a whole number from 1 to 1000000000", &[]),
    ("namespace", "hunter2!", "a namespace has 2 to 32 letters", &[]),
    ("instances", "hunter2", "write a whole number from 1 to 4294967295", &[]),
    ("reservation-ttl", "2d", "write a duration from 1s to 1d", &[]),
    ("http", "hunter2", ADDRESS, &[]),
    ("strict-checks", "hunter2", SWITCH, &[]),
    ("grpc", "hunter2:80", ADDRESS, &[]),
    ("gateway", "hunter2", ADDRESS, &[]),
    ("gateway", "127.0.0.1:0", "needs --upstream", &[]),
    ("upstream", "ftp://hunter2", "write http://host:port or https://host", &[]),
    ("upstream", "http://user:hunter2<@h", "write http://host:port or https://host", &[]),
    ("admin", "hunter2", ADDRESS, &[]),
    ("near-limit", "hunter2", SHARE, &[]),
    ("near-limit", "1.5", SHARE, &[]),
    ("drain", "ten", "write a duration from 0s to 365d", &[]),
    ("tls-cert", "/no/such/file", "needs --tls-key", &[]),
    ("tls-cert", "/no/such/file", FILE, &["--tls-key", "/no/such/key"]),
    ("tls-key", "/no/such/file", "needs --tls-cert", &[]),
    ("tls-client-ca", "/no/such/file", "needs --tls-cert", &[]),
    ("upstream-ca", "/no/such/file", "needs an --upstream with TLS", &[]),
    ("upstream-ca", "/no/such/file", FILE, WITH_UPSTREAM),
    ("upstream-cert", "/no/such/file", "needs --upstream-key", WITH_UPSTREAM),
    ("upstream-key", "/no/such/file", "needs --upstream-cert", WITH_UPSTREAM),
    ("max-connections", "hunter2", POSITIVE, &[]),
    ("max-connections", "0", POSITIVE, &[]),
    ("max-connections-per-client", "0", POSITIVE, &[]),
    ("max-header-bytes", "8191", "write a whole number, at least 8192", &[]),
    ("max-body-bytes", "-1", "write a whole number", &[]),
    ("header-timeout", "0", SECONDS, &[]),
    ("request-timeout", "hunter2", SECONDS, &[]),
    ("max-wait", "2h", "write a duration from 0s to 1h", &[]),
    ("max-waiting", "4097", "write a whole number from 1 to 4096", &[]),
    ("max-waiting-per-subject", "hunter2", "write a whole number from 1 to 4096", &[]),
    ("upstream-timeout", "hunter2", SECONDS, &[]),
    ("max-requests", "0", POSITIVE, &[]),
    ("max-requests-per-client", "1e3", POSITIVE, &[]),
    ("exempt-clients", "hunter2", "write networks such as 10.0.0.0/8", &[]),
    ("client-timeout", "hunter2", SECONDS, &[]),
    ("min-rate", "hunter2", "write a whole number", &[]),
    ("upload-timeout", "hunter2", SECONDS, &[]),
    ("max-upstream-connections", "0", POSITIVE, &[]),
    ("max-upstream-queue", "hunter2", "write a whole number", &[]),
    ("admin-token", "hunter2", TOKEN, &[]),
    ("admin-token-file", "/no/such/file", FILE, &[]),
    ("admin-read-token", "hunter2", TOKEN, &[]),
    ("admin-read-token-file", "/no/such/file", FILE, &[]),
    ("secret", "''", "set TIDEGATE_SECRET to a random text", &[]),
    ("secret-file", "/no/such/file", FILE, &[]),
    ("ledger", "hunter2", "neither sqlite:FILE nor postgres://", &["--secret", "s1"]),
    ("ledger-url-file", "/no/such/file", FILE, &["--secret", "s1"]),
    ("ledger-budget", "hunter2", MILLIS, &[]),
    ("ledger-journal", "/no/such/folder/journal", FILE, &["--secret", "s1", "--ledger", "sqlite:l.db"]),
    ("log-format", "hunter2", "write pretty or json", &[]),
    ("log-level", "hunter2", "write error, warn, info, debug or trace", &[]),
    ("access-log", "hunter2", SWITCH, &[]),
    ("rules", "/no/such/file", FILE, &[]),
    ("envoy-config", "/no/such/folder", FILE, &[]),
    ("envoy-strict", "hunter2", SWITCH, &[]),
    ("envoy-shadow", "hunter2", SWITCH, &[]),
    ("envoy-quota", "hunter2", SWITCH, &[]),
    ("envoy-metadata", "hunter2", SWITCH, &[]),
    ("envoy-json-refunds", "hunter2", SWITCH, &[]),
    ("envoy-merge-domains", "1", SWITCH, &[]),
    ("envoy-budget", "hunter2", MILLIS, &[]),
    ("envoy-near-limit", "NaN", SHARE, &[]),
    ("envoy-headers", "hunter2", SWITCH, &[]),
    ("envoy-limit-header", "hunter 2", "use letters, digits and `-`", &[]),
    ("envoy-remaining-header", "''", "use letters, digits and `-`", &[]),
    ("envoy-reset-header", "hunter:2", "use letters, digits and `-`", &[]),
];

/// Errors that begin with what is wrong, and not with the setting.
const UNNAMED: [&str; 2] = ["rules", "secret"];

/// `tidegate serve` with these arguments, on free ports.
fn serve(shell: &Shell, flag: &str, arguments: &[&str]) -> Command {
    let mut command = shell.command();
    command.arg("serve").args(arguments);
    for other in ["http", "grpc", "admin"].iter().filter(|other| **other != flag) {
        command.arg(format!("--{other}=127.0.0.1:0"));
    }
    command
}

#[test]
fn a_wrong_value_of_each_setting_is_blamed_on_the_flag_the_variable_or_the_line_of_the_file_that_has_it() {
    let (shell, mut wrong) = (Shell::new(), Vec::new());
    for (flag, value, remedy, beside) in ROWS {
        let written = value.trim_matches('\'');
        let mut from_flag = serve(&shell, flag, beside);
        from_flag.arg(format!("--{flag}={written}"));
        let variable = format!("TIDEGATE_{}", flag.replace('-', "_").to_uppercase());
        let mut from_variable = serve(&shell, flag, beside);
        from_variable.env(&variable, written);
        shell.write("tidegate.yaml", format!("# the settings\n{flag}: {value}\n"));
        let mut from_file = serve(&shell, flag, &[&["--config", "tidegate.yaml"], *beside].concat());
        from_file.env_remove(&variable);
        let place = format!("tidegate.yaml:2:{}: --{flag} ", flag.len() + 3);
        for (mut command, start) in [
            (from_flag, format!("error: --{flag}")),
            (from_variable, format!("error: the variable {variable}")),
            (from_file, format!("error: {place}").trim_end().to_owned()),
        ] {
            let output = RunOutput::from(command.output().unwrap());
            let remedy = if *remedy == SWITCH && start.starts_with("error: --") { "takes no value" } else { remedy };
            let is_named = output.err.starts_with(&start) || UNNAMED.contains(flag);
            let is_right = is_named && output.err.contains(remedy) && !output.err.contains("hunter");
            if !is_right || output.code != Some(2) || !output.out.is_empty() {
                wrong.push(format!("{start} {value}: {output:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} settings:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_table_has_each_setting() {
    let help = Shell::new().run("serve --help").out;
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let flags: BTreeSet<&str> = flags.filter_map(|line| line.split([' ', '\n']).next()).collect();
    let known: BTreeSet<&str> = ROWS.iter().map(|row| row.0).chain(["help", "config", "color"]).collect();
    let missing: Vec<_> = flags.difference(&known).collect();
    assert!(missing.is_empty() && flags.len() > 50, "{missing:?}");
}
