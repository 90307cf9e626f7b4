//! `ServerUnderTest`: a running server to measure, with the requests for it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{fs, io};

use conformance::process::Process;
use conformance::serve_process::{ANY_PORT, ServeProcess, parse_address};
use tidegate_server::command::Failure;

use super::nginx;
use super::options::{BenchArgs, Target};
use super::request_template::RequestTemplate;
use crate::traffic::exit_failure;

/// Limits that count every request and deny none. Each descriptor matches one rule, a check matches both.
pub(crate) const RULES: &str = "\
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
const GATEWAY_RULES: &str = "\
version: 1
rules:
  - id: client
    match: { path: '/api/*' }
    per: [ip]
    token_bucket: { capacity: 1000000000, refill: 1000000/s }
";

/// The same with a lease that the gateway holds until the response has ended.
const GATEWAY_LEASE_RULES: &str = "\
version: 1
rules:
  - id: client
    match: { path: '/api/*' }
    per: [ip]
    concurrency: { max: 60000, lease: 30s }
";

/// No limits at all.
const NO_RULES: &str = "version: 1\nrules: []\n";

/// The servers that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Baseline,
    /// The rate limit service, with Envoy's configuration files or with a rule file.
    Rls {
        envoy_files: bool,
    },
    Check,
    Gateway {
        limits: bool,
    },
    GatewayLease,
    Nginx {
        limits: bool,
    },
}

/// A running server, and the requests for it.
pub(crate) struct ServerUnderTest {
    pub(crate) kind: ServerKind,
    pub(crate) process: Process,
    pub(crate) template: Arc<RequestTemplate>,
}

/// Starts the chosen servers on the CPU core of this thread. A missing nginx is an error only if it was named.
pub(crate) fn start(
    arguments: &BenchArgs,
    folder: &Path,
    upstream: SocketAddr,
) -> Result<Vec<ServerUnderTest>, Failure> {
    let mut servers = Vec::new();
    for kind in ServerKind::ALL.into_iter().filter(|kind| arguments.includes(kind.target())) {
        match kind.start(folder, upstream)? {
            Some((process, template)) => {
                servers.push(ServerUnderTest { kind, process, template: Arc::new(template) });
            }
            None if arguments.targets.is_empty() => {}
            None => return Err(Failure::usage("nginx is not installed; install it, or leave it out")),
        }
    }
    Ok(servers)
}

impl ServerKind {
    const ALL: [Self; 9] = [
        Self::Baseline,
        Self::Rls { envoy_files: true },
        Self::Rls { envoy_files: false },
        Self::Check,
        Self::Gateway { limits: false },
        Self::Gateway { limits: true },
        Self::GatewayLease,
        Self::Nginx { limits: false },
        Self::Nginx { limits: true },
    ];

