//! `Setup`: a proxy with its configuration from `deploy/`, Tidegate with its store, and a backend.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::server::{Kind, Server};
use tempfile::TempDir;

use crate::doors::backend::Service;
use crate::doors::client::{HttpRequest, HttpResponse, request};
use conformance::process::{Process, until};
use conformance::server::free_port;

/// How a proxy is started with the files of its folder in `deploy/`.
pub(crate) struct Recipe {
    /// The folder.
    pub(crate) folder: &'static str,
    /// Its files.
    pub(crate) files: &'static [&'static str],
    /// The command that runs it in a directory with these files.
    pub(crate) command: fn(&Path) -> Command,
    /// Replaced texts: the alternatives that `deploy/README.md` describes.
    pub(crate) choices: &'static [(&'static str, &'static str)],
}

/// Everything between the client and the store.
pub(crate) struct Setup {
    proxy: Process,
    address: SocketAddr,
    tidegate: Process,
    store: Server,
    pub(crate) service: Service,
    _directory: TempDir,
}

/// A `tidegate serve` process with the shared rules.
pub(crate) struct Tidegate {
    process: Process,
    pub(crate) http: u16,
    pub(crate) grpc: u16,
    pub(crate) admin: u16,
}

/// The ports that replace 8000, 8079, 3000, 8080 and 8081 of `deploy/`.
#[derive(Clone, Copy)]
struct Ports {
    proxy: u16,
    questions: u16,
    service: u16,
    http: u16,
    grpc: u16,
}

impl Setup {
    /// Starts everything with the rules of `deploy/`.
    pub(crate) async fn open(recipe: &Recipe) -> Self {
        Self::open_with(recipe, &[]).await
    }

    /// Starts everything with further flags of `tidegate serve`.
    pub(crate) async fn open_with(recipe: &Recipe, flags: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let service = Service::start().await;
        let store = Server::start(Kind::Redis);
        let Tidegate { process: tidegate, http, grpc, .. } =
            Tidegate::start(directory.path(), &store.url(), flags).await;
        // Another process may take the proxy's port first: then the proxy exits, and is started on another port.
        for _ in 0..20 {
            let ports = Ports { proxy: free_port(), questions: free_port(), service: service.port(), http, grpc };
            let address = SocketAddr::from(([127, 0, 0, 1], ports.proxy));
            if let Some(proxy) = start(recipe, directory.path(), ports).await {
                return Self { proxy, address, tidegate, store, service, _directory: directory };
            }
        }
        let log = std::fs::read_to_string(directory.path().join(format!("{}.log", recipe.folder)));
        panic!("{} does not start: {log:?}", recipe.folder)
    }

    /// Sends a request through the proxy.
    pub(crate) async fn send(&self, ask: &HttpRequest) -> HttpResponse {
        let response = ask.try_send(self.address).await;
        response.unwrap_or_else(|| panic!("no response; the output of the proxy: {}", self.proxy.output()))
    }

    /// Kills the store.
    pub(crate) fn kill_store(&mut self) {
        self.store.kill();
    }

    /// Stops Tidegate with SIGSTOP: it accepts connections and answers none.
    pub(crate) fn hang_tidegate(&self) {
        self.tidegate.hang();
    }

    /// Kills Tidegate.
    pub(crate) fn kill_tidegate(&mut self) {
        self.tidegate.kill();
    }
}

/// A file or folder of `deploy/`.
pub(crate) fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

impl Tidegate {
    /// Starts it with the store at this URL.
    pub(crate) async fn start(directory: &Path, store: &str, flags: &[&str]) -> Self {
        Self::start_with_rules(&deployed("rules.yaml"), directory, store, flags).await
    }

    /// Starts it with the rules in this file.
    pub(crate) async fn start_with_rules(rules: &Path, directory: &Path, store: &str, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-under-test"));
        command.args(["serve", "--store", store, "--secret", "s1", "--rules"]).arg(rules);
        command.args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(flags);
        let mut process = Process::start(&mut command, directory, "tidegate");
        let said = until("tidegate listens", async || {
            let said = process.output();
            assert!(!process.has_ended(), "tidegate has ended: {said}");
            said.contains("\nrules ").then_some(said)
        })
        .await;
        let port = |name: &str| {
            let line = said.lines().find(|line| line.starts_with(name)).unwrap();
            let port = line.split("127.0.0.1:").nth(1).unwrap();
            port.split(|end: char| !end.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        Self { http: port("check API"), grpc: port("Envoy RLS"), admin: port("metrics"), process }
    }

    /// Its output so far.
    pub(crate) fn output(&self) -> String {
        self.process.output()
    }
}

/// Starts a proxy and waits until the backend answers through it; None if the proxy exits before.
async fn start(recipe: &Recipe, directory: &Path, ports: Ports) -> Option<Process> {
    for file in recipe.files {
        let text = std::fs::read_to_string(deployed(recipe.folder).join(file)).unwrap();
        std::fs::write(directory.join(file), ports.replace_ports(&apply_replacements(recipe, &text))).unwrap();
    }
    let mut proxy = Process::start(&mut (recipe.command)(directory), directory, recipe.folder);
    let address = SocketAddr::from(([127, 0, 0, 1], ports.proxy));
    let up = until("the service answers through the proxy", async || {
        if proxy.has_ended() {
            return Some(false);
        }
        // No rule applies to this path, so nothing is counted.
        let response = request("GET /ready").try_send(address).await?;
        (response.backend_request_line().as_deref() == Some("GET /ready")).then_some(true)
    })
    .await;
    up.then_some(proxy)
}

/// Applies the replacements of a recipe.
fn apply_replacements(recipe: &Recipe, text: &str) -> String {
    recipe.choices.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

impl Ports {
    /// Replaces the ports of `deploy/` by these, in two steps, so that no new port is taken for an old one.
    fn replace_ports(self, text: &str) -> String {
        let ports = [
            ("8000", self.proxy),
            ("8079", self.questions),
            ("3000", self.service),
            ("8080", self.http),
            ("8081", self.grpc),
        ];
        let marked = ports.iter().fold(text.to_owned(), |text, (name, _)| {
            let text = text.replace(&format!(":{name}"), &format!(":<{name}>"));
            text.replace(&format!("port_value: {name}"), &format!("port_value: <{name}>"))
        });
        ports.iter().fold(marked, |text, (name, port)| text.replace(&format!("<{name}>"), &port.to_string()))
    }
}
