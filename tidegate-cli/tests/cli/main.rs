//! The binary as people and scripts meet it: its words, its exit codes, and what it makes of nonsense.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bad_input;
mod check;
mod config;
mod docs_pages;
mod explain;
mod manual;
mod shell;
mod test_files;
mod validate;
