//! `ServeArgs`: the flags of `tidegate serve`. Each is also a variable `TIDEGATE_…`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate_rules::FrontDoor;

use super::LIMITS_HEADING;
use super::deployment::SecretArgs;
use super::flag_values::{ListenAddress, MAX_SECONDS, listen_address, seconds, share, whole_number};
use crate::admin::{AdminAccess, AdminTokenArgs};
use crate::command::failure::Failure;
use crate::doors::check::acquire_calls::AcquireBounds;
use crate::doors::envoy::DEFAULT_MAX_DECISION_TIME;
use crate::doors::envoy::door::EnvoyArgs;
use crate::doors::gateway::{Gateway, GatewayOptions, UpstreamTlsArgs, upstream_address};
use crate::engine::client_resolver::Networks;
use crate::engine::ledger::ledger_args::LedgerArgs;
use crate::lifecycle::descriptors::{FileDescriptorBounds, raise_limit};
use crate::listen::{ConnectionLimits, TlsArgs, TlsFiles};
use crate::observe::log::logging::LogArgs;
use crate::store::StoreArgs;

/// Run the server: check API, forward-auth, Envoy's rate limit service, gateway and metrics
///
/// Without flags, it keeps state in memory and uses an example rule. It reloads the rules at SIGHUP and when the file
/// changes; a file with errors changes nothing. SIGTERM or Ctrl-C stops it after open requests have finished.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// The rule file; the default is an example
    #[arg(long, value_name = "FILE", env = "TIDEGATE_RULES")]
    pub(crate) rules: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Number of instances to assume until they have counted each other in the store: while the store fails, a rule with
    /// `on_failure: share` allows each instance its limit divided by this number
    #[arg(long, value_name = "N", env = "TIDEGATE_INSTANCES", value_parser = whole_number::<u32>(1..=u32::MAX as u64), default_value_t = 1)]
    pub(crate) instances: u32,
    /// Time that a reservation lasts unless it is committed or released before; the same on all instances
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_RESERVATION_TTL", value_parser = seconds(1..=MAX_RESERVATION_TTL_SECONDS), default_value = "5m")]
    pub(crate) reservation_ttl: Duration,
    /// Address of the check API; as for every address, 8080 and localhost:8080 are on loopback, :8080 is reached from outside, and `off`
    /// opens none
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_HTTP", value_parser = listen_address, default_value = "127.0.0.1:8080")]
    pub(crate) http: ListenAddress,
    /// Answer calls of the check API that no rule matches with 422 `no_rule`, unless they say `"strict": false`: a mistyped action or path
    /// would pass without a limit
    #[arg(long, env = "TIDEGATE_STRICT_CHECKS")]
    pub(crate) strict_checks: bool,
    /// Address of Envoy's rate limit service
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GRPC", value_parser = listen_address, default_value = "127.0.0.1:8081")]
    pub(crate) grpc: ListenAddress,
    /// Address of the gateway; needs --upstream [default: 127.0.0.1:8000 with --upstream]
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_GATEWAY", value_parser = listen_address)]
    pub(crate) gateway: Option<ListenAddress>,
    /// The service behind the gateway, such as `http://127.0.0.1:3000` or `https://api.example`; `h2c://` and `h2://` for HTTP/2
    #[arg(long, value_name = "URL", env = "TIDEGATE_UPSTREAM", value_parser = upstream_address)]
    pub(crate) upstream: Option<http::Uri>,
    /// Address of metrics, status, subjects and debug pages; an address other than loopback needs a token
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN", value_parser = listen_address, default_value = "127.0.0.1:8082")]
    pub(crate) admin: ListenAddress,
    /// Requests that use at least this share of a limit count as near it in the metrics
    #[arg(long, value_name = "SHARE", env = "TIDEGATE_NEAR_LIMIT", default_value_t = 0.8, value_parser = share)]
    pub(crate) near_limit: f64,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) limits: ConnectionLimits,
    /// Time that a call to --http, --grpc or --admin may take, including its body
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_REQUEST_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "30s", help_heading = LIMITS_HEADING, display_order = 5)]
    pub(crate) request_timeout: Duration,
    #[command(flatten)]
    pub(crate) waiting: AcquireBounds,
    /// Networks to which the maxima for one client do not apply, besides the trusted proxies of the rule file, such as
    /// 10.0.0.0/8,192.0.2.7; `none` for none
    #[arg(long, value_name = "NETWORKS", env = "TIDEGATE_EXEMPT_CLIENTS", default_value = "127.0.0.0/8,::1", help_heading = LIMITS_HEADING, display_order = 13)]
    pub(crate) exempt_clients: Networks,
    #[command(flatten)]
    pub(crate) upstream_tls: UpstreamTlsArgs,
    #[command(flatten)]
    pub(crate) admin_tokens: AdminTokenArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) gateway_options: GatewayOptions,
    #[command(flatten)]
    pub(crate) envoy: EnvoyArgs,
}

