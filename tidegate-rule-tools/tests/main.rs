//! Tools for rule files: lints, explanations, the checklist, and tests for limits.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod checklist;
mod examples;
mod explain_ledger;
mod invalid_test_files;
mod lints;
mod test_files;
mod test_files_store_failure;
