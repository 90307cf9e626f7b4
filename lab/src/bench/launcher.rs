//! `Launcher`: starts the servers that are measured.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use conformance::process::Process;
use conformance::serve_process::{ANY_PORT, ServeProcess, parse_address};
use tidegate_server::command::Failure;

use super::nginx;
use crate::traffic::RedisServer;

/// Limits that count every request and deny none. Each descriptor matches one rule, a check matches both.
pub(super) const RULES: &str = "\
version: 1
rules:
  - id: client
    match: { action: bench, method: GET }
    per: [ip]
    token_bucket: { capacity: 1000000000, refill: 1000000/s }
  - id: endpoint
    match: { action: bench, path: '/api/*' }
    per: [attr:endpoint]
    token_bucket: { capacity: 1000000000, refill: 1000000/s }
";

/// The same limits in the configuration format of Envoy's reference server.
const ENVOY_FILE: &str = "\
domain: bench
descriptors:
  - key: ':method'
    descriptors:
      - key: remote_address
        rate_limit: { unit: second, requests_per_unit: 1000000000 }
  - key: ':path'
    descriptors:
      - key: endpoint
        rate_limit: { unit: second, requests_per_unit: 1000000000 }
";

/// Limits for the gateway: one by client address, as with `limit_req`.
pub(super) const GATEWAY_RULES: &str = "\
version: 1
rules:
  - id: client
    match: { path: '/api/*' }
    per: [ip]
    token_bucket: { capacity: 1000000000, refill: 1000000/s }
";

/// The same with a lease that the gateway holds until the response has ended.
pub(super) const GATEWAY_LEASE_RULES: &str = "\
version: 1
rules:
  - id: client
    match: { path: '/api/*' }
    per: [ip]
    concurrency: { max: 60000, lease: 30s }
";

/// No limits at all.
pub(super) const NO_RULES: &str = "version: 1\nrules: []\n";

/// Starts servers on the CPU core of this thread.
#[derive(Clone)]
pub(super) struct Launcher {
    /// The build of this program that serves.
    program: PathBuf,
    /// The folder of configuration files.
    folder: PathBuf,
    /// What gateways forward to.
    upstream: SocketAddr,
}

/// A running server.
pub(super) struct ServerUnderTest {
    pub(super) title: &'static str,
    pub(super) address: SocketAddr,
    pub(super) process: Process,
    /// The Redis server that it uses.
    pub(super) redis: Option<Arc<RedisServer>>,
}

impl Launcher {
    /// Starts this program, with files in `folder`.
    pub(super) fn new(folder: &Path, upstream: SocketAddr) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|error| start_failure(&error))?;
        Ok(Self { program, folder: folder.to_owned(), upstream })
    }

    /// The same with another build of this program.
    pub(super) fn with_program(&self, program: &Path) -> Self {
        Self { program: program.to_owned(), ..self.clone() }
    }

    /// Starts `serve` with these rules and flags. `line` begins the line of output with the address to measure.
    pub(super) fn serve(
        &self,
        title: &'static str,
        line: &str,
        rules: &str,
        flags: &[&str],
    ) -> Result<ServerUnderTest, Failure> {
        let number = fs::read_dir(&self.folder).map_or(0, Iterator::count);
        let file = self.write(&format!("rules-{number}.yaml"), rules)?;
        let mut command = ServeProcess::command(&self.program);
        start(title, line, command.arg("--rules").arg(file).args(["--drain", "0"]).args(flags))
    }

    /// Starts a gateway in front of the upstream.
    pub(super) fn gateway(&self, title: &'static str, rules: &str, flags: &[&str]) -> Result<ServerUnderTest, Failure> {
        let upstream = format!("http://{}", self.upstream);
        self.serve(title, "gateway", rules, &[&["--gateway", ANY_PORT, "--upstream", &upstream], flags].concat())
    }

    /// Starts the rate limit service with Envoy's configuration files.
    pub(super) fn envoy_files(&self, title: &'static str, flags: &[&str]) -> Result<ServerUnderTest, Failure> {
        let file = self.write("envoy/bench.yaml", ENVOY_FILE)?;
        let folder = file.with_file_name("").display().to_string();
        self.serve(title, "Envoy RLS", NO_RULES, &[&["--envoy-config", &folder], flags].concat())
    }

    /// Starts a rate limit service that does nothing.
    pub(super) fn do_nothing(&self) -> Result<ServerUnderTest, Failure> {
        let mut command = Command::new(&self.program);
        start("do-nothing tonic server", "Envoy RLS", command.args(["bench", "serve-nothing"]))
    }

    /// Starts nginx in front of the upstream; `None` if it is not installed.
    pub(super) fn nginx(&self, title: &'static str, limits: bool) -> Result<Option<ServerUnderTest>, Failure> {
        let started = nginx::start(&self.folder, self.upstream, limits)?;
        Ok(started.map(|(process, address)| ServerUnderTest { title, address, process, redis: None }))
    }

    /// Writes a file of the configuration, and returns its path.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let file = self.folder.join(name);
        let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folder.and_then(|()| fs::write(&file, text));
        written.map_err(|error| Failure::usage(format!("cannot write the rules of the measurement: {error}")))?;
        Ok(file)
    }
}

