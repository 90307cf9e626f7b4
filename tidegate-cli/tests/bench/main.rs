//! `tidegate bench` as a process: what it measures, what it loads, and what it leaves behind. No number of it is judged.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod doors;
mod url;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The binary, without anybody's settings.
fn bench(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("bench").args(line.split_whitespace()).env("TIDEGATE_STORE", "redis://127.0.0.1:1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// How it ended, what it found and what it said.
fn ran(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn json(line: &str) -> Value {
    let (code, out, err) = ran(bench(line).output().unwrap());
    assert_eq!(code, Some(0), "{line}: {err}");
    serde_json::from_str(&out).unwrap()
}
