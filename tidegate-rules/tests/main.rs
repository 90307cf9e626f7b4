//! Rule files: reading, matching, identities, lints, explanations and tests for limits.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod anonymous;
mod checklist;
mod error_formats;
mod examples;
mod explain_ledger;
mod identity;
mod invalid_test_files;
mod lints;
mod matching;
mod normal_forms;
mod on_failure;
mod on_missing;
mod path_readings;
mod penalties;
mod reading;
mod reference;
mod repeated;
mod tenants;
mod test_files;
mod test_files_store_failure;
