//! Tidegate is the front door that says no: rate limits for any service, embedded in one process or shared through
//! Redis, and exact either way.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet};
//!
//! let rules = RuleSet::new([
//!     Rule::new("api", Limit::token_bucket(20, Rate::per_second(10)?)?).per(["user"]),
//!     Rule::new("login", Limit::sliding_log(5, Duration::from_secs(600))?).action("login").per(["account"]),
//! ])?;
//! let limiter = Limiter::new(rules, MemoryStore::new());
//!
//! let decision = limiter.check_now(&Request::new("login").attribute("user", "ann").attribute("account", "a7"));
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
mod request;
pub use request::Request;
mod subject;
pub use subject::{Secret, Subject, SubjectHasher};
mod rule;
pub use rule::{Anonymous, OnFailure, Rule, RuleMode, Tag};
mod matcher;
pub use matcher::{Match, Matcher};
mod rules;
pub use rules::{RuleError, RuleSet};
mod rate;
pub use rate::Rate;
mod window;
pub use window::Window;
mod limit;
pub use limit::{Algorithm, LARGEST_AMOUNT, LARGEST_LOG, LONGEST_SPAN, Limit, LimitError, MOST_SLICES};
mod key;
pub use key::{Key, KeyStem, PARTITIONS, VERSION};
mod plan;
pub use plan::{Check, Gate, MOST_CHECKS, Origin, Plan, PlanError, PlanMode, Role};
mod few;
pub use few::Few;
mod store;
pub use store::{Adjustment, Store, StoreError, StoreErrorKind};
mod memory;
pub use memory::{DEFAULT_MOST_KEYS, MemoryStore};
pub mod algorithm;
mod sync;
pub use algorithm::Outcome;
mod verdict;
pub use verdict::{Changes, Judged, Verdict};
mod decision;
pub use decision::{Checked, Decision};
mod receipt;
pub use receipt::Receipt;
mod fallback;
mod limiter;
pub use limiter::Limiter;
mod acquire;
mod turns;
pub use acquire::Acquired;
mod decimal;
pub use decimal::address_text;
mod field;
pub use field::Field;
mod headers;
pub use headers::{Contract, Draft, Headers, Reset, UnknownDraft};
mod answer;
pub use answer::Answer;
mod observe;
pub use observe::Observer;
mod timestamp;
pub use timestamp::Timestamp;
mod clock;
pub use clock::{Clock, ManualClock, Sleep, SystemClock, Timer, timer};

/// The guide's examples run like any others.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;
