//! `ServeArgs`: the flags of `tidegate serve`. Each is also a variable `TIDEGATE_…`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate::spi::{DEFAULT_MAX_KEYS, Namespace};
use tidegate_redis::RedisOptions;
use tidegate_rules::FrontDoor;

use super::bound_args::BoundArgs;
use super::flag_values::{ListenAddress, listen_address, millis, seconds, whole_number};
use super::namespace_args::NamespaceArgs;
use super::secret::SecretArgs;
use super::upstream_args::UpstreamArgs;
use crate::admin::{AdminAccess, AdminTokenArgs};
use crate::command::failure::Failure;
use crate::doors::check::waiting::WaitingBounds;
use crate::doors::envoy::DEFAULT_MAX_DECISION_TIME;
use crate::doors::envoy::door::{EnvoyArgs, share};
use crate::doors::gateway::{Gateway, GatewayOptions, upstream_address};
use crate::engine::ledger::ledger_args::LedgerArgs;
use crate::lifecycle::descriptors::{FileDescriptorBounds, raise_limit};
use crate::listen::{ConnectionLimits, MIN_HEADER_BYTES, TlsFiles};
use crate::observe::log::logging::LogArgs;

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
    /// The store: `memory:` for this process alone, redis://host:port, or several servers with redis+sentinel:// or
    /// redis+cluster://; rediss for TLS
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true, default_value = "memory:")]
    pub(crate) store: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Time after which a server of a shared store that owes a reply counts as failed; then each rule does what its `on_failure`
    /// says [default: 25ms]
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_STORE_BUDGET", value_parser = millis(1..=60_000))]
    pub(crate) store_budget: Option<Duration>,
    /// Maximum time that a decision waits to be sent while a shared store answers others; after it, this instance is overloaded,
    /// and each rule does what its `on_overload` says
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_QUEUE_WAIT", value_parser = millis(1..=60_000), default_value = "250ms")]
    pub(crate) queue_wait: Duration,
    /// Maximum number of buckets that the memory store holds, and the memory of an instance while a shared store fails; further
    /// subjects share overflow buckets. Each takes 64 to 128 bytes, and with a sliding log nine more for each request. Three quarters of the
    /// room are for unauthenticated subjects
    #[arg(long, value_name = "N", env = "TIDEGATE_MEMORY_KEYS", value_parser = whole_number::<usize>(1..=MAX_MEMORY_KEYS), default_value_t = DEFAULT_MAX_KEYS)]
    pub(crate) memory_keys: usize,
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
    /// Certificate of --http, --grpc and --gateway, PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CERT", help_heading = "TLS")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_KEY", help_heading = "TLS")]
    pub(crate) tls_key: Option<PathBuf>,
    /// CA that must have signed the client certificates, PEM; required on --http and --grpc, not on the gateway
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CLIENT_CA", help_heading = "TLS")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Maximum number of connections to each address; further ones wait
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS", value_parser = whole_number::<usize>(1..=u64::MAX), default_value_t = 10_000, help_heading = LIMITS_HEADING)]
    pub(crate) max_connections: usize,
    /// Maximum size of a request head, in bytes
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_HEADER_BYTES", value_parser = whole_number::<usize>(MIN_HEADER_BYTES as u64..=u64::MAX), default_value_t = 65_536, help_heading = LIMITS_HEADING)]
    pub(crate) max_header_bytes: usize,
    /// Maximum size of a request body through the gateway, in bytes; the default is unlimited
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_BODY_BYTES", value_parser = whole_number::<u64>(0..=u64::MAX), help_heading = LIMITS_HEADING)]
    pub(crate) max_body_bytes: Option<u64>,
    /// Time within which a client must send the head of a request
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_HEADER_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "30s", help_heading = LIMITS_HEADING)]
    pub(crate) header_timeout: Duration,
    /// Time that a call to --http, --grpc or --admin may take, including its body
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_REQUEST_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "30s", help_heading = LIMITS_HEADING)]
    pub(crate) request_timeout: Duration,
    /// Maximum time that a call of /v1/acquire waits; a call that asks for more waits for this long. The time of
    /// --request-timeout is added to it
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_MAX_WAIT", value_parser = seconds(0..=MAX_WAIT_SECONDS), default_value = "30s", help_heading = LIMITS_HEADING)]
    pub(crate) max_wait: Duration,
    /// Maximum number of calls of /v1/acquire under way; further ones get 503. Three quarters of them are for unauthenticated subjects
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_WAITING", value_parser = whole_number::<u32>(1..=MAX_WAITING), default_value_t = 1024, help_heading = LIMITS_HEADING)]
    pub(crate) max_waiting: u32,
    /// Maximum number of them that wait for the same limits, and of one subject [default: an eighth of --max-waiting]
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_WAITING_PER_SUBJECT", value_parser = whole_number::<u32>(1..=MAX_WAITING), help_heading = LIMITS_HEADING)]
    pub(crate) max_waiting_per_subject: Option<u32>,
    /// Time within which the response of --upstream must begin
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_UPSTREAM_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "60s", help_heading = LIMITS_HEADING)]
    pub(crate) upstream_timeout: Duration,
    /// Time that open requests have to finish after a signal to stop
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_DRAIN", value_parser = seconds(0..=MAX_SECONDS), default_value = "10s")]
    pub(crate) drain: Duration,
    #[command(flatten)]
    pub(crate) upstream_tls: UpstreamArgs,
    #[command(flatten)]
    pub(crate) admin_tokens: AdminTokenArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,
    #[command(flatten)]
    pub(crate) envoy: EnvoyArgs,
}

