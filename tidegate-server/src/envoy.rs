//! Envoy's Rate Limit Service, version 3: descriptors in, statuses out. Its words stay in here, and no semantics: what is
//! decided is a [`Plan`](tidegate::spi::Plan), and who decides it is the limiter that all doors share.
//!
//! ```text
//! RateLimitRequest ──▶ matched (reference YAML) │ rules (our file) ──▶ Prepared ──▶ Store ──▶ statuses ──▶ response
//!                        └── lookup ◀── config ◀── written ◀── YAML
//! ```
//!
//! Limits come from one of two places:
//!
//! - **The rule file.** The domain is the action, and the attribute `domain`. Each entry is an attribute under its key, and
//!   the first of a key counts. `remote_address` is also the `ip`; `:path`, `:method` and `:authority` are also the `path`,
//!   the `method` and the `host`; what stands after a `?` in a path is the `query`. An entry for a header is named by the
//!   descriptor key, so `header:x-api-key` is what a rule reads that counts by that header.
//! - **The YAML of the reference server**, unchanged: a directory of files ([`EnvoyConfig::load`]).
//!
//! A request passes if all its descriptors do, and one that is refused consumes nothing. In *strict* mode everything is
//! as the reference server does it: refused hits count, each descriptor for itself, and errors have the status UNKNOWN.
//!
//! A descriptor with `hits_addend: 0` only looks: it is judged as one more hit would be, and consumes nothing. One with
//! `is_negative_hits` gives its hits back, as far as they were counted in the window of now.

mod calls;
mod config;
mod http;
mod json;
mod lookup;
mod matched;
mod metadata;
mod options;
mod pattern;
mod prepared;
mod problem;
mod rules;
mod service;
mod stats;
mod statuses;
mod unit;
mod waits;
mod written;

pub(crate) use calls::{Call, Calls, unimplemented};
pub use config::{ConfigHandle, EnvoyConfig};
pub use http::{admin_router, router};
pub use options::EnvoyOptions;
pub use problem::{ConfigErrors, ConfigProblem};
pub use service::{LARGEST_MESSAGE, MOST_DESCRIPTORS, MOST_ENTRIES, RateLimits};
pub use stats::{MOST_SERIES, Stats};

/// The messages, under names of a bearable length.
mod pb {
    pub(super) use envoy_types::pb::envoy::config::core::v3::HeaderValue;
    pub(super) use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    pub(super) use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    pub(super) use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
        Code, DescriptorStatus, RateLimit, rate_limit::Unit,
    };
    pub(super) use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
        RateLimitService, RateLimitServiceServer,
    };
    pub(super) use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
    pub(super) use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
    pub(super) use envoy_types::pb::google::protobuf::value::Kind as ValueKind;
    pub(super) use envoy_types::pb::google::protobuf::{Duration, ListValue, Struct, UInt64Value, Value};
}
