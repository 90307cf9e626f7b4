//! Shared by the tests that span several crates: fixtures that start real servers, the naive model of every limit, random
//! histories and golden histories. Not published.

#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(missing_docs, reason = "not published: a name that says everything has no sentence that repeats it")]

pub mod anonymous;
pub mod batch_history;
pub mod dose;
pub mod golden;
pub mod history;
pub mod http_client;
pub mod instance;
pub mod model;
pub mod poll;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod pure_store;
pub mod retained;
pub mod serve_process;
pub mod server;
pub mod suite;
pub mod test_ca;
pub mod topology;
pub mod witness;