pub(crate) const LIMITS_HEADING: &str = "Limits on clients";

/// The longest time that a reservation can last: a day.
const MAX_RESERVATION_TTL_SECONDS: u64 = 24 * 60 * 60;

/// The largest room of the memory store.
const MAX_MEMORY_KEYS: u64 = 1_000_000_000;

/// Address of the gateway if only `--upstream` is given.
const DEFAULT_GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000);

/// Longest time that a call may wait.
const MAX_WAIT_SECONDS: u64 = 3600;

/// The most calls that may wait: half of those that may be under way, so that checks do not depend on them.
const MAX_WAITING: u64 = 4096;

/// Longest time that a flag accepts.
pub(crate) const MAX_SECONDS: u64 = 365 * 86_400;

impl ServeArgs {
    /// The limits on connections, of which an address has `max_connections`.
    pub(crate) fn limits(&self, max_connections: usize) -> ConnectionLimits {
        let limits = ConnectionLimits::new()
            .with_header_timeout(self.header_timeout)
            .with_drain_timeout(self.drain)
            .with_max_header_bytes(self.max_header_bytes);
        self.bounds.connection_limits(limits, max_connections)
    }

    /// Raises the limit of file descriptors, and shares them between the addresses.
    pub(crate) fn descriptor_plan(&self) -> FileDescriptorBounds {
        let addresses = [self.http.is_some(), self.grpc.is_some(), self.has_gateway()];
        let addresses = addresses.into_iter().filter(|is_on| *is_on).count();
        let upstream = if self.has_gateway() { self.bounds.max_upstream_connections } else { 0 };
        FileDescriptorBounds::new(raise_limit(), addresses, self.max_connections, upstream)
    }

    /// How many calls may wait.
    pub(crate) fn waiting_bounds(&self) -> WaitingBounds {
        let per_subject = self.max_waiting_per_subject.unwrap_or((self.max_waiting / 8).max(1));
        WaitingBounds { total: self.max_waiting as usize, per_subject: per_subject as usize }
    }

    /// The namespace of this deployment.
    pub(crate) const fn namespace(&self) -> &Namespace {
        &self.namespace.namespace
    }

    /// How a shared store uses its servers.
    pub(crate) fn redis_options(&self) -> RedisOptions {
        let options = RedisOptions::new().with_namespace(self.namespace().clone()).with_queue_wait(self.queue_wait);
        match self.store_budget {
            Some(timeout) => options.with_timeout(timeout),
            None => options,
        }
    }

