//! `tidegate-lab bench` as a process: results, load and clean-up. No number is judged.

mod front_doors;
mod url;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The binary, with an environment variable of a store that it must ignore.
fn bench(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"));
    command.arg("bench").args(line.split_whitespace()).env("TIDEGATE_STORE", "redis://127.0.0.1:1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Exit code, stdout and stderr.
fn parse_output(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn json(line: &str) -> Value {
    let (code, out, err) = parse_output(bench(line).output().unwrap());
    assert_eq!(code, Some(0), "{line}: {err}");
    serde_json::from_str(&out).unwrap()
}
