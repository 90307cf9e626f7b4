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
mod source;
pub use problem::{MOST_PROBLEMS, Problem, Report, Severity};
mod quantity;
pub use quantity::duration;
mod read;
mod schema;
mod suggest;
pub use suggest::suggest;
mod visible;
pub use visible::visible;
mod written;
pub mod yaml;
pub use schema::schema;
mod compile;
mod lint;
mod rule_file;
pub use rule_file::RuleFile;
mod explain;
pub use explain::{Applied, Explanation, LimitExplained, RuleExplained, RuleVerdict, SubjectPart, describe};
mod production;
pub use production::{CheckItem, CheckState, Deployment};
mod timeline;
pub use timeline::{Denied, Moment, Timeline};
mod sample;
pub use sample::{Sample, SampleAttributes, SampleError};
mod testing;
pub use testing::{Failure, RuleSeen, TestOutcome, TestRun, run_tests, test_schema};
mod by_route;
mod claims;
mod condition;
mod cost;
mod expression;
mod facts;
mod forwarded;
mod identity;
mod index;
mod ip;
mod matching;
mod path;
mod policy;
mod query;
mod routes;
mod word;

/// The reference's example runs like any other.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rules.md")]
struct Reference;

/// The examples of the page about tests run like any others.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing-limits.md")]
struct TestingLimits;
