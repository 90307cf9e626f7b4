//! `RedisServer`: a Redis or Valkey server started for a run, without persistence. Dropping it stops the server.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::Command;

use tempfile::TempDir;
use tidegate_server::command::Failure;

use super::ServerProcess;

/// Server programs, in the order in which they are tried.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// Attempts to start a server, each on another port.
const MAX_START_ATTEMPTS: u32 = 5;

/// A server of this run.
pub(crate) struct RedisServer {
    /// Dropped before the folder it runs in.
    process: ServerProcess,
    _folder: TempDir,
    address: SocketAddr,
    program: &'static str,
}

impl RedisServer {
    /// Starts a server on a free port. It inherits the CPU affinity of the calling thread. `None` if no program is installed.
    pub(crate) fn start() -> Result<Option<Self>, Failure> {
        for program in PROGRAMS {
            if let Some(server) = start(program)? {
                return Ok(Some(server));
            }
        }
        Ok(None)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) const fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// The program with its version, such as `redis-server 7.0.15`.
    pub(crate) fn version(&self) -> String {
        version(self.program)
    }
}

fn version(program: &str) -> String {
    let stdout = Command::new(program).arg("--version").output().map(|output| output.stdout);
    let text = String::from_utf8_lossy(&stdout.unwrap_or_default()).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.map_or(program.to_owned(), |version| format!("{program} {version}"))
}

/// Starts a server without persistence; `None` if the program is not installed.
fn start(program: &'static str) -> Result<Option<RedisServer>, Failure> {
    let failed = |error: io::Error| Failure::usage(format!("cannot start {program}: {error}"));
    let mut attempts = 0;
    loop {
        attempts += 1;
        let folder = tempfile::tempdir().map_err(failed)?;
        // Another process may take the port first; the next attempt uses another one.
        let address = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).map_err(failed)?;
        let port = address.port().to_string();
        let memory = ["--maxmemory", "256mb", "--maxmemory-policy", "noeviction"];
        let mut command = Command::new(program);
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]).args(memory);
        // In its own process group: Ctrl-C goes to this process, which then stops the server.
        command.current_dir(folder.path()).process_group(0);
        let mut process = match ServerProcess::start(&mut command) {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match process.wait_until_listening(address) {
            Ok(()) => return Ok(Some(RedisServer { process, _folder: folder, address, program })),
            Err(_) if attempts < MAX_START_ATTEMPTS => {}
            Err(failure) => return Err(failure),
        }
    }
}
