//! Rule files: reading, matching and identities.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod anonymous;
mod error_formats;
mod identity;
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
mod unsafe_files;