/// The longest time that a reservation can last: a day.
const MAX_RESERVATION_TTL_SECONDS: u64 = 24 * 60 * 60;

/// Address of the gateway if only `--upstream` is given.
const DEFAULT_GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000);

impl ServeArgs {
    /// The limits on connections, of which an address has `max_connections`.
    pub(crate) fn limits(&self, max_connections: usize) -> ConnectionLimits {
        self.limits.clone().with_max_connections(max_connections)
    }

    /// Raises the limit of file descriptors, and shares them between the addresses.
    pub(crate) fn descriptor_plan(&self) -> FileDescriptorBounds {
        let addresses = [self.http.is_some(), self.grpc.is_some(), self.has_gateway()];
        let addresses = addresses.into_iter().filter(|is_on| *is_on).count();
        let upstream = if self.has_gateway() { self.gateway_options.max_upstream_connections() } else { 0 };
        FileDescriptorBounds::new(raise_limit(), addresses, self.limits.max_connections(), upstream)
    }

    /// The maximum time for a decision of Envoy's rate limit service. A larger `--store-budget` counts only if it is given: the
    /// default fits the 20 ms that Envoy waits by default.
    pub(crate) fn envoy_budget(&self) -> Duration {
        let by_store = self.store.store_budget.unwrap_or_default().max(DEFAULT_MAX_DECISION_TIME);
        self.envoy.envoy_budget.unwrap_or(by_store)
    }

    /// The front ends that are not off. Fails if all are.
    pub(crate) fn front_doors(&self) -> Result<Vec<FrontDoor>, Failure> {
        let all = [
            (FrontDoor::Check, self.http.is_some()),
            (FrontDoor::ForwardAuth, self.http.is_some()),
            (FrontDoor::Envoy, self.has_envoy()),
            (FrontDoor::Gateway, self.has_gateway()),
        ];
        let doors: Vec<FrontDoor> = all.into_iter().filter(|(_, is_on)| *is_on).map(|(door, _)| door).collect();
        if doors.is_empty() {
            return Err(Failure::usage(
                "every front end is off, and no request would reach the limits: write --http 8080, --grpc 8081, or --gateway 8000 with \
                 --upstream",
            ));
        }
        Ok(doors)
    }

    /// Whether Envoy's service is not off: it has gRPC at one address, and HTTP at the other.
    pub(crate) const fn has_envoy(&self) -> bool {
        self.http.is_some() || self.grpc.is_some()
    }

    /// Whether the flags ask for a gateway.
    const fn has_gateway(&self) -> bool {
        match self.gateway {
            Some(address) => address.is_some(),
            None => self.upstream.is_some(),
        }
    }

    /// The gateway and its address, if the flags ask for one. What is said of one that is off has no effect.
    pub(crate) fn gateway(&self, plan: &FileDescriptorBounds) -> Result<Option<(SocketAddr, Gateway)>, Failure> {
        let address = self.gateway.unwrap_or(Some(DEFAULT_GATEWAY));
        let Some(address) = address else { return Ok(None) };
        self.upstream_tls.check(self.upstream.as_ref())?;
        let upstream = match &self.upstream {
            Some(upstream) => upstream,
            None if self.gateway.is_none() => return Ok(None),
            None => return Err(Failure::usage("--gateway needs --upstream: the URL of the service behind it")),
        };
        let options = self.gateway_options.clone().with_max_upstream_connections(plan.upstream);
        let options = options.with_upload_pace(self.limits.write_timeout(), self.limits.min_rate());
        Ok(Some((address, self.upstream_tls.gateway(upstream, options)?)))
    }

