//! The flags of `tidegate serve`. Each is also a variable `TIDEGATE_…`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};

use super::envoy::{EnvoyArgs, share};
use super::logging::LogArgs;
use crate::failure::Failure;
use crate::gateway::{Gateway, GatewayOptions};
use crate::listen::{ConnectionLimits, TlsFiles};
use crate::secret::SecretArgs;

/// Serve decisions: the check API, Envoy's rate limit service, a gateway, and metrics beside them
///
/// Without flags it keeps its state in memory and limits by an example. SIGHUP, or a change of the file, reads the rules
/// anew; a file with errors changes nothing. SIGTERM or Ctrl-C ends it once open requests have ended.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// The rule file; left out, an example
    #[arg(long, value_name = "FILE", env = "TIDEGATE_RULES")]
    pub(crate) rules: Option<PathBuf>,
    /// Where the state is: `memory:` for this process alone, or redis://host:port, or with
    /// redis+sentinel:// or redis+cluster:// several; rediss for TLS
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true, default_value = "memory:")]
    pub(crate) store: String,
    /// How many milliseconds a decision may take on a shared store; then each rule does what its `on_failure` says
    #[arg(long, value_name = "MS", env = "TIDEGATE_STORE_BUDGET", value_parser = value_parser!(u64).range(1..=60_000), default_value_t = 25)]
    pub(crate) store_budget: u64,
    /// How many instances share the store, for as long as they have not counted each other there: while it fails, a rule
    /// with `on_failure: local` has one of so many shares
    #[arg(long, value_name = "N", env = "TIDEGATE_INSTANCES", value_parser = value_parser!(u32).range(1..), default_value_t = 1)]
    pub(crate) instances: u32,
    /// Where the check API listens
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_HTTP", default_value = "127.0.0.1:8080")]
    pub(crate) http: SocketAddr,
    /// Where Envoy's rate limit service listens
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GRPC", default_value = "127.0.0.1:8081")]
    pub(crate) grpc: SocketAddr,
    /// Where the gateway listens; it needs --upstream
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GATEWAY")]
    pub(crate) gateway: Option<SocketAddr>,
    /// What the gateway is in front of, such as `http://127.0.0.1:3000`
    #[arg(long, value_name = "URL", env = "TIDEGATE_UPSTREAM")]
    pub(crate) upstream: Option<http::Uri>,
    /// Where the metrics are
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN", default_value = "127.0.0.1:8082")]
    pub(crate) admin: SocketAddr,
    /// From which share of a limit on requests count as near it in the metrics
    #[arg(long, value_name = "SHARE", env = "TIDEGATE_NEAR_LIMIT", default_value_t = 0.8, value_parser = share)]
    pub(crate) near_limit: f64,
    /// The certificate of --http, --grpc and --gateway, PEM; read anew when it changes
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CERT", help_heading = "TLS")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_KEY", help_heading = "TLS")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Whose certificates callers of --http and --grpc must have, PEM; clients of the gateway are not asked
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CLIENT_CA", help_heading = "TLS")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// How many connections each address takes; others wait
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS", default_value_t = 10_000, help_heading = LIMITS)]
    pub(crate) max_connections: usize,
    /// How many bytes the head of a request may have
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_HEADER_BYTES", default_value_t = 65_536, help_heading = LIMITS)]
    pub(crate) max_header_bytes: usize,
    /// How many bytes the body of a request through the gateway may have; left out, any number
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_BODY_BYTES", help_heading = LIMITS)]
    pub(crate) max_body_bytes: Option<u64>,
    /// How many seconds a client has to send the head of a request
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_HEADER_TIMEOUT", value_parser = value_parser!(u64).range(1..=YEAR), default_value_t = 30, help_heading = LIMITS)]
    pub(crate) header_timeout: u64,
    /// How many seconds a call of --http, --grpc or --admin may take, its body included
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_REQUEST_TIMEOUT", value_parser = value_parser!(u64).range(1..=YEAR), default_value_t = 30, help_heading = LIMITS)]
    pub(crate) request_timeout: u64,
    /// How many seconds the answer of --upstream may take to begin
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_UPSTREAM_TIMEOUT", value_parser = value_parser!(u64).range(1..=YEAR), default_value_t = 60, help_heading = LIMITS)]
    pub(crate) upstream_timeout: u64,
    /// How many seconds open requests have to end after a signal to stop
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_DRAIN", value_parser = value_parser!(u64).range(0..=YEAR), default_value_t = 10)]
    pub(crate) drain: u64,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) envoy: EnvoyArgs,
}

const LIMITS: &str = "Limits on clients";

/// Longer than anybody waits, in seconds.
const YEAR: u64 = 365 * 86_400;

impl ServeArgs {
    /// What a connection may do.
    pub(crate) fn limits(&self) -> ConnectionLimits {
        ConnectionLimits::new()
            .with_header_timeout(Duration::from_secs(self.header_timeout))
            .with_drain_timeout(Duration::from_secs(self.drain))
            .with_max_header_bytes(self.max_header_bytes)
            .with_max_connections(self.max_connections)
    }

    /// The gateway and its address, if there is to be one. A config file can name one without the other.
    pub(crate) fn gateway(&self) -> Result<Option<(SocketAddr, Gateway)>, Failure> {
        let (address, upstream) = match (self.gateway, &self.upstream) {
            (Some(address), Some(upstream)) => (address, upstream),
            (None, None) => return Ok(None),
            _ => return Err(Failure::usage("--gateway and --upstream need each other")),
        };
        let mut options = GatewayOptions::new()
            .with_response_timeout(Duration::from_secs(self.upstream_timeout))
            .with_access_log(self.log.access_log);
        if let Some(bytes) = self.max_body_bytes {
            options = options.with_max_body_bytes(bytes);
        }
        let gateway = Gateway::new(upstream, options);
        Ok(Some((address, gateway.map_err(|error| Failure::usage(format!("--upstream: {error}")))?)))
    }

    /// The certificates, if there are to be any.
    pub(crate) fn tls(&self) -> Result<Option<TlsFiles>, Failure> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
            })),
            (None, None) if self.tls_client_ca.is_none() => Ok(None),
            _ => Err(Failure::usage("--tls-cert and --tls-key need each other, and --tls-client-ca needs both")),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve                                              # in memory, by an example
  tidegate serve --rules rules.yaml --store redis://cache:6379
  tidegate serve --rules rules.yaml --gateway 0.0.0.0:8000 --upstream http://127.0.0.1:3000
  tidegate serve --envoy-config ratelimit/config                # a drop-in for Envoy's own server
  TIDEGATE_HTTP=0.0.0.0:8080 tidegate serve --rules rules.yaml";
