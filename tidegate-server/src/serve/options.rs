//! The flags of `tidegate serve`. Each is also a variable `TIDEGATE_…`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::envoy::EnvoyArgs;
use crate::secret::SecretArgs;

/// Serve decisions: the check API, Envoy's rate limit service, a gateway, and metrics beside them
///
/// Without flags it keeps its state in memory and limits by an example. SIGHUP, or a change of the file, reads the rules
/// anew; a file with errors changes nothing. SIGTERM or Ctrl-C ends it once open requests have ended.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// The rule file; left out, an example
    #[arg(long, value_name = "FILE", env = "TIDEGATE_RULES")]
    pub(crate) rules: Option<PathBuf>,
    /// Where the state is: `memory:` for this process alone, or redis://host:port
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true, default_value = "memory:")]
    pub(crate) store: String,
    /// Where the check API listens
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_HTTP", default_value = "127.0.0.1:8080")]
    pub(crate) http: SocketAddr,
    /// Where Envoy's rate limit service listens
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GRPC", default_value = "127.0.0.1:8081")]
    pub(crate) grpc: SocketAddr,
    /// Where the gateway listens; it needs --upstream
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GATEWAY", requires = "upstream")]
    pub(crate) gateway: Option<SocketAddr>,
    /// What the gateway is in front of, such as `http://127.0.0.1:3000`
    #[arg(long, value_name = "URL", env = "TIDEGATE_UPSTREAM", requires = "gateway")]
    pub(crate) upstream: Option<http::Uri>,
    /// Where the metrics are
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN", default_value = "127.0.0.1:8082")]
    pub(crate) admin: SocketAddr,
    /// How many seconds open requests have to end after a signal to stop
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_DRAIN", default_value_t = 10)]
    pub(crate) drain: u64,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) envoy: EnvoyArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve                                              # in memory, by an example
  tidegate serve --rules rules.yaml --store redis://cache:6379
  tidegate serve --rules rules.yaml --gateway 0.0.0.0:8000 --upstream http://127.0.0.1:3000
  tidegate serve --envoy-config ratelimit/config                # a drop-in for Envoy's own server
  TIDEGATE_HTTP=0.0.0.0:8080 tidegate serve --rules rules.yaml";
