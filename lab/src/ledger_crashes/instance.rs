//! `Instance`: a `tidegate serve` process, which is killed and started again. It has other ports after each start.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use conformance::http_client::HttpClient;
use conformance::poll::Polling;
use conformance::process::Process;
use conformance::serve_process::{ServeProcess, StartPage};
use serde_json::Value;

use super::client::post;

#[derive(Debug)]
pub(super) struct Instance {
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    process: Process,
    /// Once it listens.
    start_page: Option<StartPage>,
}

impl Instance {
    /// Starts `program` with these arguments of `serve`, in `directory`.
    pub(super) async fn start(program: &Path, arguments: Vec<String>, directory: &Path) -> Self {
        let (program, directory) = (program.to_owned(), directory.to_owned());
        let instance = Self { program, arguments, directory, running: Mutex::default() };
        instance.restart().await;
        instance
    }

    pub(super) fn http(&self) -> Option<SocketAddr> {
        Some(self.running.lock().unwrap().as_ref()?.start_page.as_ref()?.address("check API"))
    }

    pub(super) fn admin(&self) -> Option<SocketAddr> {
        Some(self.running.lock().unwrap().as_ref()?.start_page.as_ref()?.address("metrics"))
    }

    /// The status and the body of the answer to a call, if there is one.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let response = post(&mut HttpClient::default(), self.http(), path, body).await.ok()?;
        Some((response.status, response.json()))
    }

    pub(super) fn kill(&self) {
        *self.running.lock().unwrap() = None;
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
        let mut running = self.running.lock().unwrap();
        if running.as_mut().is_none_or(|running| running.process.has_ended()) {
            let mut command = ServeProcess::command(&self.program);
            let process = Process::start(command.args(&self.arguments).current_dir(&self.directory));
            *running = Some(Running { process, start_page: None });
        }
        running.as_mut().is_some_and(|running| {
            running.start_page = StartPage::find(&running.process);
            running.start_page.is_some()
        })
    }

    /// The output since the last start without single refusals, for failure messages.
    pub(super) fn log_lines(&self) -> String {
        let output = self.running.lock().unwrap().as_ref().map(|running| running.process.output()).unwrap_or_default();
        let lines: Vec<&str> = output.lines().filter(|line| !line.contains("tidegate::refusals")).collect();
        lines.join("\n")
    }

    /// Whether it ended without being killed.
    pub(super) fn has_ended_by_itself(&self) -> bool {
        self.running.lock().unwrap().as_mut().is_some_and(|running| running.process.has_ended())
    }
}
