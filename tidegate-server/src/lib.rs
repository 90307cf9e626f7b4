//! The Tidegate server as a library: HTTP and gRPC front ends around one [`Limiter`](tidegate::Limiter).
//!
//! The binary `tidegate` runs all of them with `tidegate serve`. A program can also run one of them by itself, such as a gateway
//! in front of an HTTP service:
//!
//! ```no_run
//! use tidegate::{Limit, Limiter, MemoryStore, Rate, Rule, RuleSet};
//! use tidegate_server::gateway::{Gateway, GatewayOptions};
//! use tidegate_tower::LimitLayer;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let limit = Limit::token_bucket(20, Rate::per_second(10)?)?;
//! let rules = RuleSet::new([Rule::new("api", limit).with_per(["ip"])])?;
//! let layer = LimitLayer::new(Limiter::new(rules, MemoryStore::new()));
//!
//! let gateway = Gateway::new(&"http://127.0.0.1:3000".parse()?, GatewayOptions::new())?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8000").await?;
//! gateway.serve(listener, layer, async { drop(tokio::signal::ctrl_c().await) }).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! ```text
//! ServeArgs ──▶ serve ──▶ check API │ forward-auth │ Envoy rate limit service │ gateway │ admin
//!                  │         └────────────┴───────────────┬──────────────────────┘
//!               Listener                          Limiter on AnyStore
//! ```
//!
//! A front end turns a request into attributes, calls the limiter, and turns the decision into a response; it computes no header field
//! and no rejection of its own. Forward-auth is the tower layer around a service that always succeeds, and the gateway is the same layer around a
//! proxy. Receipts, leases and reservations over HTTP are signed texts, not stored ones, so any instance takes them.
//!
//! - [`gateway`]: a reverse proxy with rate limits.
//! - [`envoy`]: Envoy's Rate Limit Service over gRPC and JSON, with rule files or YAML files of the reference server.
//! - [`Listener`]: accepts connections for every front end: TLS, timeouts, size limits, draining.
//! - [`AnyStore`]: the store that a URL names, in memory or in Redis.
//! - [`command`]: what the commands of the binary share (output, exit codes, failures), and `tidegate serve` itself.
//!
//! The source has a directory for each part of `tidegate serve`:
//!
//! - `args`: the flags that no part has for itself, and the parsers of values. Each other flag is declared where its value is used.
//! - `store`: the store that a URL names, and the connection to it.
//! - `engine`: the limiter on the store, the rules in force, and the ledger.
//! - `doors`: the front ends: `check` (the check API), `forward_auth`, `envoy`, `gateway`.
//! - `admin`: the admin address.
//! - `calls`: what every call to the server's own addresses passes: the browser guard, limits on bodies and time, JSON in and out.
//! - `tokens`: receipts, leases and reservations as signed texts.
//! - `observe`: metrics and the log.
//! - `lifecycle`: file descriptors, the start page, reloading.
//! - `listen`: the listener.

mod admin;
mod args;
mod calls;
pub mod command;
mod doors;
pub use doors::check::check_response::CheckResponse;
#[doc(hidden)]
pub use doors::check::in_process::CheckApi;
pub use doors::{envoy, gateway};
mod engine;
mod lifecycle;
mod listen;
pub use listen::{ConnectionLimits, Listener, Tls, TlsError, TlsFiles};
mod observe;
mod serve;
pub use serve::Server;
mod store;
pub use store::{AnyStore, StoreUrl};
mod tokens;
