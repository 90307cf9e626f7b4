//! The program `tidegate`: its commands in this process, and `tidegate serve` as a process.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod cli;
mod serve;
