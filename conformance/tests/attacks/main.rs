//! Runs the attack suite and asserts its bounds. The suite is in the library, since `make attacks` runs it too.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod busy_machine;
mod hold_list;
mod page;
mod suite;