    /// The name in JSON output.
    pub(crate) const fn name(self) -> &'static str {
        self.entry().0
    }

    pub(crate) const fn title(self) -> &'static str {
        self.entry().1
    }

    pub(crate) const fn is_nginx(self) -> bool {
        matches!(self, Self::Nginx { .. })
    }

    const fn target(self) -> Target {
        self.entry().2
    }

    const fn entry(self) -> (&'static str, &'static str, Target) {
        match self {
            Self::Baseline => ("rls_do_nothing", "do-nothing tonic server", Target::Rls),
            Self::Rls { envoy_files: true } => ("rls_envoy_files", "rate limit service, Envoy's files", Target::Rls),
            Self::Rls { envoy_files: false } => ("rls_rule_file", "rate limit service, rule file", Target::Rls),
            Self::Check => ("check", "check API", Target::Check),
            Self::Gateway { limits: false } => ("gateway", "gateway, limits off", Target::Gateway),
            Self::Gateway { limits: true } => ("gateway_limits", "gateway, limits on", Target::Gateway),
            Self::GatewayLease => ("gateway_lease", "gateway, a lease for each request", Target::Gateway),
            Self::Nginx { limits: false } => ("nginx", "nginx", Target::Nginx),
            Self::Nginx { limits: true } => ("nginx_limits", "nginx, limit_req", Target::Nginx),
        }
    }

    /// Starts a server of this kind; `None` if the program is not installed.
    fn start(self, folder: &Path, upstream: SocketAddr) -> Result<Option<(Process, RequestTemplate)>, Failure> {
        let program = this_program()?;
        let serve = |rules: &str, more: &[&str]| serve(&program, folder, rules, more);
        let gateway = |rules: &str, limits: bool| {
            let process = serve(rules, &["--gateway", ANY_PORT, "--upstream", &format!("http://{upstream}")])?;
            listen(process, "gateway", |address| RequestTemplate::gateway(address, limits))
        };
        let started = match self {
            Self::Baseline => listen(serve_nothing(&program)?, "Envoy RLS", RequestTemplate::rate_limits),
            Self::Rls { envoy_files: true } => {
                listen(serve_files(&program, folder, &[])?, "Envoy RLS", RequestTemplate::rate_limits)
            }
            Self::Rls { envoy_files: false } => listen(serve(RULES, &[])?, "Envoy RLS", RequestTemplate::rate_limits),
            Self::Check => listen(serve(RULES, &[])?, "check API", RequestTemplate::check),
            Self::Gateway { limits } => gateway(if limits { GATEWAY_RULES } else { NO_RULES }, limits),
            Self::GatewayLease => gateway(GATEWAY_LEASE_RULES, true),
            Self::Nginx { limits } => {
                let Some((process, address)) = nginx::start(folder, upstream, limits)? else { return Ok(None) };
                Ok((process, RequestTemplate::gateway(address, false)))
            }
        };
        started.map(Some)
    }
}

/// Waits until a server listens, and makes the requests for it. `line` begins the line of output with its address.
fn listen(
    mut process: Process,
    line: &str,
    template: impl FnOnce(SocketAddr) -> RequestTemplate,
) -> Result<(Process, RequestTemplate), Failure> {
    let address = read_address(&mut process, line)?;
    Ok((process, template(address)))
}

/// Waits for the line of output that begins with `start`, and parses the address in it.
pub(crate) fn read_address(process: &mut Process, start: &str) -> Result<SocketAddr, Failure> {
    let line = process.wait_for_line(start).map_err(|output| exit_failure(&output))?;
    parse_address(&line).ok_or_else(|| exit_failure(&line))
}

/// This program.
pub(crate) fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| start_failure(&error))
}

/// Starts `serve` of a build of this program with these rules and flags.
pub(crate) fn serve(program: &Path, folder: &Path, rules: &str, more: &[&str]) -> Result<Process, Failure> {
    let file = folder.join(format!("rules-{}.yaml", fs::read_dir(folder).map_or(0, Iterator::count)));
    fs::write(&file, rules).map_err(|error| write_failure(&error))?;
    start_command(ServeProcess::command(program).arg("--rules").arg(file).args(["--drain", "0"]).args(more))
}

/// Starts `serve` with Envoy's configuration files and these flags.
pub(crate) fn serve_files(program: &Path, folder: &Path, more: &[&str]) -> Result<Process, Failure> {
    let files = folder.join("envoy");
    fs::create_dir_all(&files).map_err(|error| write_failure(&error))?;
    fs::write(files.join("bench.yaml"), ENVOY_FILE).map_err(|error| write_failure(&error))?;
    serve(program, folder, NO_RULES, &[&["--envoy-config", &files.display().to_string()], more].concat())
}

fn write_failure(error: &io::Error) -> Failure {
    Failure::usage(format!("cannot write the rules of the measurement: {error}"))
}

fn start_failure(error: &io::Error) -> Failure {
    Failure::usage(format!("cannot start tidegate: {error}"))
}

/// Starts the server that does nothing.
pub(crate) fn serve_nothing(program: &Path) -> Result<Process, Failure> {
    start_command(Command::new(program).args(["bench", "serve-nothing"]))
}

/// Starts a command without the environment variables of the user.
fn start_command(command: &mut Command) -> Result<Process, Failure> {
    Process::try_start(command.env_clear()).map_err(|error| start_failure(&error))
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
