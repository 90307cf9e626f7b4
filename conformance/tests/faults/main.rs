//! Runs the fault suite and asserts its promises. The suite is in the library, since `make faults` runs it too.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod page;
mod repeated_outage;
mod replays;
mod suite;
