//! The rule file of Tidegate: limits that people can read, check, explain and test.
//!
//! ```text
//! text ──▶ read ──▶ written ──▶ compile ──▶ RuleFile { RuleSet, HeaderPolicy }      every problem on the way, with its place
//!                                  └── lint
//! Request ──▶ index ──▶ condition ──▶ identity, cost ──▶ Match ──▶ Plan (in `tidegate`)
//! ```
//!
//! A request brings attributes under the names that [`RuleSet::reads`](tidegate::RuleSet::reads) lists: `method`, `path`,
//! `query`, `host`, `ip` (the address that connected), `header:NAME`, `body`, and whatever the application sets.

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
mod explain;
pub use explain::{
    Explanation, LimitExplanation, RuleEffect, RuleExplanation, RuleStatus, SubjectPart, describe_limit,
};
mod checklist;
pub use checklist::{ChecklistItem, ChecklistState, Deployment};
mod timeline;
pub use timeline::{Timeline, TimelineDenial, TimelinePoint};
mod sample_request;
pub use sample_request::{SampleAttributes, SampleError, SampleRequest};
mod testing;
pub use testing::{RuleCoverage, TestFailure, TestOutcome, TestRun, run_tests, test_schema};
mod claims;
mod condition;
mod cost;
mod expression;
mod failure_policy;
mod forwarded;
mod identity;
mod index;
mod ip;
mod path;
mod path_tree;
mod provenance;
mod query;
mod request_matcher;
mod request_view;
mod route_table;

/// The reference's example runs like any other.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rules.md")]
struct Reference;

/// The examples of the page about tests run like any others.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing-limits.md")]
struct TestingLimits;
