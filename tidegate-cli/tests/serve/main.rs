//! `tidegate serve` as a process: where it listens, what it answers, how it reads its rules anew, and how it ends.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod api;
mod bad_input;
mod envoy;
mod forward_auth;
mod hosts;
mod life;
mod openapi;
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

/// A server that runs, and what it says.
struct Running {
    child: Child,
    said: BufReader<ChildStderr>,
    http: String,
    grpc: String,
    gateway: String,
    admin: String,
}

impl Running {
    /// Starts a server on free ports.
    fn start(arguments: &[&str]) -> Self {
        let mut child = serve(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let [mut http, mut grpc, mut gateway, mut admin] = [const { String::new() }; 4];
        loop {
            let line = line(&mut said);
            let address = || line.split("://").nth(1).unwrap().split('/').next().unwrap().trim().to_owned();
            match line.split_whitespace().next() {
                Some("check") => http = address(),
                Some("Envoy") => grpc.push_str(line.split_whitespace().nth(2).unwrap()),
                Some("gateway") => gateway = address(),
                Some("metrics") => admin = address(),
                Some("rules") => return Self { child, said, http, grpc, gateway, admin },
                _ => {}
            }
        }
    }

    fn with_rules(path: &Path) -> Self {
        Self::start(&["--rules", path.to_str().unwrap()])
    }

    /// Waits until it says something.
    fn hear(&mut self, text: &str) -> String {
        loop {
            let line = line(&mut self.said);
            if line.contains(text) {
                return line;
            }
        }
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

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server on free ports.
fn serve(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("serve").args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(arguments);
    command
}

/// What a server says that cannot start.
fn refused(arguments: &[&str]) -> String {
    let done = serve(arguments).output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{told}");
    told
}

fn line(said: &mut BufReader<ChildStderr>) -> String {
    let mut line = String::new();
    assert!(said.read_line(&mut line).unwrap() > 0, "the server ended");
    line
}

/// A request of its own connection.
fn ask(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
