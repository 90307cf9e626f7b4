//! `Setup`: a proxy with its configuration from `deploy/`, Tidegate with its store, and a backend.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::server::{Kind, Server};
use tempfile::TempDir;

use crate::doors::backend::{ProxyResponse, Service};
use crate::doors::client::{HttpRequest, request};
use conformance::http_client::HttpResponse;
use conformance::poll::wait_for_some;
use conformance::process::Process;
use conformance::serve_process::ServeProcess;
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
    tidegate: ServeProcess,
    store: Server,
    pub(crate) service: Service,
    _directory: TempDir,
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
        let tidegate = start_tidegate(directory.path(), &store.url(), flags);
        let [http, grpc] = [tidegate.http(), tidegate.grpc()].map(|address| address.port());
        let mut output = String::new();
        // Another process may take the proxy's port first: then the proxy exits, and is started on another port.
        for _ in 0..20 {
            let ports = Ports { proxy: free_port(), questions: free_port(), service: service.port(), http, grpc };
            let address = SocketAddr::from(([127, 0, 0, 1], ports.proxy));
            match start(recipe, directory.path(), ports).await {
                Ok(proxy) => return Self { proxy, address, tidegate, store, service, _directory: directory },
                Err(errors) => output = errors,
            }
        }
        panic!("{} does not start: {output}", recipe.folder)
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

/// Starts `tidegate serve` in this directory, with the rules of `deploy/` and the store at this URL.
pub(crate) fn start_tidegate(directory: &Path, store: &str, flags: &[&str]) -> ServeProcess {
    start_tidegate_with_rules(&deployed("rules.yaml"), directory, store, flags)
}

/// The same with the rules in this file.
pub(crate) fn start_tidegate_with_rules(rules: &Path, directory: &Path, store: &str, flags: &[&str]) -> ServeProcess {
    let mut command = ServeProcess::command(Path::new(env!("CARGO_BIN_EXE_tidegate-under-test")));
    // What is asserted holds while the store answers within its budget, which it must also do on a busy machine.
    command.args(["--store", store, "--store-budget", "2000", "--secret", "s1", "--rules"]);
    command.arg(rules).args(flags).current_dir(directory);
    ServeProcess::start(&mut command)
}

/// Starts a proxy and waits until the backend answers through it. The error is the output of a proxy that exits before.
async fn start(recipe: &Recipe, directory: &Path, ports: Ports) -> Result<Process, String> {
    for file in recipe.files {
        let text = std::fs::read_to_string(deployed(recipe.folder).join(file)).unwrap();
        std::fs::write(directory.join(file), ports.replace_ports(&apply_replacements(recipe, &text))).unwrap();
    }
    let mut proxy = Process::start((recipe.command)(directory).current_dir(directory));
    let address = SocketAddr::from(([127, 0, 0, 1], ports.proxy));
    let is_up = wait_for_some("the service answers through the proxy", async || {
        if proxy.has_ended() {
            return Some(false);
        }
        // No rule applies to this path, so nothing is counted.
        let response = request("GET /ready").try_send(address).await?;
        (response.backend_request_line().as_deref() == Some("GET /ready")).then_some(true)
    })
    .await;
    if is_up { Ok(proxy) } else { Err(proxy.output()) }
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
