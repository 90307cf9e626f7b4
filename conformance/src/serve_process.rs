//! `ServeProcess`: a `tidegate serve` process on free ports, which it prints.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;

use crate::process::Process;

/// Port 0: the system chooses a free port.
pub const ANY_PORT: &str = "127.0.0.1:0";

/// The line of the start page that is printed when all addresses listen.
const LAST_LINE: &str = "rules ";

#[derive(Debug)]
pub struct ServeProcess {
    process: Process,
    start_page: StartPage,
}

/// What a server prints first.
#[derive(Debug)]
pub struct StartPage(String);

impl ServeProcess {
    /// The command `serve` of a program, on free ports.
    pub fn command(program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["serve", "--http", ANY_PORT, "--grpc", ANY_PORT, "--admin", ANY_PORT]);
        command
    }

    /// Starts a server, and waits until it listens.
    pub fn start(command: &mut Command) -> Self {
        let mut process = Process::start(command);
        if let Err(output) = process.wait_for_line(LAST_LINE) {
            panic!("tidegate has ended: {output}");
        }
        Self { start_page: StartPage(process.output()), process }
    }

    /// The check API.
    pub fn http(&self) -> SocketAddr {
        self.start_page.address("check API")
    }

    /// The rate limit service for Envoy.
    pub fn grpc(&self) -> SocketAddr {
        self.start_page.address("Envoy RLS")
    }

    /// Metrics and administration.
    pub fn admin(&self) -> SocketAddr {
        self.start_page.address("metrics")
    }

    pub fn gateway(&self) -> SocketAddr {
        self.start_page.address("gateway")
    }
}

impl StartPage {
    /// That of a process that may have just been started, once it listens.
    pub fn find(process: &Process) -> Option<Self> {
        process.find_line(LAST_LINE).map(|_| Self(process.output()))
    }

    /// Where it listens under this name.
    pub fn address(&self, name: &str) -> SocketAddr {
        let line = self.0.lines().find(|line| line.starts_with(name));
        line.and_then(parse_address).unwrap_or_else(|| panic!("no address of the {name}: {}", self.0))
    }
}

impl Deref for ServeProcess {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for ServeProcess {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The first word that is a socket address, with or without `http://` and a path.
pub fn parse_address(text: &str) -> Option<SocketAddr> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix("http://").unwrap_or(word).split('/').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_parsed_from_the_start_page_of_a_server() {
        let expected = Some("127.0.0.1:8081".parse().unwrap());
        assert_eq!(parse_address("  127.0.0.1:8081 (gRPC)\n"), expected);
        assert_eq!(
            parse_address("  http://127.0.0.1:8081/v1/check   (described in http://127.0.0.1:1/openapi.json)"),
            expected
        );
        assert_eq!(parse_address("    http://127.0.0.1:8081\n"), expected);
        assert_eq!(parse_address("nowhere"), None);
    }
}
