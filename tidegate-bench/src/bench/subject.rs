//! `Subject`: a server that is measured, started and ready, and what it is asked. What is found of it is a [`Figure`]'s.
//!
//! [`Figure`]: super::figure::Figure

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::{fs, io};

use super::ask::Ask;
use super::nginx;
use super::options::{BenchArgs, Target};
use crate::traffic::Child;
use tidegate_server::command::Failure;

/// Limits that count every request and refuse none. Each descriptor meets one of them, and a check both.
const RULES: &str = "\
version: 1
rules:
  - id: client
    match: { action: bench, method: GET }
    per: [ip]
    token_bucket: { capacity: 1000000000, refill: 1000000/s }
    on_failure: open
  - id: endpoint
    match: { action: bench, path: '/api/*' }
    per: [attr:endpoint]
    token_bucket: { capacity: 1000000000, refill: 1000000/s }
    on_failure: open
";

/// The same two, as files of Envoy's reference server.
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

/// The same for the gateway: one for each client, as `limit_req` has one by address.
const GATEWAY_RULES: &str = "\
version: 1
rules:
  - id: client
    match: { path: '/api/*' }
    per: [ip]
    token_bucket: { capacity: 1000000000, refill: 1000000/s }
    on_failure: open
";

/// Any port that is free.
const FREE: &str = "127.0.0.1:0";

/// No limits.
const NO_RULES: &str = "version: 1\nrules: []\n";

/// What is measured, each with the name that programs know it by and the words for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nothing,
    /// By Envoy's files, or by a rule file.
    Rls {
        files: bool,
    },
    Check,
    Gateway {
        limits: bool,
    },
    Nginx {
        limits: bool,
    },
}

/// A server that is measured.
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) child: Child,
    pub(crate) ask: Arc<Ask>,
}

/// Starts all that were asked for, on the core of this thread. Without nginx, it is left out unless it was named.
pub(crate) fn start(arguments: &BenchArgs, folder: &Path, upstream: SocketAddr) -> Result<Vec<Subject>, Failure> {
    let mut subjects = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| arguments.wants(kind.target())) {
        match kind.start(folder, upstream)? {
            Some((child, ask)) => subjects.push(Subject { kind, child, ask: Arc::new(ask) }),
            None if arguments.targets.is_empty() => {}
            None => return Err(Failure::usage("there is no nginx on this machine; install it, or leave it out")),
        }
    }
    Ok(subjects)
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Nothing,
        Self::Rls { files: true },
        Self::Rls { files: false },
        Self::Check,
        Self::Gateway { limits: false },
        Self::Gateway { limits: true },
        Self::Nginx { limits: false },
        Self::Nginx { limits: true },
    ];

    /// The name in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "rls_do_nothing",
            Self::Rls { files: true } => "rls_envoy_files",
            Self::Rls { files: false } => "rls_rule_file",
            Self::Check => "check",
            Self::Gateway { limits: false } => "gateway",
            Self::Gateway { limits: true } => "gateway_limits",
            Self::Nginx { limits: false } => "nginx",
            Self::Nginx { limits: true } => "nginx_limits",
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Nothing => "do-nothing tonic server",
            Self::Rls { files: true } => "rate limit service, Envoy's files",
            Self::Rls { files: false } => "rate limit service, rule file",
            Self::Check => "check API",
            Self::Gateway { limits: false } => "gateway, limits off",
            Self::Gateway { limits: true } => "gateway, limits on",
            Self::Nginx { limits: false } => "nginx",
            Self::Nginx { limits: true } => "nginx, limit_req",
        }
    }

    pub(crate) const fn is_nginx(self) -> bool {
        matches!(self, Self::Nginx { .. })
    }

    const fn target(self) -> Target {
        match self {
            Self::Nothing | Self::Rls { .. } => Target::Rls,
            Self::Check => Target::Check,
            Self::Gateway { .. } => Target::Gateway,
            Self::Nginx { .. } => Target::Nginx,
        }
    }

    /// A server of this kind and what to ask it; none if there is no such program.
    fn start(self, folder: &Path, upstream: SocketAddr) -> Result<Option<(Child, Ask)>, Failure> {
        Ok(Some(match self {
            Self::Nothing => {
                let mut child = own(&["bench", "serve-nothing"])?;
                let ask = Ask::rate_limits(child.address("Envoy RLS")?);
                (child, ask)
            }
            Self::Rls { files } => {
                let mut child = if files { serve_files(folder)? } else { serve(folder, RULES, &[])? };
                let ask = Ask::rate_limits(child.address("Envoy RLS")?);
                (child, ask)
            }
            Self::Check => {
                let mut child = serve(folder, RULES, &[])?;
                let ask = Ask::check(child.address("check API")?);
                (child, ask)
            }
            Self::Gateway { limits } => {
                let rules = if limits { GATEWAY_RULES } else { NO_RULES };
                let url = format!("http://{upstream}");
                let mut child = serve(folder, rules, &["--gateway", FREE, "--upstream", &url])?;
                let ask = Ask::gateway(child.address("gateway")?, limits);
                (child, ask)
            }
            Self::Nginx { limits } => {
                let Some((child, address)) = nginx::start(folder, upstream, limits)? else { return Ok(None) };
                (child, Ask::gateway(address, false))
            }
        }))
    }
}

