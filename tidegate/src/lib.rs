//! Exact rate limits and quotas, decided in the memory of one process or shared through Redis with the same results.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};
//!
//! let rules = RuleSet::new([
//!     Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).with_per(["user"]),
//!     Rule::new("login", Limit::sliding_log(5, Duration::from_secs(600))?).with_action("login").with_per(["account"]),
//! ])?;
//! let limiter = Limiter::new(rules, MemoryStore::new());
//!
//! let request = Request::new("login").with_attribute("user", "ann").with_attribute("account", "a7");
//! let decision = limiter.check_now(&request);
//! assert!(decision.is_allowed());
//! assert_eq!((decision.rule(), decision.remaining()), (Some("login"), Some(4)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Request`] has an action, attributes and a cost. The [`RuleSet`] resolves it into a plan with one check for each limit that
//! applies, the store decides the plan in one atomic step, and the [`Decision`] says whether the request passes, what remains and
//! when to retry. A denial is a value; an error means that the store failed and a rule is [closed](OnFailure::Closed) then.
//!
//! | for | see |
//! |---|---|
//! | checking requests | [`Limiter`], [`Request`], [`Decision`], [`RequestProblem`], [`AcquireOutcome`] |
//! | what a request took, until it ends | [`Grant`], [`Ending`], [`GrantGuard`], [`grants`] |
//! | rules in code | [`Rule`], [`RuleSet`], [`RuleMode`], [`OnFailure`], [`rules`] |
//! | quotas that touch money | [`Rule::with_ledger`]; the crate `tidegate-ledger` |
//! | limits | [`Limit`], [`Rate`], [`limits`] |
//! | where limits are kept | [`MemoryStore`], or `RedisStore` of the crate `tidegate-redis`; [`Secret`], [`StoreError`] |
//! | time, and tests of your own limits | [`ManualClock`], [`SystemClock`], [`SleepTimer`], [`Timestamp`] |
//! | HTTP header fields and responses | [`http`] |
//! | names and normal forms of request attributes | [`attributes`] |
//! | stores, front ends and metrics of your own | [`spi`] |
//!
//! Rules from files are in the crate `tidegate-rules`, the layer for axum, hyper and tonic is in `tidegate-tower`.
//!
//! # Semantics
//!
//! Each limit is one pure function in `algorithm`, in Rust with an equal function in Lua beside it:
//!
//! ```text
//! apply(state, limit, now, op)  →  admitted, the state to write, when it expires
//! ```
//!
//! Times are whole microseconds, rates are reduced fractions, and every number is below 2^53, so Rust and Lua compute the same. Where a
//! product could exceed 2^53, Lua adds bit by bit instead. Months and years come from integer arithmetic on days.
//!
//! # Modules
//!
//! In the order in which a request passes them: `request` and [`attributes`], `rule_set` with its `matcher`, `subject`, `key`, `plan`,
//! `store` (`memory` and its `algorithm`s), `verdict`, `decision`, [`http`]. `limiter` drives them, with its `fallback` for a store that
//! fails; `grant` and `ledger` are what stays after a decision.
//!
//! Enums of operations, limits, modes and errors are non-exhaustive, and a [`Decision`] has private fields, so that both can grow. A
//! [`Plan`](spi::Plan) made by hand is decided like one from rules: adapters with a configuration of their own work that way.

pub mod attributes;
pub mod http;
pub mod spi;
/// The locks that the crates of Tidegate share. No part of the public API: they are no concern of rate limits.
#[doc(hidden)]
pub mod sync;

mod algorithm;
mod clock;
mod decimal;
mod decision;
mod failing_store;
mod grant;
mod key;
mod ledger;
mod limit;
mod limiter;
mod matcher;
mod memory;
mod namespace;
mod network;
mod observer;
mod on_failure;
mod overflow;
mod periods;
mod plan;
mod random;
mod rate;
mod request;
mod request_problem;
mod rule;
mod rule_set;
mod store;
mod subject;
mod timestamp;
mod usage;
mod verdict;
mod window;

pub use clock::{Clock, ManualClock, SleepTimer, SystemClock, Timer};
pub use decision::Decision;
pub use grant::{Ending, Grant};
pub use limit::Limit;
pub use limiter::{AcquireOutcome, GrantGuard, Limiter};
pub use memory::MemoryStore;
pub(crate) use network::Network;
pub use on_failure::OnFailure;
pub use rate::Rate;
pub use request::Request;
pub use request_problem::RequestProblem;
pub use rule::{Rule, RuleMode};
pub use rule_set::RuleSet;
pub use store::{StoreError, StoreErrorKind};
pub use subject::Secret;
pub use timestamp::Timestamp;

/// What a [`Limit`] is made of, beside its [`Rate`].
///
/// ```
/// use tidegate::Limit;
/// use tidegate::limits::{Algorithm, Period, Periods};
///
/// let quota = Limit::quota(10_000, Periods::new(Period::Month, "Europe/Berlin", None)?)?;
/// assert_eq!(quota.algorithm(), Algorithm::Quota);
/// # Ok::<(), tidegate::limits::LimitError>(())
/// ```
pub mod limits {
    pub use crate::algorithm::penalty::Penalty;
    pub use crate::limit::{Algorithm, LimitError};
    pub use crate::periods::{Anchor, Period, Periods, Weekday};
    pub use crate::window::Window;
}

/// What a [`Rule`] may be set to, beside its [`RuleMode`] and what it does [on a failure](OnFailure).
///
/// ```
/// use tidegate::rules::{OnMissing, UsageKind};
/// use tidegate::{Limit, Rate, Rule};
///
/// let tokens = Rule::new("tokens", Limit::token_bucket(10_000, Rate::per_second(100)?)?);
/// let tokens = tokens.with_per(["user"]).with_on_missing(OnMissing::Error).with_usage(UsageKind::Total);
/// # Ok::<(), tidegate::limits::LimitError>(())
/// ```
pub mod rules {
    pub use crate::ledger::LedgerMode;
    pub use crate::on_failure::OnOverload;
    pub use crate::rule::{AnonymousBounds, OnMissing, PartitionBy};
    pub use crate::rule_set::RuleError;
    pub use crate::usage::UsageKind;
}

/// The parts of a [`Grant`], how it ends, and who holds it until then.
pub mod grants {
    pub use crate::grant::{Costs, GrantError, GrantKind, GrantPart, Retake};
    pub use crate::limiter::{DEFAULT_RESERVATION_TTL, HeldLease, HeldLeases, OutstandingReservations};
}

/// Runs the examples of the guide as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;
