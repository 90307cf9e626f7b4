//! `ServerUnderTest`: a running server to measure, with the requests for it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{fs, io};

use tidegate_server::command::Failure;

use super::nginx;
use super::options::{BenchArgs, Target};
use super::request_template::RequestTemplate;
use crate::traffic::ServerProcess;

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

/// Port 0: the system chooses a free port.
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";

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

/// A build of this program.
#[derive(Clone)]
pub(crate) struct Program(PathBuf);

/// A running server, and the requests for it.
pub(crate) struct ServerUnderTest {
    pub(crate) kind: ServerKind,
    pub(crate) process: ServerProcess,
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
        match self {
            Self::Baseline => "rls_do_nothing",
            Self::Rls { envoy_files: true } => "rls_envoy_files",
            Self::Rls { envoy_files: false } => "rls_rule_file",
            Self::Check => "check",
            Self::Gateway { limits: false } => "gateway",
            Self::Gateway { limits: true } => "gateway_limits",
            Self::GatewayLease => "gateway_lease",
            Self::Nginx { limits: false } => "nginx",
            Self::Nginx { limits: true } => "nginx_limits",
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Baseline => "do-nothing tonic server",
            Self::Rls { envoy_files: true } => "rate limit service, Envoy's files",
            Self::Rls { envoy_files: false } => "rate limit service, rule file",
            Self::Check => "check API",
            Self::Gateway { limits: false } => "gateway, limits off",
            Self::Gateway { limits: true } => "gateway, limits on",
            Self::GatewayLease => "gateway, a lease for each request",
            Self::Nginx { limits: false } => "nginx",
            Self::Nginx { limits: true } => "nginx, limit_req",
        }
    }

    pub(crate) const fn is_nginx(self) -> bool {
        matches!(self, Self::Nginx { .. })
    }

    const fn target(self) -> Target {
        match self {
            Self::Baseline | Self::Rls { .. } => Target::Rls,
            Self::Check => Target::Check,
            Self::Gateway { .. } | Self::GatewayLease => Target::Gateway,
            Self::Nginx { .. } => Target::Nginx,
        }
    }

    /// Starts a server of this kind; `None` if the program is not installed.
    fn start(self, folder: &Path, upstream: SocketAddr) -> Result<Option<(ServerProcess, RequestTemplate)>, Failure> {
        let program = Program::this()?;
        Ok(Some(match self {
            Self::Baseline => {
                let mut process = program.start(&["bench", "serve-nothing"])?;
                let template = RequestTemplate::rate_limits(process.read_address("Envoy RLS")?);
                (process, template)
            }
            Self::Rls { envoy_files } => {
                let mut process = if envoy_files {
                    serve_files(&program, folder, &[])?
                } else {
                    serve(&program, folder, RULES, &[])?
                };
                let template = RequestTemplate::rate_limits(process.read_address("Envoy RLS")?);
                (process, template)
            }
            Self::Check => {
                let mut process = serve(&program, folder, RULES, &[])?;
                let template = RequestTemplate::check(process.read_address("check API")?);
                (process, template)
            }
            Self::Gateway { limits } => {
                serve_gateway(&program, folder, upstream, if limits { GATEWAY_RULES } else { NO_RULES }, limits)?
            }
            Self::GatewayLease => serve_gateway(&program, folder, upstream, GATEWAY_LEASE_RULES, true)?,
            Self::Nginx { limits } => {
                let Some((process, address)) = nginx::start(folder, upstream, limits)? else { return Ok(None) };
                (process, RequestTemplate::gateway(address, false))
            }
        }))
    }
}

/// Starts `serve` with these rules and flags.
pub(crate) fn serve(program: &Program, folder: &Path, rules: &str, more: &[&str]) -> Result<ServerProcess, Failure> {
    let file = folder.join(format!("rules-{}.yaml", fs::read_dir(folder).map_or(0, Iterator::count)));
    fs::write(&file, rules).map_err(|error| write_failure(&error))?;
    let file = file.display().to_string();
    let arguments =
        ["serve", "--rules", &file, "--http", ANY_PORT, "--grpc", ANY_PORT, "--admin", ANY_PORT, "--drain", "0"];
    program.start(&[&arguments, more].concat())
}

/// Starts a gateway with these rules, and makes the requests for it.
fn serve_gateway(
    program: &Program,
    folder: &Path,
    upstream: SocketAddr,
    rules: &str,
    limits: bool,
) -> Result<(ServerProcess, RequestTemplate), Failure> {
    let url = format!("http://{upstream}");
    let mut process = serve(program, folder, rules, &["--gateway", ANY_PORT, "--upstream", &url])?;
    let template = RequestTemplate::gateway(process.read_address("gateway")?, limits);
    Ok((process, template))
}

/// Starts `serve` with Envoy's configuration files and these flags.
pub(crate) fn serve_files(program: &Program, folder: &Path, more: &[&str]) -> Result<ServerProcess, Failure> {
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

impl Program {
    /// This program.
    pub(crate) fn this() -> Result<Self, Failure> {
        std::env::current_exe().map(Self).map_err(|error| start_failure(&error))
    }

    /// The program at `path`.
    pub(crate) const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Starts it without the environment variables of the user.
    pub(crate) fn start(&self, arguments: &[&str]) -> Result<ServerProcess, Failure> {
        let started = ServerProcess::start(Command::new(&self.0).args(arguments).env_clear());
        started.map_err(|error| start_failure(&error))
    }
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
