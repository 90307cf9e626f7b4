//! Envoy's Rate Limit Service over a real connection, with the memory store and a manual clock.

mod config_files;
mod descriptor_lookup;
mod http;
mod malformed_messages;
mod metadata;
mod modes;
mod refunds;
mod request_validation;
mod rules;
mod stats;
mod statuses;
mod store_failures;

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::spi::Store;
use tidegate::{Limiter, ManualClock, MemoryStore, RuleSet, Timestamp};
use tidegate_rules::RuleFile;
use tidegate_server::envoy::RateLimitClient;
use tidegate_server::envoy::messages::{
    Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, UInt64Value, Unit,
};
use tidegate_server::envoy::{ConfigHandle, EnvoyConfig, EnvoyOptions, EnvoyService};
use tidegate_tower::{Handle, LimitLayer};
use tonic::Status;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};

/// 20.5 seconds after the start of a minute.
pub(crate) fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_micros(1_700_000_000_500_000))
}

pub(crate) fn store(clock: &ManualClock) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new().with_clock(clock.clone()))
}

pub(crate) fn handle<S: Store + 'static>(rules: RuleSet, store: S) -> Handle<S> {
    LimitLayer::new(Limiter::new(rules, store)).handle()
}

pub(crate) fn no_rules() -> RuleSet {
    RuleSet::new([]).unwrap()
}

/// A gRPC client like Envoy.
pub(crate) struct EnvoyClient(RateLimitClient<Channel>);

impl EnvoyClient {
    pub(crate) async fn connect<S: Store + 'static>(service: EnvoyService<S>) -> Self {
        let address = serve(service);
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self(RateLimitClient::new(channel))
    }

    /// A service with an Envoy configuration, all or nothing.
    pub(crate) async fn with_config(yaml: &str) -> Self {
        Self::connect(service(yaml, &EnvoyOptions::default())).await
    }

    /// A service with an Envoy configuration in strict mode.
    pub(crate) async fn with_strict_config(yaml: &str) -> Self {
        Self::connect(service(yaml, &EnvoyOptions::default().with_strict(true)).with_strict(true)).await
    }

    /// A service with a rule file.
    pub(crate) async fn with_rules(yaml: &str) -> Self {
        let file = RuleFile::parse("rules.yaml", yaml).unwrap();
        Self::connect(EnvoyService::from_rules(handle(file.rules().clone(), store(&clock())))).await
    }

    pub(crate) async fn send(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.0.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// The response in short: the overall code, then each status.
    pub(crate) async fn summary(&mut self, request: RateLimitRequest) -> String {
        summarize(&self.send(request).await.unwrap())
    }
}

/// Serves on a free port, as long as the test runs.
pub(crate) fn serve<S: Store + 'static>(service: EnvoyService<S>) -> SocketAddr {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    tokio::spawn(Server::builder().add_service(service.into_server()).serve_with_incoming(incoming));
    address
}

pub(crate) fn service(yaml: &str, options: &EnvoyOptions) -> EnvoyService<Arc<MemoryStore>> {
    let config = EnvoyConfig::parse([("test.yaml", yaml)], options).unwrap();
    EnvoyService::from_config(handle(no_rules(), store(&clock())), ConfigHandle::new(config))
}

/// A request with one descriptor for each list of keys and values.
pub(crate) fn hit(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// The request with another number of hits for the descriptor at `index`.
pub(crate) fn with_hits(mut request: RateLimitRequest, index: usize, hits: u64) -> RateLimitRequest {
    request.descriptors[index].hits_addend = Some(UInt64Value { value: hits });
    request
}

pub(crate) fn summarize(response: &RateLimitResponse) -> String {
    let code = |code: i32| Code::try_from(code).unwrap().as_str_name();
    let status = |status: &DescriptorStatus| {
        let limit = status.current_limit.as_ref().map(|limit| {
            let name = if limit.name.is_empty() { String::new() } else { format!(" {}", limit.name) };
            format!("/{} {}{name}", limit.requests_per_unit, Unit::try_from(limit.unit).unwrap().as_str_name())
        });
        let reset = status.duration_until_reset.as_ref().map(|reset| format!(" {}s", reset.seconds));
        let numbers = format!("{}{}", limit.unwrap_or_default(), reset.unwrap_or_default());
        format!("{} {}{numbers}", code(status.code), status.limit_remaining)
    };
    let statuses: Vec<String> = response.statuses.iter().map(status).collect();
    format!("{}: {}", code(response.overall_code), statuses.join(", "))
}
