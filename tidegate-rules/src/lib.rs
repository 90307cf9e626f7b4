//! Rate limits in a YAML file: loads the file into a [`RuleSet`](tidegate::RuleSet), reports every problem with its position,
//! lints it, explains what it does to a request, and runs tests for it.
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
//!                                       └── lint
//! Request ──▶ index ──▶ condition ──▶ identity, cost ──▶ Match ──▶ Plan (in `tidegate`)
//! ```
//!
//! Types as written in the file never leave `compile`. The matcher returns rule, subject and cost; keys, budgets and hashing stay in
//! `tidegate`. The modules that identify a subject (`forwarded`, `ip`, `path`, `claims`, `query`, `expression`) do not depend on rules.
//!
//! - Loading: [`RuleFile`], [`Report`] of [`Problem`]s, [`schema`] for editors, and [`yaml`], the reader for other files.
//! - Explaining: [`RuleFile::explain`] returns an [`Explanation`] with a [`Timeline`]; [`RequestDescription`] is a request
//!   as the check API, a command line or a test describes it.
//! - Checking a deployment: [`RuleFile::checklist`], and [`RuleFile::door_gaps`] for each [`FrontDoor`].
//! - Testing: [`run_tests`] returns a [`TestRun`]; [`test_schema`] is for editors.
//!
//! Rules read the attributes that [`RuleSet::reads`](tidegate::RuleSet::reads) lists: `method`, `path`, `query`, `host`, `ip`
//! (the address of the peer), `header:NAME`, `body`, and those that the application sets.

mod problem;
mod source_file;
pub use problem::{MAX_PROBLEMS, Problem, Report, Severity};
mod quantity;
pub use quantity::parse_duration;
mod read;
mod schema;
mod suggest;
pub use suggest::suggest;
mod sanitize;
pub use sanitize::sanitize;
mod schema_types;
pub mod yaml;
pub use schema::schema;
mod compile;
mod lint;
mod rule_file;
pub use rule_file::RuleFile;
mod rule_changes;
pub use rule_changes::RuleChanges;
mod rule_subjects;
pub use rule_subjects::SubjectStatus;
mod client_addresses;
mod no_rule;
pub use client_addresses::ClientAddresses;
mod describe_limit;
pub use describe_limit::{describe_ledger, describe_limit};
mod explain;
pub use explain::{
    Explanation, LedgerExplanation, LimitExplanation, PeriodExplanation, RuleEffect, RuleExplanation, RuleStatus,
    SubjectPart,
};
mod front_door;
pub use front_door::FrontDoor;
mod door_gaps;
pub use door_gaps::{DoorGap, GapEffect};
mod checklist;
pub use checklist::{ChecklistItem, ChecklistState, Deployment};
mod timeline;
pub use timeline::{Timeline, TimelineDenial, TimelinePoint};
mod request_description;
pub use request_description::{RequestDescription, RequestDescriptionError};
mod testing;
pub use testing::{RuleCoverage, TestFailure, TestOutcome, TestRun, run_tests, test_schema};
mod claims;
pub use claims::ClaimUse;
mod condition;
mod cost;
mod expression;
mod failure_policy;
mod forwarded;
mod identity;
mod index;
mod ip;
mod json_body;
mod path;
mod path_tree;
mod provenance;
mod query;
mod repeated;
mod request_matcher;
mod request_view;
mod route_table;

/// Runs the example of the reference as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rules.md")]
struct Reference;

/// Runs the examples of the page about tests as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing-limits.md")]
struct TestingLimits;
