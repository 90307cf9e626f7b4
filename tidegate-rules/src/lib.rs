//! Rate limits in a YAML file: loads the file into a [`RuleSet`](tidegate::RuleSet), and reports every problem with its position.
//! `tidegate-rule-tools` lints it, explains what it does to a request, and runs tests for it.
//!
//! ```
//! use tidegate::{Limiter, MemoryStore, Request};
//! use tidegate_rules::RuleFile;
//!
//! let file = RuleFile::parse("rules.yaml", "
//! version: 1
//! rules:
//!   - id: search
//!     match: { path: /search }
//!     per: [ip]
//!     token_bucket: { capacity: 20, refill: 10/s }
//! ")?;
//! let limiter = Limiter::new(file.rules().clone(), MemoryStore::new());
//! let request = Request::new("").with_attribute("path", "/search").with_attribute("ip", "192.0.2.1");
//! assert!(limiter.check_now(&request).is_allowed());
//! # Ok::<(), tidegate_rules::Report>(())
//! ```
//!
//! # Modules
//!
//! ```text
//! text ──▶ read ──▶ schema_types ──▶ compile ──▶ RuleFile { RuleSet, HeaderPolicy }   every problem with its position
//!                                       └── file_checks
//! Request ──▶ index ──▶ condition ──▶ identity, cost ──▶ Match ──▶ Plan (in `tidegate`)
//! ```
//!
//! Types as written in the file never leave `compile`. The matcher returns rule, subject and cost; keys, budgets and hashing stay in
//! `tidegate`. The modules that identify a subject (`forwarded`, `ip`, `path`, `claims`, `query`, `expression`) do not depend on rules.
//!
//! - Loading: [`RuleFile`], [`Report`] of [`Problem`]s, [`schema`] for editors, and [`yaml`], the reader for other files.
//! - Describing a request in a test, a call or on a command line: [`RequestDescription`].
//! - Comparing: [`RuleFile::changes_since`].
//!
//! Rules read the attributes that [`RuleSet::reads`](tidegate::RuleSet::reads) lists: `method`, `path`, `query`, `host`, `ip`
//! (the address of the peer), `header:NAME`, `body`, and those that the application sets.

mod problem;
mod source_file;
pub use problem::{MAX_PROBLEMS, Problem, Report, Severity};
mod quantity;
pub use quantity::parse_duration;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod read;
mod schema;
mod suggest;
pub use suggest::suggest;
mod sanitize;
pub use sanitize::sanitize;
mod schema_types;
pub mod yaml;
pub use schema::schema;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod compile;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod compiled_file;
mod file_checks;
mod rule_file;
pub use rule_file::RuleFile;
mod rule_changes;
pub use rule_changes::RuleChanges;
mod rule_subjects;
pub use rule_subjects::SubjectStatus;
mod client_addresses;
pub use client_addresses::ClientAddresses;
mod front_door;
pub use front_door::FrontDoor;
mod request_description;
pub use request_description::{RequestDescription, RequestDescriptionError};
mod claims;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod condition;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod cost;
mod expression;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod failure_policy;
mod forwarded;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod identity;
mod index;
mod ip;
mod json_body;
mod path;
mod path_tree;
mod provenance;
mod query;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod repeated;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod request_matcher;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod request_view;
#[allow(missing_docs, reason = "only `internals` shows it")]
mod route_table;

#[doc(hidden)]
pub mod internals;

/// Runs the example of the reference as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rules.md")]
struct Reference;
