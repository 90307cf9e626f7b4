//! `Hosted`: the store of a run: a server of its own, somebody's, or none. It ends and cleans up what is its own, and touches
//! nothing else.

use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use tempfile::TempDir;
use tidegate_redis::{RedisOptions, RedisStore};

use super::fleet::Shared;
use crate::traffic::Child;
use tidegate_server::command::Failure;

/// Servers that will do, in the order in which they are tried.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// How often another port is tried, if somebody took the one before.
const TRIES: u32 = 5;

/// Where the gateways keep what they share.
pub(crate) struct Hosted {
    at: Option<String>,
    prefix: String,
    /// What it is, for people.
    pub(crate) name: String,
    /// A server of our own, which goes before the folder that it runs in.
    server: Option<(Child, TempDir)>,
    /// Whether keys must be taken away at the end.
    borrowed: bool,
}

impl Hosted {
    /// The store at `url`, or a server of our own, or none if there is no program for one.
    pub(crate) fn open(url: Option<String>, prefix: String) -> Result<Self, Failure> {
        if let Some(url) = url {
            let name = "the store of --store".to_owned();
            return Ok(Self { at: Some(url), prefix, name, server: None, borrowed: true });
        }
        for program in PROGRAMS {
            if let Some((server, folder, port)) = start(program)? {
                let (at, name) =
                    (Some(format!("redis://127.0.0.1:{port}")), format!("{} of its own", version(program)));
                return Ok(Self { at, prefix, name, server: Some((server, folder)), borrowed: false });
            }
        }
        let name = "the memory of one gateway".to_owned();
        Ok(Self { at: None, prefix, name, server: None, borrowed: false })
    }

    /// The process of a server of our own.
    pub(crate) fn process(&self) -> Option<u32> {
        self.server.as_ref().map(|(server, _)| server.id())
    }

    /// Whether gateways can share anything.
    pub(crate) const fn is_shared(&self) -> bool {
        self.at.is_some()
    }

    /// Whether all rules of a request are decided in one step; a cluster may take one for each.
    pub(crate) fn is_whole(&self) -> bool {
        let is_cluster = |url: &String| url.split(':').next().is_some_and(|scheme| scheme.ends_with("+cluster"));
        !self.at.as_ref().is_some_and(is_cluster)
    }

    /// What the gateways of a phase share: nobody has spent anything of it yet.
    pub(crate) fn shared(&self, phase: usize) -> Shared {
        match &self.at {
            Some(url) => Shared::Store { url: url.clone(), prefix: format!("{}.{phase}.", self.prefix) },
            None => Shared::Nothing,
        }
    }

    /// Takes away the keys of this run, from a store that is not its own. How many there were.
    pub(crate) async fn clean(&self) -> Result<u64, Failure> {
        let Some(url) = self.at.as_ref().filter(|_| self.borrowed) else { return Ok(0) };
        let failed = |error| Failure::Store { error, meanwhile: "" };
        let store =
            RedisStore::connect_with(url, RedisOptions::new().with_prefix(&self.prefix).with_heartbeats(false)).await;
        let store = store.map_err(failed)?;
        store.forget_prefix().await.map_err(failed)
    }
}

/// The program with its version, such as `redis-server 7.0.15`.
fn version(program: &str) -> String {
    let said = Command::new(program).arg("--version").output().map(|output| output.stdout);
    let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.map_or(program.to_owned(), |version| format!("{program} {version}"))
}

/// Starts a server that keeps nothing on disk; none if there is no such program.
fn start(program: &str) -> Result<Option<(Child, TempDir, u16)>, Failure> {
    let failed = |error: io::Error| Failure::usage(format!("{program} cannot be started: {error}"));
    let mut tries = 0;
    loop {
        tries += 1;
        let folder = tempfile::tempdir().map_err(failed)?;
        // Somebody else may take the port before the server does: then there is another one.
        let address = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr()).map_err(failed)?;
        let port = address.port().to_string();
        let memory = ["--maxmemory", "256mb", "--maxmemory-policy", "noeviction"];
        let mut command = Command::new(program);
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]).args(memory);
        // In a group of its own: what is typed on the terminal is for us, and ends it through us.
        command.current_dir(folder.path()).process_group(0);
        let mut server = match Child::start(&mut command) {
            Ok(server) => server,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match server.listens(address) {
            Ok(()) => return Ok(Some((server, folder, address.port()))),
            Err(_) if tries < TRIES => {}
            Err(failure) => return Err(failure),
        }
    }
}