    /// Who may call the admin address, unless it is off. Fails if it is public and has no token.
    pub(crate) fn admin_access(&self) -> Result<Option<AdminAccess>, Failure> {
        self.admin.map(|address| AdminAccess::new(address, self.admin_tokens.clone())).transpose()
    }

    /// The certificate files of `--http` and `--grpc`, unless both are off.
    pub(crate) fn tls(&self) -> Result<Option<TlsFiles>, Failure> {
        Ok(self.tls.files()?.filter(|_| self.has_envoy()))
    }

    /// Those of the gateway, unless it is off. Its clients need no certificates.
    pub(crate) fn gateway_tls(&self) -> Result<Option<TlsFiles>, Failure> {
        let files = self.tls.files()?.filter(|_| self.has_gateway());
        Ok(files.map(|files| TlsFiles { client_ca: None, ..files }))
    }
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve                                              # in memory, with an example rule
  tidegate serve --rules rules.yaml --store redis://cache:6379
  tidegate serve --rules rules.yaml --gateway 0.0.0.0:8000 --upstream http://127.0.0.1:3000
  tidegate serve --rules billing.yaml --ledger sqlite:ledger.db  # quotas that touch money; needs TIDEGATE_SECRET
  tidegate serve --envoy-config ratelimit/config                # replaces Envoy's own server
  TIDEGATE_HTTP=0.0.0.0:8080 tidegate serve --rules rules.yaml";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Serve {
        #[command(flatten)]
        arguments: ServeArgs,
    }

    fn parse(line: &str) -> ServeArgs {
        Serve::try_parse_from(line.split_whitespace()).map_or_else(|error| panic!("{error}"), |serve| serve.arguments)
    }

    #[test]
    fn the_budget_of_envoy_is_15_ms_or_a_larger_store_budget_or_its_own_flag() {
        for (line, millis) in [
            ("serve", 15),
            ("serve --store-budget 10", 15),
            ("serve --store-budget 25", 25),
            ("serve --store-budget 100", 100),
            ("serve --store-budget 100 --envoy-budget 40", 40),
            ("serve --envoy-budget 5", 5),
            ("serve --envoy-budget 200", 200),
        ] {
            assert_eq!(parse(line).envoy_budget(), Duration::from_millis(millis), "{line}");
        }
    }

    #[test]
    fn the_gateway_listens_on_port_8000_of_loopback_if_only_the_upstream_is_given() {
        let gateway = |line: &str| {
            let arguments = parse(line);
            arguments
                .gateway(&arguments.descriptor_plan())
                .map(|gateway| gateway.map(|(address, _)| address.to_string()))
        };
        let address = |line: &str| gateway(line).unwrap();
        assert_eq!(address("serve"), None);
        assert_eq!(address("serve --upstream http://h:3000"), Some("127.0.0.1:8000".to_owned()));
        assert_eq!(address("serve --upstream http://h --gateway 0.0.0.0:80"), Some("0.0.0.0:80".to_owned()));
        assert_eq!(address("serve --upstream http://h --gateway off"), None);
        assert_eq!(address("serve --gateway off --upstream-ca /no/such/file"), None);
        let error = gateway("serve --gateway 0.0.0.0:80").unwrap_err();
        assert!(matches!(error, Failure::Usage(message) if message.starts_with("--gateway needs --upstream")));
    }

    #[test]
    fn a_server_has_the_front_ends_that_are_not_off_and_at_least_one() {
        use FrontDoor::{Check, Envoy, ForwardAuth, Gateway};
        for (line, expected) in [
            ("serve", &[Check, ForwardAuth, Envoy][..]),
            ("serve --upstream http://h --admin off", &[Check, ForwardAuth, Envoy, Gateway]),
            ("serve --upstream http://h --gateway off", &[Check, ForwardAuth, Envoy]),
            ("serve --grpc off", &[Check, ForwardAuth, Envoy]),
            ("serve --http off", &[Envoy]),
            ("serve --http off --grpc off --upstream http://h", &[Gateway]),
        ] {
            assert_eq!(parse(line).front_doors().unwrap(), expected, "{line}");
        }
        for line in ["serve --http off --grpc off", "serve --http off --grpc off --gateway off --upstream http://h"] {
            let error = parse(line).front_doors().unwrap_err();
            assert!(matches!(&error, Failure::Usage(message) if message.contains("write --http 8080")), "{error:?}");
        }
    }

    #[test]
    fn a_flag_for_tls_to_the_upstream_that_cannot_work_is_refused_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name).to_str().unwrap().to_owned()
        };
        let certificate = |name: &str| {
            let rcgen::CertifiedKey { cert, signing_key } =
                rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
            (file(&format!("{name}.pem"), &cert.pem()), file(&format!("{name}.key"), &signing_key.serialize_pem()))
        };
        let ((first, key), (_, other_key)) = (certificate("first"), certificate("other"));
        let empty = file("empty.pem", "no certificate\n");
        let https = "serve --upstream https://api.example";
        for (line, reason) in [
            (format!("{https} --upstream-ca /no/such/file"), "/no/such/file: No such file"),
            (format!("{https} --upstream-ca {empty}"), "empty.pem: the file does not contain a certificate"),
            (format!("{https} --upstream-ca {key}"), "first.key: the file does not contain a certificate"),
            (format!("{https} --upstream-cert {first}"), "--upstream-cert needs --upstream-key"),
            (format!("{https} --upstream-key {key}"), "--upstream-key needs --upstream-cert"),
            (format!("{https} --upstream-cert {first} --upstream-key {first}"), "does not contain a private key"),
            (format!("{https} --upstream-cert {first} --upstream-key {other_key}"), "does it belong to"),
            (format!("serve --upstream-ca {first}"), "--upstream-ca needs an --upstream with TLS"),
            (format!("serve --upstream http://h --upstream-ca {first}"), "--upstream-ca needs an --upstream with TLS"),
            (
                format!("serve --upstream h2c://h --upstream-cert {first} --upstream-key {key}"),
                "--upstream-cert needs an --upstream with TLS",
            ),
            ("serve --upstream https://a_b..c".to_owned(), "must be a host name or an IP address"),
        ] {
            let arguments = parse(&line);
            let error = arguments.gateway(&arguments.descriptor_plan()).unwrap_err();
            assert!(matches!(&error, Failure::Usage(message) if message.contains(reason)), "{line}: {error:?}");
        }
        let arguments = parse(&format!("{https} --upstream-ca {first} --upstream-cert {first} --upstream-key {key}"));
        assert!(arguments.gateway(&arguments.descriptor_plan()).is_ok());
    }

    #[test]
    fn one_client_has_a_part_of_the_connections_and_requests() {
        for (line, connections, requests) in [
            ("serve", 1000, 128),
            ("serve --max-connections 50 --max-requests 80", 16, 10),
            ("serve --max-connections 3 --max-requests 1", 2, 1),
            ("serve --max-connections 50 --max-connections-per-client 50 --max-requests-per-client 7", 50, 7),
        ] {
            let arguments = parse(line);
            let limits = arguments.limits(arguments.limits.max_connections());
            assert_eq!(
                (limits.max_connections_per_client(), limits.max_requests_per_client()),
                (connections, requests)
            );
        }
    }

    /// The defaults of the flags are those of the library.
    #[test]
    fn without_flags_the_bounds_are_the_default_ones() {
        let arguments = parse("serve");
        let (limits, default) = (arguments.limits(arguments.limits.max_connections()), ConnectionLimits::new());
        let numbers = |limits: &ConnectionLimits| {
            let clients = (limits.max_connections_per_client(), limits.max_requests_per_client());
            (limits.max_connections(), limits.max_requests(), clients, limits.write_timeout(), limits.min_rate())
        };
        assert_eq!(numbers(&limits), numbers(&default));
        // A signal to stop leaves requests less time than the library: 10 seconds.
        let sizes = |limits: &ConnectionLimits| (limits.header_timeout, limits.max_header_bytes);
        assert_eq!(sizes(&limits), sizes(&default));
        let options = GatewayOptions::new().with_upload_pace(limits.write_timeout(), limits.min_rate());
        assert_eq!(format!("{:?}", arguments.gateway_options), format!("{options:?}"));
    }
}
