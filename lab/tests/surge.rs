//! `tidegate-lab surge` as a process: results, report page and clean-up. Runs are small and short, and no times are judged.

mod failures;
mod page;
mod results;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A temporary directory to run in.
struct WorkDir(TempDir);

/// Exit code and output of a run.
struct RunOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

impl WorkDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The binary, with an environment variable of another store that it must ignore.
    fn surge(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"));
        command.arg("surge").args(line.split_whitespace()).env("TIDEGATE_STORE", "redis://127.0.0.1:1");
        // Temporary files are created here, so that a test finds leftovers.
        command.current_dir(self.0.path()).env("TMPDIR", self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, line: &str) -> RunOutput {
        RunOutput::from_process(self.surge(line).output().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The names of the files in it.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl RunOutput {
    fn from_process(output: std::process::Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}
