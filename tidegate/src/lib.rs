//! Tidegate is the front door that says no: rate limits for any service, embedded in one process or shared through
//! Redis, and exact either way.
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
//! let decision = limiter.check_now(&Request::new("login").with_attribute("user", "ann").with_attribute("account", "a7"));
//! assert!(decision.is_allowed());
//! assert_eq!((decision.rule(), decision.remaining()), (Some("login"), Some(4)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of a request
//!
//! ```text
//! Request ──▶ RuleSet::resolve ──▶ Plan ──▶ Store::decide ──▶ Verdict ──▶ Decision
//!   who/what/cost   pure            checks    one atomic step     pure        for any door to render
//!                                                  └── Observer: metrics, log, trace
//! ```
//!
//! The modules below stand in that order. A denial is a value; an `Err` means that the store failed.

pub mod attributes;
pub mod http;
pub mod spi;

mod algorithm;
mod clock;
mod decimal;
mod decision;
mod key;
mod limit;
mod limiter;
mod matcher;
mod memory;
mod observer;
mod plan;
mod rate;
mod receipt;
mod request;
mod rule;
mod rule_set;
mod store;
mod subject;
mod sync;
mod timestamp;
mod verdict;
mod window;

pub use clock::{Clock, ManualClock, SleepTimer, SystemClock, Timer};
pub use decision::{CheckResult, Decision};
pub use limit::{Algorithm, Limit, LimitError};
pub use limiter::{AcquireOutcome, Limiter};
pub use memory::MemoryStore;
pub use rate::Rate;
pub use receipt::Receipt;
pub use request::Request;
pub use rule::{AnonymousBounds, OnFailure, PartitionBy, Rule, RuleMode};
pub use rule_set::{RuleError, RuleSet};
pub use store::{StoreError, StoreErrorKind};
pub use subject::Secret;
pub use timestamp::Timestamp;
pub use window::Window;

/// The guide's examples run like any others.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;
