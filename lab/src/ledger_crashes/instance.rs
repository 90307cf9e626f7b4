//! `Instance`: a `tidegate serve` process, which is killed and started again. It has other ports after each start.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use conformance::poll::Polling;
use conformance::process::Process;
use conformance::serve_process::ServeProcess;

/// A server process.
#[derive(Debug)]
pub(super) struct Instance {
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    state: Mutex<InstanceState>,
}

#[derive(Debug)]
enum InstanceState {
    Dead,
    Starting(Process),
    Up(ServeProcess),
}

/// Where a running instance listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) http: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl Instance {
    /// Starts `program` with these arguments of `serve`, in `directory`.
    pub(super) async fn start(program: &Path, arguments: Vec<String>, directory: &Path) -> Self {
        let (program, directory) = (program.to_owned(), directory.to_owned());
        let instance = Self { program, arguments, directory, state: Mutex::new(InstanceState::Dead) };
        instance.restart().await;
        instance
    }

    /// Where it listens, unless it is dead or not up yet.
    pub(super) fn addresses(&self) -> Option<Addresses> {
        match &*self.state.lock().unwrap() {
            InstanceState::Up(server) => Some(Addresses { http: server.http(), admin: server.admin() }),
            _ => None,
        }
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(&self) {
        *self.state.lock().unwrap() = InstanceState::Dead;
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

    /// Starts it if it does not run, and sees whether it listens.
    fn is_up(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        *state = match std::mem::replace(&mut *state, InstanceState::Dead) {
            InstanceState::Starting(process) => match ServeProcess::from_process(process) {
                Ok(server) => InstanceState::Up(server),
                Err(mut process) => {
                    if process.has_ended() {
                        InstanceState::Dead
                    } else {
                        InstanceState::Starting(process)
                    }
                }
            },
            InstanceState::Up(server) => InstanceState::Up(server),
            InstanceState::Dead => {
                let mut command = ServeProcess::command(&self.program);
                InstanceState::Starting(Process::start(command.args(&self.arguments).current_dir(&self.directory)))
            }
        };
        matches!(*state, InstanceState::Up(_))
    }

    /// The output since the last start without single refusals, for failure messages.
    pub(super) fn log_lines(&self) -> String {
        let output = match &*self.state.lock().unwrap() {
            InstanceState::Dead => String::new(),
            InstanceState::Starting(process) => process.output(),
            InstanceState::Up(server) => server.output(),
        };
        let lines: Vec<&str> = output.lines().filter(|line| !line.contains("tidegate::refusals")).collect();
        lines.join("\n")
    }

    /// Whether it ended without being killed.
    pub(super) fn has_ended_by_itself(&self) -> bool {
        match &mut *self.state.lock().unwrap() {
            InstanceState::Dead => false,
            InstanceState::Starting(process) => process.has_ended(),
            InstanceState::Up(server) => server.has_ended(),
        }
    }
}
