//! Rate limits for any HTTP service that is a [`tower_service::Service`], such as those of axum, hyper and tonic, for the
//! whole service or for single routes: [Tidegate](tidegate) as a tower layer.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
//! use tidegate_tower::LimitLayer;
//!
//! let api = Limit::token_bucket(20, Rate::per_second(10)?)?;
//! let exports = Limit::token_bucket(2, Rate::per_minute(1)?)?;
//! let rules = RuleSet::new([
//!     Rule::new("api", api).with_per(["header:x-api-key"]),
//!     Rule::new("exports", exports).with_action("export").with_per(["header:x-api-key"]),
//! ])?;
//! let limits = LimitLayer::new(Limiter::new(rules, MemoryStore::new()));
//!
//! let app: Router = Router::new()
//!     .route("/rides", get(async || "a ride").layer(limits.clone()))
//!     .route("/exports", get(async || "an export").layer(limits.with_action("export")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How a request is handled
//!
//! ```text
//! http::Request ──▶ tidegate::Request ──▶ Limiter ──▶ delay ──▶ inner service ──▶ correct cost ──▶ http::Response
//!                   attributes that          │                                                     + limit headers
//!                   the rules read           ├── denied: 429, or RESOURCE_EXHAUSTED in gRPC
//!                                            └── store failed: 503, or admitted with `DegradedMode`
//! ```
//!
//! - **Attributes.** Rules count by attributes: `method`, `path`, `query` (as sent), `host` (in its [normal
//!   form](tidegate::attributes::normalize_host)), `ip` (the TCP peer, see [`LimitLayer::with_peer`]), `header:NAME` (of
//!   [lists](tidegate::attributes::is_list_header) all lines joined), `body` (see [`BufferBody`]), `request:size` (of the
//!   body, if it is known). Every other name comes from [`LimitLayer::with_attributes`] or, through
//!   [`Attributes`], from earlier middleware. A client can send any header: count by one only if a proxy in front of the
//!   service sets or verifies it. Inside a nested axum router the path lacks its prefix, so put the layer around the outer
//!   router.
//! - **Paths and methods.** A path that servers read in several ways, such as `/api%2Flogin`, must pass the rules of each of
//!   its [readings](tidegate::attributes::PathReadings). Refused with 400: a path with more than four readings, a known method
//!   in other letters (`post`), and the target `*` for other methods than `OPTIONS`.
//! - **Allowed.** A request that a leaky bucket delays waits for its slot; meanwhile it releases the readiness of the inner
//!   service, such as a permit. If the client disconnects before that, the request is
//!   [refunded](tidegate::Ending::Refund), unless others wait behind it. The response gets the headers of the rules' [`HeaderPolicy`](tidegate::http::HeaderPolicy), unless the inner service or an inner layer has written such
//!   headers. A request to which no rule applies passes unchanged.
//! - **Slots.** A request under a concurrency limit holds its slot until the [body](ResponseBody) of its response ends, also while it is
//!   delayed. The slots of all requests are renewed together, by a task that the first one spawns on the runtime of tokio. A request
//!   whose slot is lost ends: with 503, or with [`LeaseLost`] as the error of its body. The extension [`HeldLease`](tidegate::grants::HeldLease)
//!   of the request lets a handler hold the slot for longer than the response, such as for an upgraded connection.
//! - **Denied.** 429 with headers by the policy and a body in the [format](tidegate::http::ErrorFormat) of the rule; the inner service is
//!   not called. Requests with the content type of gRPC or gRPC-Web get the status `RESOURCE_EXHAUSTED` and the headers as metadata.
//! - **Store failed.** If a rule of the request is closed on failure, 503 (`UNAVAILABLE` in gRPC). Otherwise the rules
//!   decide without the store; an admitted request has the extension [`DegradedMode`]. There are no limit headers then. The
//!   failure is reported to the limiter's [`Observer`](tidegate::spi::Observer).
//! - **Bodies without a length** cost as much as the rules assume for them. The inner service finds the size in the extension
//!   [`AssumedBodySize`], must not accept more, and may state the actual size.
//! - **Actual cost.** If the cost is known only from the response, a rule names the response header with it
//!   ([`Rule::with_cost_header`](tidegate::Rule::with_cost_header)), or [`LimitLayer::with_actual_cost`] computes it.
//!
//! Errors of the inner service pass through unchanged; the layer has none of its own.
//!
//! # One limiter for all clones
//!
//! Servers clone a service for each connection. All clones of a layer and of its services share one limiter, so a limit
//! holds over all connections. [`LimitLayer::handle`] replaces the limiter while the server runs, with its rules and header
//! policy.
//!
//! # Modules
//!
//! In the order in which a request passes them: `layer` (settings) and `handle` (the shared limiter), `buffer_body` (reads
//! bodies), `service` (handles a request), `degraded_mode`, `canonical_request` (refuses ambiguous requests), `attribute_sources`, `attributes` and `body_size` (from HTTP to attributes), `decision_slot`
//! (decisions for logs), `lease_renewal` (slots), `readiness` (delays), `limit_headers`, `response_body` and `grpc` (responses),
//! `future`.

mod layer;
pub use layer::LimitLayer;
mod handle;
pub use handle::Handle;
mod buffer_body;
pub use buffer_body::{BodyText, BufferBody, BufferBodyService};
mod decision_slot;
pub use decision_slot::{DecisionSlot, DecisionSummary};
mod degraded_mode;
pub use degraded_mode::DegradedMode;
mod service;
pub use service::LimitService;
mod attribute_sources;
mod attributes;
mod body_size;
mod canonical_request;
mod cost_correction;
pub use attributes::{Attributes, Peer};
pub use body_size::AssumedBodySize;
mod grpc;
mod lease_renewal;
mod limit_headers;
mod readiness;
mod reserved_tokens;
pub use reserved_tokens::ReservedTokens;
mod response_body;
pub use response_body::{LeaseLost, ResponseBody};
mod future;
pub use future::ResponseFuture;
mod settlement;
mod usage_report;
pub use usage_report::{TokenUsage, UsageCommit, UsageReport};

/// Runs the examples of the guide as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tower.md")]
struct Guide;