impl ServerUnderTest {
    /// The CPU time that it has spent so far, and that of its Redis server.
    pub(super) fn spent(&self) -> Result<[Duration; 2], Failure> {
        let failed = |error| Failure::usage(format!("cannot read the CPU time of a server: {error}"));
        let redis = self.redis.as_ref().map_or(Ok(Duration::ZERO), |redis| redis.server.process().cpu_time());
        Ok([self.process.cpu_time().map_err(failed)?, redis.map_err(failed)?])
    }

    /// CPU microseconds since `before` for each of `requests`: its own, and those of its Redis server.
    pub(super) fn micros_since(&self, before: [Duration; 2], requests: u64) -> Result<[f64; 2], Failure> {
        let now = self.spent()?;
        let each = |index: usize| now[index].saturating_sub(before[index]).as_secs_f64() * 1e6 / requests.max(1) as f64;
        Ok([each(0), each(1)])
    }

    /// The failure of a measurement.
    pub(super) fn no_figures(&self, reason: impl Display) -> Failure {
        Failure::usage(format!("{}: {reason}; there are no figures", self.title))
    }
}

/// The failure of a server that exits before it listens, with its output.
pub(super) fn exit_failure(output: &str) -> Failure {
    Failure::usage(format!("a server to be measured exited:\n{}", output.trim_end()))
}

fn start_failure(error: &io::Error) -> Failure {
    Failure::usage(format!("cannot start tidegate: {error}"))
}

/// Starts a command without the environment variables of the user, and waits until it prints its address.
fn start(title: &'static str, line: &str, command: &mut Command) -> Result<ServerUnderTest, Failure> {
    let mut process = Process::try_start(command.env_clear()).map_err(|error| start_failure(&error))?;
    let line = process.wait_for_line(line).map_err(|output| exit_failure(&output))?;
    let address = parse_address(&line).ok_or_else(|| exit_failure(&line))?;
    Ok(ServerUnderTest { title, address, process, redis: None })
}

#[cfg(test)]
mod tests {
    use tidegate::Request;
    use tidegate_rules::RuleFile;

    use super::*;

    /// The number of limits that apply to a request.
    fn matching_limits(rules: &str, request: &Request<'_>) -> usize {
        let file = RuleFile::parse("bench", rules).unwrap_or_else(|report| panic!("{report}"));
        file.rules().resolve(request).checks().len()
    }

    /// Trap: a descriptor without the attribute that a rule counts by is still counted, together with all others that lack
    /// it. Every call would then cost twice what it should.
    #[test]
    fn each_descriptor_matches_one_limit_and_a_check_matches_two() {
        let request = || Request::new("bench");
        let client = request().with_attribute("ip", "198.18.0.1").with_attribute("method", "GET");
        let endpoint = request().with_attribute("path", "/api/items/1").with_attribute("endpoint", "/api/items/1");
        assert_eq!((matching_limits(RULES, &client), matching_limits(RULES, &endpoint)), (1, 1));
        let both = client.with_attribute("path", "/api/items/1").with_attribute("endpoint", "/api/items/1");
        assert_eq!(matching_limits(RULES, &both), 2);
        let forwarded = Request::new("")
            .with_attribute("method", "GET")
            .with_attribute("path", "/api/items")
            .with_attribute("ip", "::1");
        assert_eq!((matching_limits(GATEWAY_RULES, &forwarded), matching_limits(NO_RULES, &forwarded)), (1, 0));
    }
}
