//! `SharedStore`: the store that the gateways of a run share: a server started for it, a store of the user, or none. It stops its own
//! server, and deletes only its own keys.

use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use tempfile::TempDir;
use tidegate::StoreError;
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_server::command::Failure;

use super::fleet::LimitStorage;
use crate::traffic::ServerProcess;

/// Server programs, in the order in which they are tried.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// Attempts to start a server, each on another port.
const MAX_START_ATTEMPTS: u32 = 5;

/// Attempts to connect to a store, of a second each.
const MAX_CONNECT_ATTEMPTS: u32 = 5;

/// The store that the gateways share.
pub(crate) struct SharedStore {
    /// `None` if no store can be shared.
    url: Option<String>,
    prefix: String,
    /// A description for the report.
    pub(crate) name: String,
    /// The server of this run, dropped before the folder it runs in.
    server: Option<(ServerProcess, TempDir)>,
    /// Whether it is a store of the user, so that keys must be deleted at the end.
    is_external: bool,
}

impl SharedStore {
    /// The store at `url`; without a URL a server of this run, or none if no server program is installed.
    pub(crate) fn open(url: Option<String>, prefix: String) -> Result<Self, Failure> {
        if let Some(url) = url {
            let name = "the store of --store".to_owned();
            return Ok(Self { url: Some(url), prefix, name, server: None, is_external: true });
        }
        for program in PROGRAMS {
            if let Some((server, folder, port)) = start(program)? {
                let url = Some(format!("redis://127.0.0.1:{port}"));
                let name = format!("{}, started for this run", version(program));
                return Ok(Self { url, prefix, name, server: Some((server, folder)), is_external: false });
            }
        }
        let name = "the memory of one gateway".to_owned();
        Ok(Self { url: None, prefix, name, server: None, is_external: false })
    }

    /// The process ID of the server of this run.
    pub(crate) fn process_id(&self) -> Option<u32> {
        self.server.as_ref().map(|(server, _)| server.id())
    }

    /// Whether gateways can share limits.
    pub(crate) const fn is_shared(&self) -> bool {
        self.url.is_some()
    }

    /// Whether all rules of a request are decided in one step. A cluster may need one step for each.
    pub(crate) fn decides_atomically(&self) -> bool {
        let is_cluster = |url: &String| url.split(':').next().is_some_and(|scheme| scheme.ends_with("+cluster"));
        !self.url.as_ref().is_some_and(is_cluster)
    }

    /// The storage of a phase, with unused limits.
    pub(crate) fn limit_storage(&self, phase: usize) -> LimitStorage {
        match &self.url {
            Some(url) => LimitStorage::Shared { url: url.clone(), prefix: format!("{}.{phase}.", self.prefix) },
            None => LimitStorage::PerGateway,
        }
    }

    /// Deletes the keys of this run from a store of the user, and returns their number.
    pub(crate) async fn delete_keys(&self) -> Result<u64, Failure> {
        let Some(url) = self.url.as_ref().filter(|_| self.is_external) else { return Ok(0) };
        let failed = |error| Failure::Store { error, meanwhile: "" };
        let store = connect(url, &self.prefix).await.map_err(failed)?;
        store.forget_prefix().await.map_err(failed)
    }
}

/// Connects to the store at `url`, with the timeouts that `tidegate serve` has by default. Tries several times, since on a busy
/// machine a server that has just started may be late.
pub(crate) async fn connect(url: &str, prefix: &str) -> Result<RedisStore, StoreError> {
    let store = RedisStore::open(url, RedisOptions::new().with_prefix(prefix).with_heartbeats(false))?;
    for _ in 1..MAX_CONNECT_ATTEMPTS {
        match store.check_servers().await {
            Err(error) if error.is_transient() => {}
            checked => return checked.map(|_| store),
        }
    }
    store.check_servers().await.map(|_| store)
}

/// The program with its version, such as `redis-server 7.0.15`.
fn version(program: &str) -> String {
    let stdout = Command::new(program).arg("--version").output().map(|output| output.stdout);
    let text = String::from_utf8_lossy(&stdout.unwrap_or_default()).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.map_or(program.to_owned(), |version| format!("{program} {version}"))
}

/// Starts a server without persistence; `None` if the program is not installed.
fn start(program: &str) -> Result<Option<(ServerProcess, TempDir, u16)>, Failure> {
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
        let mut server = match ServerProcess::start(&mut command) {
            Ok(server) => server,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match server.wait_until_listening(address) {
            Ok(()) => return Ok(Some((server, folder, address.port()))),
            Err(_) if attempts < MAX_START_ATTEMPTS => {}
            Err(failure) => return Err(failure),
        }
    }
}
