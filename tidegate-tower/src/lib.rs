//! [Tidegate](tidegate) as a tower layer: limits for any HTTP service that is a [`tower_service::Service`], such as those
//! of axum, hyper and tonic, whole or route by route.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
//! use tidegate_tower::LimitLayer;
//!
//! let rules = RuleSet::new([
//!     Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).with_per(["header:x-api-key"]),
//!     Rule::new("exports", Limit::token_bucket(2, Rate::per_minute(1)?)?).with_action("export").with_per(["header:x-api-key"]),
//! ])?;
//! let limits = LimitLayer::new(Limiter::new(rules, MemoryStore::new()));
//!
//! let app: Router = Router::new()
//!     .route("/rides", get(async || "a ride").layer(limits.clone()))
//!     .route("/exports", get(async || "an export").layer(limits.action("export")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of a request
//!
//! ```text
//! http::Request ──▶ tidegate::Request ──▶ Limiter::check ──▶ hold ──▶ inner service ──▶ settle ──▶ http::Response
//!                     only what rules read       │                                                   + limit headers
//!                                                ├── denied: 429, or RESOURCE_EXHAUSTED in gRPC
//!                                                └── store failed: 503, or judged without it, with `Degraded`
//! ```
//!
//! - **Who asks.** Rules count by attributes: `method`, `path`, `query` (as it was sent), `host` (without the port, in lower
//!   case), `ip` (the TCP peer, see [`LimitLayer::peer`]), `header:NAME` (all lines of it joined), `body` (see
//!   [`BufferBody`]). Every other name comes from [`LimitLayer::attributes`] or from earlier middleware through
//!   [`Attributes`]. A header is what the caller says: count by one only if something in front of the service has checked
//!   or set it. Inside a nested axum router the path has lost the prefix, so put the layer around the outer one.
//! - **Passing.** A request that a leaky bucket holds waits for its slot without blocking anybody: what the inner service
//!   keeps for it, such as a permit, is given back meanwhile and asked for again. If its caller leaves, the slot is given
//!   back. The answer of the inner service gets the header fields of the [`HeaderPolicy`](tidegate::http::HeaderPolicy) of the rules,
//!   unless it has some of them already or a layer further in has spoken. A request that no rule applies to passes as it
//!   is.
//! - **Denied.** 429 with the contract's header fields and body; the inner service is not called. Requests whose content type
//!   is gRPC or gRPC-Web get the status `RESOURCE_EXHAUSTED` and the fields as metadata.
//! - **The store failed.** If a rule of the request is closed on failure, 503 (`UNAVAILABLE` in gRPC). Otherwise the request
//!   is judged without the store, as its rules say; if it passes, it has the extension [`Degraded`]. There are no limit headers
//!   then. The failure itself goes to the limiter's [`Observer`](tidegate::spi::Observer).
//! - **The real cost** may be known only from the answer: a rule names the header that tells it
//!   ([`Rule::actual`](tidegate::Rule::actual)), or [`LimitLayer::settle`] does.
//!
//! # One limiter, however many clones
//!
//! Servers clone a service for each connection. A limit that lives in the service is then a limit for each connection; here
//! all clones of a layer and of its services share one limiter. [`LimitLayer::handle`] reaches it while the server runs and
//! can replace it, rules, header fields and all.
//!
//! Errors of the inner service pass through as they are; the layer has none of its own. The modules stand in the order in
//! which a request meets them.

mod layer;
pub use layer::LimitLayer;
mod handle;
pub use handle::Handle;
mod buffer;
pub use buffer::{BodyText, BufferBody, BufferBodyService, DEFAULT_LONGEST_BODY};
mod decision_slot;
mod readiness;
pub use decision_slot::{DecisionSlot, DecisionSummary};
mod service;
pub use service::{Degraded, LimitService};
mod attributes;
pub use attributes::{Attributes, Peer};
mod body;
mod fields;
mod grpc;
mod held;
pub use body::ResponseBody;
mod future;
pub use future::LimitFuture;

/// The examples of the guide to this crate run like any others.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tower.md")]
struct Guide;
