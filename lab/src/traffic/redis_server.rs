//! `RedisServer`: a Redis or Valkey server started for a run, without persistence. Dropping it stops the server.

use std::process::Command;

use conformance::server::{KINDS, Kind, Server};

pub(crate) struct RedisServer {
    pub(crate) server: Server,
    /// The program with its version, such as `redis-server 7.0.15`.
    pub(crate) version: String,
}

impl RedisServer {
    /// Starts a server on a free port. It inherits the CPU affinity of the calling thread. `None` if no program is installed.
    pub(crate) fn start() -> Option<Self> {
        let (kind, version) = KINDS.into_iter().find_map(|kind| Some((kind, version(kind)?)))?;
        let memory = ["--maxmemory", "256mb", "--maxmemory-policy", "noeviction"];
        Some(Self { server: Server::start_in_own_group(kind, &memory), version })
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
