//! The Redis and Valkey store of [Tidegate](tidegate): every instance that connects to one server shares its limits,
//! exactly, because a whole plan is decided by one script.
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
//! The semantics live in `tidegate`, in both languages; this crate owns the input and output, in both languages. Its
//! modules in the order of a decision: `args`, `scripts`, `link`, `reply`, with `store` around them. `link` leads to one
//! server, to the primary that `sentinel` knows, or to the servers of a `cluster`; `across` is for plans that lie in several
//! of its slots. A server is a `node` at the end of a `line`, and a `breaker` says whether to use that.

mod store;
pub use store::RedisStore;
mod options;
pub use options::{DEFAULT_PREFIX, RedisOptions};
mod opening;
mod state;
pub use state::ServerState;
mod across;
mod adjust;
mod args;
mod breaker;
mod cluster;
mod flood;
pub use flood::Strangers;
mod forget;
mod health;
mod heart;
mod known;
mod line;
mod link;
mod node;
mod scripts;
mod sentinel;
mod slots;
mod target;
mod together;
mod version;
pub use breaker::BreakerState;
mod error;
mod patience;
mod reply;
#[cfg(test)]
mod simulation;
mod way;