/// `tidegate serve` by these rules.
fn serve(folder: &Path, rules: &str, more: &[&str]) -> Result<Child, Failure> {
    let file = folder.join(format!("rules-{}.yaml", fs::read_dir(folder).map_or(0, Iterator::count)));
    fs::write(&file, rules).map_err(|error| unwritten(&error))?;
    let file = file.display().to_string();
    let words = ["serve", "--rules", &file, "--http", FREE, "--grpc", FREE, "--admin", FREE, "--drain", "0"];
    own(&[&words, more].concat())
}

/// `tidegate serve` by Envoy's files.
fn serve_files(folder: &Path) -> Result<Child, Failure> {
    let files = folder.join("envoy");
    fs::create_dir_all(&files).map_err(|error| unwritten(&error))?;
    fs::write(files.join("bench.yaml"), ENVOY_FILE).map_err(|error| unwritten(&error))?;
    serve(folder, NO_RULES, &["--envoy-config", &files.display().to_string()])
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::usage(format!("rules to measure with cannot be written: {error}"))
}

/// This program, without anybody's settings.
fn own(words: &[&str]) -> Result<Child, Failure> {
    let started =
        std::env::current_exe().and_then(|program| Child::start(Command::new(program).args(words).env_clear()));
    started.map_err(|error| Failure::usage(format!("tidegate cannot start itself: {error}")))
}

#[cfg(test)]
mod tests {
    use tidegate::Request;
    use tidegate_rules::RuleFile;

    use super::*;

    /// How many limits a request meets.
    fn met(rules: &str, request: &Request<'_>) -> usize {
        let file = RuleFile::parse("bench", rules).unwrap_or_else(|report| panic!("{report}"));
        file.rules().resolve(request).checks().len()
    }

    /// Trap: a descriptor that lacks what a rule counts by is still counted by it, with all others that lack it, and every
    /// call would then cost twice what it should.
    #[test]
    fn each_descriptor_or_request_meets_one_limit_and_a_check_two() {
        let asked = || Request::new("bench");
        let client = asked().with_attribute("ip", "198.18.0.1").with_attribute("method", "GET");
        let endpoint = asked().with_attribute("path", "/api/items/1").with_attribute("endpoint", "/api/items/1");
        assert_eq!((met(RULES, &client), met(RULES, &endpoint)), (1, 1));
        let both = client.with_attribute("path", "/api/items/1").with_attribute("endpoint", "/api/items/1");
        assert_eq!(met(RULES, &both), 2);
        let passing = Request::new("")
            .with_attribute("method", "GET")
            .with_attribute("path", "/api/items")
            .with_attribute("ip", "::1");
        assert_eq!((met(GATEWAY_RULES, &passing), met(NO_RULES, &passing)), (1, 0));
    }
}
