//! The program `tidegate-lab`, and the fault, attack and crash suites in small doses: a part of `make prove`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod attacks;
mod bench;
mod faults;
mod ledger_crashes;
mod surge;
mod surge_store;

use std::process::{Command, Output, Stdio};

/// `tidegate-lab`, with an environment variable of a store that it must ignore.
fn lab(subcommand: &str, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"));
    command.arg(subcommand).args(line.split_whitespace()).env("TIDEGATE_STORE", "redis://127.0.0.1:1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Exit code, stdout and stderr.
fn parse_output(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}
