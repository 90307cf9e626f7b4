//! Shared by the tests that span several crates: fixtures that start real servers, the naive model of every limit, random
//! histories, golden histories, the fault suite, and the attack suite. Not published.

#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "a panic is how a test fails")]

pub mod anonymous;
pub mod attacks;
pub mod batch_history;
pub mod faults;
pub mod golden;
pub mod history;
pub mod ledger_crashes;
pub mod model;
pub mod page_date;
pub mod postgres;
pub mod proxy;
pub mod pure_store;
pub mod retained;
pub mod server;
pub mod suite;
pub mod test_ca;
pub mod topology;
pub mod witness;
