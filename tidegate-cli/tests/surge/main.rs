//! `tidegate surge` as a process: what it finds, what it shows, and what it leaves behind. The crowd is small and the evening short,
//! and no time is judged.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod page;
mod running;
mod trouble;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A place of its own to run in.
struct Place(TempDir);

/// What came of a run.
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The binary, with settings of somebody who uses another store for other things.
    fn surge(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("surge").args(line.split_whitespace()).env("TIDEGATE_STORE", "redis://127.0.0.1:1");
        // Whatever it puts away for the time being is found here.
        command.current_dir(self.0.path()).env("TMPDIR", self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, line: &str) -> Ran {
        Ran::of(self.surge(line).output().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What is in it.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Ran {
    fn of(output: std::process::Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}
