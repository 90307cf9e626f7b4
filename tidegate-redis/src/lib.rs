//! The Redis and Valkey store of [Tidegate](tidegate): all instances that connect to the same servers share their limits,
//! exactly, because one Lua script decides a whole plan in one atomic step.
//!
//! ```no_run
//! use tidegate::{Limit, Limiter, Rate, Request, Rule, RuleSet, Secret};
//! use tidegate_redis::RedisStore;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).with_per(["user"])])?;
//! let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
//! let limiter = Limiter::new(rules, store).with_secret(&Secret::new("shared by the fleet"));
//!
//! let decision = limiter.check(&Request::new("read").with_attribute("user", "ann")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The public types are few: [`RedisStore`] connects and decides, [`RedisOptions`] sets namespace, timeout and limits of the
//! connection, [`ServerState`] and [`SubjectStats`] are for monitoring.
//!
//! # Modules
//!
//! In the order in which a call flows:
//!
//! 1. `connect` opens a store from a `store_url` and `options`, and checks the servers with `server_info` and `version`.
//! 2. `denial_cache` refuses what the store denied a moment ago, before anything is sent.
//! 3. `store` decides a plan: `cardinality` chooses overflow buckets for new subjects, `packed_plan` packs the
//!    plan, `batch` combines plans into one call, `scripts` holds the Lua text, `reply` turns the reply into a verdict. `cross_slot` splits plans whose keys are in
//!    several slots of a cluster; `adjust` sends charges and refunds.
//! 4. `router` sends a `plan_call` or another `call` to the right server: the only one, the primary named by a `sentinel`, or the owner of the
//!    slot in a `cluster` (by its `slot_map`). A `topology_cache` refreshes what it knows in the background.
//! 5. `node` is one server, made by the `node_factory` at an `address`. A task owns its `connection`: it sends waiting plans
//!    together, judges `silence`, and opens the `breaker`. A `connector` opens a `server_stream`, over `tls` if needed, with a
//!    `handshake`; a `server_link` writes commands to it and parses replies by `resp`. `timeouts`, `deadline` and `timer` bound
//!    every wait.
//! 6. `node_error` and `error` turn failures into store errors.
//!
//! `outbox` is the side that the ledger reads from and repairs. `heartbeat` counts the instances of the namespace and their rule sets; `namespace_check`
//! refuses a name that begins with that of another deployment. The limits themselves are defined in `tidegate`, in Rust and in Lua; this crate owns input and output.
//!
//! # Scripts
//!
//! A plan of one enforced check, which most are, has a script of its own for each limit, `decide_one.lua`. Everything else goes through
//! `decide_batch.lua`. Both are composed once at the start: constants in capitals are substituted in the text, because local variables that
//! functions share cost every call.
//!
//! # Full servers
//!
//! A server that is out of memory refuses scripts that write. The batch is then sent as a variant that may run, and that writes only keys
//! that exist: known subjects stay exact, and the checks of others are marked as not stored. The limiter decides these in memory.

mod connect;
mod options;
pub use options::RedisOptions;
mod server_info;
mod store_url;
mod version;

mod store;
pub use store::RedisStore;
mod adjust;
mod args;
mod background_releases;
mod batch;
mod cardinality;
pub use cardinality::SubjectStats;
mod cross_slot;
mod decide_batch;
mod denial_cache;
mod forget_namespace;
mod heartbeat;
mod namespace_check;
mod outbox;
mod outstanding;
mod packed_plan;
mod period_clock;
mod reply;
mod scripts;

mod call;
mod cluster;
mod plan_call;
mod router;
mod sentinel;
mod slot_map;
mod topology_cache;

mod address;
mod breaker;
pub use breaker::BreakerState;
mod connection;
mod connector;
mod deadline;
mod handshake;
mod long_hold_lists;
mod node;
mod node_factory;
mod resp;
mod server_link;
mod server_state;
pub use server_state::ServerState;
mod server_stream;
mod silence;
mod timeouts;
mod timer;
mod tls;

mod error;
mod node_error;

#[cfg(test)]
mod simulation;
