//! The binary as people and scripts meet it: its words, its exit codes, and what it makes of nonsense.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod check;
mod config;
mod explain;
mod manual;
mod nonsense;
mod page;
mod shell;
mod test_files;
mod validate;
