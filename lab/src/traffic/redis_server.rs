//! `RedisServer`: a Redis or Valkey server started for a run, without persistence. Dropping it stops the server.

use std::process::Command;

use conformance::process::Process;
use conformance::server::{KINDS, Kind, Server};
use tidegate_server::command::Failure;

/// A server of this run.
pub(crate) struct RedisServer {
    server: Server,
    version: String,
}

impl RedisServer {
    /// Starts a server on a free port. It inherits the CPU affinity of the calling thread. `None` if no program is installed.
    #[expect(clippy::unnecessary_wraps, reason = "the callers of a run end with a failure")]
    pub(crate) fn start() -> Result<Option<Self>, Failure> {
        let installed = KINDS.into_iter().find_map(|kind| Some((kind, version(kind)?)));
        Ok(installed.map(|(kind, version)| {
            let memory = ["--maxmemory", "256mb", "--maxmemory-policy", "noeviction"];
            Self { server: Server::start_in_own_group(kind, &memory), version }
        }))
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) const fn process(&self) -> &Process {
        self.server.process()
    }

    /// The program with its version, such as `redis-server 7.0.15`.
    pub(crate) fn version(&self) -> String {
        self.version.clone()
    }
}

/// The program with its version; `None` if it is not installed.
fn version(kind: Kind) -> Option<String> {
    let program = kind.program();
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    Some(version.map_or(program.to_owned(), |version| format!("{program} {version}")))
}
