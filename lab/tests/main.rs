//! The program `tidegate-lab`, and the fault, attack and crash suites in small doses: a part of `make prove`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod attacks;
mod bench;
mod faults;
mod ledger_crashes;
mod surge;
mod surge_store;
