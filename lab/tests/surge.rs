//! `tidegate-lab surge` as a process: results, report page and clean-up. Runs are small and short, and no times are judged.

mod failures;
mod page;
mod results;

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A temporary directory to run in.
struct WorkDir(TempDir);

impl WorkDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn surge(&self, line: &str) -> Command {
        let mut command = crate::lab("surge", line);
        // Temporary files are created here, so that a test finds leftovers.
        command.current_dir(self.0.path()).env("TMPDIR", self.0.path());
        command
    }

    /// Runs it, and returns the exit code, stdout and stderr.
    fn run(&self, line: &str) -> (Option<i32>, String, String) {
        crate::parse_output(self.surge(line).output().unwrap())
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
