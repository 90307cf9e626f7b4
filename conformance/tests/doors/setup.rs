//! A door: a proxy with the configuration of `deploy/`, Tidegate and its store, and a service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::server::{Kind, Server};
use tempfile::TempDir;

use crate::backend::Service;
use crate::client::{Ask, HttpResponse, ask};
use crate::process::{Process, free_port, until};

/// How a proxy is started with the files of its folder in `deploy/`.
pub(crate) struct Recipe {
    /// The folder.
    pub(crate) folder: &'static str,
    /// Its files.
    pub(crate) files: &'static [&'static str],
    /// The command that runs it in a directory where these files are.
    pub(crate) command: fn(&Path) -> Command,
    /// Lines that are written otherwise: the choices that `deploy/README.md` describes.
    pub(crate) choices: &'static [(&'static str, &'static str)],
}

/// Everything that runs, from the client's side to the store.
pub(crate) struct Door {
    proxy: Process,
    address: SocketAddr,
    tidegate: Process,
    store: Server,
    pub(crate) service: Service,
    _directory: TempDir,
}

/// Tidegate with the shared rules, and where it listens.
pub(crate) struct Tidegate {
    process: Process,
    pub(crate) http: u16,
    pub(crate) grpc: u16,
    pub(crate) admin: u16,
}

/// What `deploy/` calls 8000, 8079, 3000, 8080 and 8081.
#[derive(Clone, Copy)]
struct Ports {
    proxy: u16,
    questions: u16,
    service: u16,
    http: u16,
    grpc: u16,
}

impl Door {
    /// Opens a door with the rules of `deploy/`.
    pub(crate) async fn open(recipe: &Recipe) -> Self {
        Self::open_with(recipe, &[]).await
    }

    /// Opens a door with further flags of `tidegate serve`.
    pub(crate) async fn open_with(recipe: &Recipe, flags: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let service = Service::start().await;
        let store = Server::start(Kind::Redis);
        let Tidegate { process: tidegate, http, grpc, .. } = Tidegate::start(directory.path(), &store, flags).await;
        // Another process may take the proxy's port before the proxy does: then it ends, and is tried with another.
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

    /// The answer to a request.
    pub(crate) async fn send(&self, ask: &Ask) -> HttpResponse {
        let response = ask.try_send(self.address).await;
        response.unwrap_or_else(|| panic!("no answer; the proxy says: {}", self.proxy.said()))
    }

    /// Ends the store as a crash would.
    pub(crate) fn lose_store(&mut self) {
        self.store.kill();
    }

    /// Lets Tidegate take connections and answer none.
    pub(crate) fn hang_tidegate(&self) {
        self.tidegate.hang();
    }

    /// Ends Tidegate as a crash would.
    pub(crate) fn lose_tidegate(&mut self) {
        self.tidegate.kill();
    }
}

/// A file or folder of `deploy/`.
pub(crate) fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

impl Tidegate {
    /// Starts it on a store.
    pub(crate) async fn start(directory: &Path, store: &Server, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-under-test"));
        command.args(["serve", "--store", &store.url(), "--secret", "s1", "--rules"]).arg(deployed("rules.yaml"));
        command.args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(flags);
        let mut process = Process::start(&mut command, directory, "tidegate");
        let said = until("tidegate listens", async || {
            let said = process.said();
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

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        self.process.said()
    }
}

/// A proxy through which the service answers; none if it has ended before.
async fn start(recipe: &Recipe, directory: &Path, ports: Ports) -> Option<Process> {
    for file in recipe.files {
        let text = std::fs::read_to_string(deployed(recipe.folder).join(file)).unwrap();
        std::fs::write(directory.join(file), ports.put_into(&chosen(recipe, &text))).unwrap();
    }
    let mut proxy = Process::start(&mut (recipe.command)(directory), directory, recipe.folder);
    let address = SocketAddr::from(([127, 0, 0, 1], ports.proxy));
    let up = until("the service answers through the proxy", async || {
        if proxy.has_ended() {
            return Some(false);
        }
        // No rule applies to this path, so nothing is counted.
        let response = ask("GET /ready").try_send(address).await?;
        (response.asked().as_deref() == Some("GET /ready")).then_some(true)
    })
    .await;
    up.then_some(proxy)
}

/// The text with the choices of a recipe.
fn chosen(recipe: &Recipe, text: &str) -> String {
    recipe.choices.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

impl Ports {
    /// The text with these ports instead of those of `deploy/`, in two steps, so that no port is taken for another.
    fn put_into(self, text: &str) -> String {
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
