//! What the tests that cross a crate share: real servers, the naive model, random histories, and the books that golden
//! histories are kept in. Nothing here is published.

#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "a panic is how a test fails")]

pub mod authority;
pub mod book;
pub mod faults;
pub mod history;
pub mod model;
pub mod proxy;
pub mod pure;
pub mod server;
pub mod strangers;
pub mod suite;
pub mod topology;
