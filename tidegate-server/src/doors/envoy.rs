//! Envoy's Rate Limit Service, version 3. It translates descriptors into plans for the limiter that all front ends share, and
//! decisions into statuses. Envoy's terms are used in this module only.
//!
//! ```text
//! RateLimitRequest ──▶ resolve (Envoy YAML) │ rules (rule file) ──▶ RequestPlan ──▶ Limiter ──▶ statuses ──▶ response
//!                        └── descriptor_tree ◀── config ◀── config_reader ◀── YAML
//! ```
//!
//! Limits come from one of two sources:
//!
//! - **The rule file.** The domain is the action, and the attribute `domain`. Each entry of a descriptor is an attribute; the
//!   first entry of a key counts. `remote_address` also sets `ip`; `:path`, `:method` and `:authority` also set `path`,
//!   `method` and `host`; the part of a path after `?` sets `query`. For a rule that counts by a header, name the descriptor
//!   key like the attribute, such as `header:x-api-key`.
//! - **YAML files of the reference server**, unchanged, in a directory ([`EnvoyConfig::load`]).
//!
//! A request passes if all its descriptors pass; a denied request consumes nothing. *Strict* mode behaves like the reference
//! server: denied hits count, each descriptor is decided on its own, and errors have the status UNKNOWN.
//!
//! A descriptor with `hits_addend: 0` is a peek: it is decided like one more hit, and consumes nothing. One with
//! `is_negative_hits` refunds its hits, at most those counted in the current window. There is no receipt for them, so whoever may
//! send it is trusted: Envoy over gRPC, and `/json` only if that is [switched on](router_with_refunds).

mod client;
mod config;
mod config_reader;
mod deadline;
mod descriptor_tree;
pub(crate) mod door;
pub(crate) mod grpc;
mod grpc_server;
mod http;
mod json;
mod message_bounds;
/// The messages of the protocol, for tests and benchmarks: a program has types of its own for them, from the protocol files of Envoy.
#[doc(hidden)]
pub mod messages;
mod metadata;
mod options;
mod pattern;
mod problem;
mod request_plan;
mod resolve;
mod rules;
mod service;
mod stats;
mod statuses;
mod unit;

pub use client::RateLimitClient;
pub use config::{ConfigHandle, EnvoyConfig};
pub(crate) use deadline::DEFAULT_MAX_DECISION_TIME;
pub use grpc_server::{GrpcFuture, GrpcServer};
pub(crate) use grpc_server::{SHOULD_RATE_LIMIT_PATH, unimplemented};
pub use http::{admin_router, router, router_with_refunds};
pub use options::EnvoyOptions;
pub use problem::{ConfigErrors, ConfigProblem};
pub use service::{EnvoyService, MAX_DESCRIPTORS, MAX_ENTRIES, MAX_MESSAGE_BYTES};
pub use stats::{MAX_SERIES, Stats};
