//! Tools for the rule files that [`tidegate_rules`] reads: lints, what a file does to a request, what a front end never has of it, a
//! checklist for production, and tests. A program that only enforces limits needs none of them.
//!
//! ```
//! let file = tidegate_rule_tools::parse_and_lint("rules.yaml", "
//! version: 1
//! rules:
//!   - { id: login, match: { path: /login }, per: [ip], fixed_window: { limit: 5, window: 10m } }
//! ")?;
//! let codes: Vec<_> = file.report().problems().iter().map(|problem| problem.code()).collect();
//! assert_eq!(codes, ["looks-like-security", "login-by-ip-alone", "fixed-window-on-security"]);
//! # Ok::<(), tidegate_rules::Report>(())
//! ```
//!
//! # Modules
//!
//! - Lints: [`load_and_lint`] and [`parse_and_lint`].
//! - Explaining: [`explain`] returns an [`Explanation`] with a [`Timeline`]; [`describe_limit`] says a limit in words, [`no_rule`] which
//!   rule is nearest to a request that none matches.
//! - Checking a deployment: [`checklist`], and [`door_gaps`] for each [`FrontDoor`](tidegate_rules::FrontDoor).
//! - Testing: [`run_tests`] returns a [`TestRun`]; [`test_schema`] is for editors.

mod lint;
pub use lint::{load_and_lint, parse_and_lint};
mod door_gaps;
pub use door_gaps::{DoorGap, GapEffect, check_for_door, door_gaps, report_for_doors, report_for_every_door};
mod describe_limit;
pub use describe_limit::{describe_ledger, describe_limit};
mod condition_mismatch;
mod no_rule;
pub use no_rule::no_rule;
mod explanation;
pub use explanation::{
    ClaimUse, Explanation, LedgerExplanation, LimitExplanation, PeriodExplanation, RuleEffect, RuleExplanation,
    RuleStatus, SubjectPart,
};
mod explain;
pub use explain::{explain, explain_at};
mod timeline;
pub use timeline::{Timeline, TimelineDenial, TimelinePoint};
mod checklist;
pub use checklist::{ChecklistItem, ChecklistState, Deployment, checklist};
mod testing;
pub use testing::{RuleCoverage, TestFailure, TestOutcome, TestRun, run_tests, test_schema};

/// Runs the examples of the page about tests as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing-limits.md")]
struct TestingLimits;
