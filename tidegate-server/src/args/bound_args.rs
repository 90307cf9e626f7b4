//! `BoundArgs`: the flags that bound what clients may use. They hold the values only.

use std::time::Duration;

use clap::Args;

use super::flag_values::{seconds, whole_number};
use super::serve_args::{LIMITS_HEADING, MAX_SECONDS};
use crate::doors::gateway::GatewayOptions;
use crate::engine::client_resolver::Networks;
use crate::lifecycle::descriptors::FileDescriptorBounds;
use crate::listen::ConnectionLimits;

/// The least number of connections that one client may have by default.
const MIN_CONNECTIONS_PER_CLIENT: usize = 16;

/// The flags.
#[derive(Args)]
pub(crate) struct BoundArgs {
    /// Maximum number of connections from one client (an address of IPv4, a /64 of IPv6) to each address; further ones are
    /// closed [default: a tenth of --max-connections]
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_CONNECTIONS_PER_CLIENT", value_parser = whole_number::<usize>(1..=u64::MAX), help_heading = LIMITS_HEADING)]
    pub(crate) max_connections_per_client: Option<usize>,
    /// Maximum number of requests under way through the gateway; further ones get 503
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_REQUESTS", value_parser = whole_number::<usize>(1..=u64::MAX), default_value_t = 1024, help_heading = LIMITS_HEADING)]
    pub(crate) max_requests: usize,
    /// Maximum number of requests of one client under way through the gateway; further ones get 429 [default: an eighth of
    /// --max-requests]
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_REQUESTS_PER_CLIENT", value_parser = whole_number::<usize>(1..=u64::MAX), help_heading = LIMITS_HEADING)]
    pub(crate) max_requests_per_client: Option<usize>,
    /// Networks to which the maxima for one client do not apply, besides the trusted proxies of the rule file, such as
    /// 10.0.0.0/8,192.0.2.7; `none` for none
    #[arg(long, value_name = "NETWORKS", env = "TIDEGATE_EXEMPT_CLIENTS", default_value = "127.0.0.0/8,::1", help_heading = LIMITS_HEADING)]
    pub(crate) exempt_clients: Networks,
    /// Time for which a client may keep the server waiting: to read a response, or to send a body through the gateway
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_CLIENT_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "60s", help_heading = LIMITS_HEADING)]
    pub(crate) client_timeout: Duration,
    /// Bytes that make up for a second of --client-timeout: a client at this rate is never cut off; with 0, each byte starts that
    /// time anew
    #[arg(long, value_name = "N", env = "TIDEGATE_MIN_RATE", value_parser = whole_number::<u64>(0..=u64::MAX), default_value_t = 1024, help_heading = LIMITS_HEADING)]
    pub(crate) min_rate: u64,
    /// Time within which a body through the gateway must arrive, at any rate, if the response does not begin before
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_UPLOAD_TIMEOUT", value_parser = seconds(1..=MAX_SECONDS), default_value = "1h", help_heading = LIMITS_HEADING)]
    pub(crate) upload_timeout: Duration,
    /// Maximum number of connections to --upstream, and of requests at it; further requests wait for up to five seconds
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_UPSTREAM_CONNECTIONS", value_parser = whole_number::<usize>(1..=u64::MAX), default_value_t = 768, help_heading = LIMITS_HEADING)]
    pub(crate) max_upstream_connections: usize,
    /// Maximum number of requests that wait for --upstream; further ones get 503
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_UPSTREAM_QUEUE", value_parser = whole_number::<usize>(0..=u64::MAX), default_value_t = 256, help_heading = LIMITS_HEADING)]
    pub(crate) max_upstream_queue: usize,
}

impl BoundArgs {
    /// The limits on connections, of which an address has `max_connections`.
    pub(crate) fn connection_limits(&self, limits: ConnectionLimits, max_connections: usize) -> ConnectionLimits {
        let by_default = (max_connections / 10).max(MIN_CONNECTIONS_PER_CLIENT).min(max_connections.div_ceil(2));
        limits
            .with_max_connections(max_connections)
            .with_max_connections_per_client(self.max_connections_per_client.unwrap_or(by_default))
            .with_max_requests(self.max_requests)
            .with_max_requests_per_client(self.max_requests_per_client.unwrap_or(self.max_requests / 8))
            .with_write_timeout(self.client_timeout)
            .with_min_rate(self.min_rate)
    }

    /// The bounds of requests through the gateway.
    pub(crate) const fn gateway_options(&self, options: GatewayOptions, plan: &FileDescriptorBounds) -> GatewayOptions {
        options
            .with_upload_timeout(self.upload_timeout)
            .with_upload_pace(self.client_timeout, self.min_rate)
            .with_max_upstream_connections(plan.upstream)
            .with_max_upstream_queue(self.max_upstream_queue)
    }
}
