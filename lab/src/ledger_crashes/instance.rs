//! `Instance`: a `tidegate serve` process, which is killed and started again. It has other ports after each start.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use super::waiting::Polling;

/// A server process.
#[derive(Debug)]
pub(super) struct Instance {
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    process: Mutex<Option<Child>>,
    addresses: Mutex<Option<Addresses>>,
}

/// Where a running instance listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) http: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl Instance {
    /// Starts `program` with these arguments of `serve`. Its output goes into `directory`.
    pub(super) async fn start(program: &Path, arguments: Vec<String>, directory: &Path) -> Self {
        let instance = Self {
            program: program.to_owned(),
            arguments,
            directory: directory.to_owned(),
            process: Mutex::new(None),
            addresses: Mutex::new(None),
        };
        instance.restart().await;
        instance
    }

    /// Where it listens, unless it is dead or not up yet.
    pub(super) fn addresses(&self) -> Option<Addresses> {
        *self.addresses.lock().unwrap()
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(&self) {
        *self.addresses.lock().unwrap() = None;
        if let Some(mut process) = self.process.lock().unwrap().take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it after a kill, and waits until it listens. One that ends at once, because its ledger is not up yet, is started again, as by a
    /// supervisor.
    pub(super) async fn restart(&self) {
        self.kill();
        let mut polling = Polling::until("an instance listens");
        while !self.is_up() {
            polling.pause(|| self.log_lines()).await;
        }
    }

    /// Starts it if it does not run, and reads its addresses if it has printed them.
    fn is_up(&self) -> bool {
        let mut process = self.process.lock().unwrap();
        if process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some()) {
            *process = Some(self.spawn());
            return false;
        }
        let found = addresses(&self.output());
        *self.addresses.lock().unwrap() = found;
        found.is_some()
    }

    /// The output since the last start.
    fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// The output without single refusals, for failure messages.
    pub(super) fn log_lines(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().filter(|line| !line.contains("tidegate::refusals")).collect();
        lines.join("\n")
    }

    /// Whether it ended without being killed.
    pub(super) fn has_ended_by_itself(&self) -> bool {
        let mut process = self.process.lock().unwrap();
        process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_some())
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn spawn(&self) -> Child {
        let log = File::create(self.log()).unwrap();
        let mut command = Command::new(&self.program);
        command.arg("serve").args(&self.arguments).current_dir(&self.directory);
        for flag in ["--http", "--grpc", "--admin"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", self.program.display()))
    }
}

/// The addresses that a server prints, once it has printed all of them.
fn addresses(output: &str) -> Option<Addresses> {
    let address = |name: &str| {
        let line = output.lines().find(|line| line.starts_with(name))?;
        let port = line.split("127.0.0.1:").nth(1)?.split(|end: char| !end.is_ascii_digit()).next()?;
        Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?)))
    };
    output.contains("\nrules ").then_some(Addresses { http: address("check API")?, admin: address("metrics")? })
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}
