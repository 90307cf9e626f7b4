//! The Redis and Valkey store of [Tidegate](tidegate): every instance that connects to one server shares its limits,
//! exactly, because a whole plan is decided by one script.
//!
//! ```no_run
//! use tidegate::{Limit, Limiter, Rate, Request, Rule, RuleSet, Secret};
//! use tidegate_redis::RedisStore;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = RuleSet::new([Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).per(["user"])])?;
//! let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
//! let limiter = Limiter::new(rules, store).secret(&Secret::new("shared by the fleet"));
//!
//! let decision = limiter.check(&Request::new("read").attribute("user", "ann")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The semantics live in `tidegate`, in both languages; this crate owns the input and output, in both languages. Its
//! modules in the order of a decision: `args`, `scripts`, `link`, `reply`, with `store` around them. `link` leads to one
//! server, to the primary that `sentinel` knows, or to the servers of a `cluster`; `across` is for plans that lie in several
//! of its slots.

mod store;
pub use store::{DEFAULT_PREFIX, RedisOptions, RedisStore};
mod across;
mod args;
mod cluster;
mod error;
mod forget;
mod health;
mod known;
mod link;
mod node;
mod reply;
mod scripts;
mod sentinel;
mod slots;
mod target;
mod together;
mod version;