    /// The maximum time for a decision of Envoy's rate limit service. A larger `--store-budget` counts only if it is given: the
    /// default fits the 20 ms that Envoy waits by default.
    pub(crate) fn envoy_budget(&self) -> Duration {
        let by_store = self.store_budget.unwrap_or_default().max(DEFAULT_MAX_DECISION_TIME);
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
        let mut options =
            GatewayOptions::new().with_response_timeout(self.upstream_timeout).with_access_log(self.log.access_log);
        if let Some(bytes) = self.max_body_bytes {
            options = options.with_max_body_bytes(bytes);
        }
        Ok(Some((address, self.upstream_tls.gateway(upstream, self.bounds.gateway_options(options, plan))?)))
    }

    /// Who may call the admin address, unless it is off. Fails if it is public and has no token.
    pub(crate) fn admin_access(&self) -> Result<Option<AdminAccess>, Failure> {
        self.admin.map(|address| AdminAccess::new(address, self.admin_tokens.clone())).transpose()
    }

    /// The certificate files of `--http` and `--grpc`, unless both are off.
    pub(crate) fn tls(&self) -> Result<Option<TlsFiles>, Failure> {
        Ok(self.tls_files()?.filter(|_| self.has_envoy()))
    }

    /// Those of the gateway, unless it is off. Its clients need no certificates.
    pub(crate) fn gateway_tls(&self) -> Result<Option<TlsFiles>, Failure> {
        let files = self.tls_files()?.filter(|_| self.has_gateway());
        Ok(files.map(|files| TlsFiles { client_ca: None, ..files }))
    }

    /// The certificate files, if the flags name them.
    fn tls_files(&self) -> Result<Option<TlsFiles>, Failure> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
            })),
            (Some(_), None) => Err(Failure::usage("--tls-cert needs --tls-key: the private key of the certificate")),
            (None, Some(_)) => Err(Failure::usage("--tls-key needs --tls-cert: the certificate of the private key")),
            (None, None) if self.tls_client_ca.is_none() => Ok(None),
            (None, None) => Err(Failure::usage("--tls-client-ca needs --tls-cert and --tls-key")),
        }
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
    fn the_room_of_the_memory_store_is_a_flag() {
        assert_eq!(
            (parse("serve").memory_keys, parse("serve --memory-keys 2000000").memory_keys),
            (1_000_000, 2_000_000)
        );
        for wrong in ["0", "-1", "1e6", "1000000001", ""] {
            let error = Serve::try_parse_from(["serve", &format!("--memory-keys={wrong}")])
                .err()
                .map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.contains("--memory-keys")), "{wrong}");
        }
    }

    #[test]
    fn one_subject_has_an_eighth_of_the_calls_that_may_wait() {
        for (line, total, per_subject) in [
            ("serve", 1024, 128),
            ("serve --max-waiting 4", 4, 1),
            ("serve --max-waiting 4096 --max-waiting-per-subject 4096", 4096, 4096),
        ] {
            let bounds = parse(line).waiting_bounds();
            assert_eq!((bounds.total, bounds.per_subject), (total, per_subject), "{line}");
        }
        assert_eq!(usize::try_from(MAX_WAITING), Ok(crate::listen::MAX_CALLS / 2));
        for wrong in ["--max-waiting=4097", "--max-waiting=0", "--max-wait=3601", "--max-waiting-per-subject=0"] {
            assert!(Serve::try_parse_from(["serve", wrong]).is_err(), "{wrong}");
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
            let limits = arguments.limits(arguments.max_connections);
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
        let (limits, default) = (arguments.limits(arguments.max_connections), ConnectionLimits::new());
        let numbers = |limits: &ConnectionLimits| {
            let clients = (limits.max_connections_per_client(), limits.max_requests_per_client());
            (limits.max_connections(), limits.max_requests(), clients, limits.write_timeout(), limits.min_rate())
        };
        assert_eq!(numbers(&limits), numbers(&default));
        assert_eq!(arguments.bounds.max_upstream_connections, GatewayOptions::new().max_upstream_connections());
        assert_eq!(arguments.bounds.max_upstream_queue, GatewayOptions::new().max_upstream_queue());
    }

    #[test]
    fn without_flags_the_store_has_its_default_times() {
        let times = |options: RedisOptions| (options.timeout(), options.queue_wait());
        assert_eq!(times(parse("serve").redis_options()), times(RedisOptions::new()));
        let options = parse("serve --store-budget 100 --queue-wait 40").redis_options();
        assert_eq!(times(options), (Duration::from_millis(100), Duration::from_millis(40)));
    }
}
