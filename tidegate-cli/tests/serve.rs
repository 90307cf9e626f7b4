//! `tidegate serve` as a process: its addresses, answers, reloads, log and shutdown.

mod admin;
mod api;
mod bad_input;
mod bounds;
mod browser;
mod doors;
mod envoy;
mod forward_auth;
mod hostile_http2;
mod hosts;
mod language_models;
mod leases;
mod ledger;
mod lifecycle;
mod logging;
mod memory;
mod metrics;
mod off;
mod persons;
mod prove;
mod reload;
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// The metric with the requests under way through the gateway.
const GATEWAY_REQUESTS: &str = "tidegate_requests{address=\"gateway\"} ";

/// A running server and its log.
struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
    _start_page: BufReader<ChildStdout>,
    /// The start page up to the rules.
    page: String,
    http: String,
    grpc: String,
    gateway: String,
    admin: String,
}

impl Running {
    /// Starts a server on free ports.
    fn start(arguments: &[&str]) -> Self {
        Self::start_with_rust_log(arguments, "")
    }

    /// Starts a server with this value of `RUST_LOG`.
    fn start_with_rust_log(arguments: &[&str], rust_log: &str) -> Self {
        let mut command = serve(arguments);
        command.env("RUST_LOG", rust_log);
        Self::start_command(command)
    }

    /// Starts a server with this command.
    fn start_command(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut page = BufReader::new(child.stdout.take().unwrap());
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let [mut http, mut grpc, mut gateway, mut admin, mut text] = [const { String::new() }; 5];
        loop {
            let mut line = String::new();
            if page.read_line(&mut line).unwrap() == 0 {
                let mut errors = String::new();
                log.read_to_string(&mut errors).unwrap();
                panic!("the server ended: {errors}");
            }
            text += &line;
            let address = || line.split("://").nth(1).unwrap().split('/').next().unwrap().trim().to_owned();
            match line.split_whitespace().next() {
                Some("check") => http = address(),
                Some("Envoy") => grpc.push_str(line.split_whitespace().nth(2).unwrap()),
                Some("gateway") => gateway = address(),
                Some("metrics") => admin = address(),
                Some("rules") => return Self { child, log, _start_page: page, page: text, http, grpc, gateway, admin },
                _ => {}
            }
        }
    }

    fn with_rules(path: &Path) -> Self {
        Self::start(&["--rules", path.to_str().unwrap()])
    }

    /// Waits for a log line with this text.
    fn wait_for_log(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the server ended");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Stops the server and returns the log lines that were not read yet.
    fn stop_and_read_log(&mut self) -> Vec<String> {
        self.signal("TERM");
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        assert!(self.child.wait().unwrap().success());
        log.lines().map(str::to_owned).collect()
    }

    /// The value of a metric, by the beginning of its line.
    fn metric(&self, name: &str) -> u64 {
        let (_, page) = ask(&self.admin, "GET", "/metrics", "");
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is missing: {page}")).trim().parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// The answer to a call: its status and its body.
    fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let (status, body) = ask(&self.http, "POST", path, body);
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    fn check(&self, body: &str) -> Value {
        let (status, answer) = self.post("/v1/check", body);
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

/// Looks until `look` returns a value, with pauses, so that a waiting test takes no CPU time from the others. The bound ends only a hang.
#[expect(clippy::disallowed_methods, reason = "the only pause: there is no event of another process to wait for")]
fn wait_for<T>(problem: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..60_000 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("{problem}");
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server on free ports.
fn serve(arguments: &[&str]) -> Command {
    serve_in(Command::new(env!("CARGO_BIN_EXE_tidegate")), arguments)
}

/// The server without any address.
fn serve_alone() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("serve").env_remove("RUST_LOG");
    command
}

/// The server on free ports, which may open this many files.
fn serve_with_files(files: u32, arguments: &[&str]) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={files}:{files}")).arg(env!("CARGO_BIN_EXE_tidegate"));
    serve_in(command, arguments)
}

fn serve_in(mut command: Command, arguments: &[&str]) -> Command {
    command.arg("serve").args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(arguments).env_remove("RUST_LOG");
    command
}

/// The error of a server that cannot start.
fn refused(arguments: &[&str]) -> String {
    let output = serve(arguments).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    error
}

/// Sends a request on a connection of its own, and returns the status and body of the response.
fn ask(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    ask_with(address, method, path, &[], body)
}

/// Sends a request with further header lines. Those for the host and the content type replace the usual ones.
fn ask_with(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
    let (status, _, body) = exchange(address, method, path, headers, body);
    (status, body)
}

/// The same, with the header lines of the response.
fn exchange(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = format!("content-length: {}", body.len());
    let usual = ["host: localhost", "content-type: application/json"].into_iter();
    let is_replaced = |line: &&str| headers.iter().any(|other| other.split(':').next() == line.split(':').next());
    let usual: Vec<&str> = usual.filter(|line| !is_replaced(line)).collect();
    let head = [&usual, &["connection: close", &length][..], headers].concat().join("\r\n");
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
}
