//! A temporary directory to run the binary in.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Limits whose refill is too slow to matter in a test.
pub(crate) const RULES: &str = "\
version: 1
identify:
  client: [header:x-api-key, ip]
  tenant: header:x-tenant-id
  authenticated: [x-api-key, x-tenant-id]
  trusted_proxies: [127.0.0.0/8]
http: { x_ratelimit: off }
exempt:
  - path: /health
plans:
  pro: { rides: { token_bucket: { capacity: 100, refill: 50/s } } }
tenants: { acme: pro }
rules:
  - id: rides
    match: { method: POST, path: /rides }
    per: [client]
    token_bucket: { capacity: 3, refill: 1/d }
    on_failure: share
    anonymous: { forget_after: 3d }
  - id: login
    match: { action: login }
    front_ends: [check]
    per: [attr:account]
    sliding_log: { limit: 2, window: 1d }
    on_failure: closed
    security: true
  - id: trial
    match: { path: '/rides/*' }
    per: []
    fixed_window: { limit: 1, window: 365d }
    mode: shadow
    on_failure: share
  - id: locations
    match: { path: /locations }
    per: []
    leaky_bucket: { rate: 3/m, queue: 1 }
    on_failure: share
  - id: old
    match: { path: /old }
    per: [ip]
    fixed_window: { limit: 1, window: 1m }
    mode: disabled
";

/// A temporary directory in which commands run.
pub(crate) struct Shell {
    directory: TempDir,
}

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct RunOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Shell {
    /// A directory with [`RULES`] in `rules.yaml`.
    pub(crate) fn new() -> Self {
        let shell = Self { directory: tempfile::tempdir().unwrap() };
        shell.write("rules.yaml", RULES);
        shell
    }

    /// A directory that also has the repository's examples.
    pub(crate) fn with_examples() -> Self {
        let shell = Self::new();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples")).unwrap() {
            let entry = entry.unwrap();
            // Examples that run are directories.
            if entry.path().is_dir() {
                continue;
            }
            shell.write(&format!("examples/{}", entry.file_name().display()), std::fs::read(entry.path()).unwrap());
        }
        shell
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// The binary, in the directory and without settings of the user.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        for name in ["TIDEGATE_SECRET", "TIDEGATE_STORE", "TIDEGATE_RULES", "NO_COLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the binary with the arguments of `line`.
    pub(crate) fn run(&self, line: &str) -> RunOutput {
        self.command().args(line.split_whitespace()).output().unwrap().into()
    }

    /// Runs a line in `sh`.
    pub(crate) fn sh(&self, line: &str) -> RunOutput {
        let binary_dir = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.directory.path()).env_clear();
        command.env("PATH", format!("{}:/usr/bin:/bin", binary_dir.display())).stdin(Stdio::null());
        command.output().unwrap().into()
    }
}

impl RunOutput {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

impl From<Output> for RunOutput {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}
