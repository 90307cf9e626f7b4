//! What happens when the store fails: every fault on real servers, for every policy. The suite itself is in the library, since
//! `make faults` runs it too; here it is held to what it promises.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod page;
mod repeated_outage;
mod replays;
mod suite;
