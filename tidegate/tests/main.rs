//! The promises of the library, on the memory store alone. Under `--cfg loom` only the interleavings of its locks are tested.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[cfg(not(loom))]
mod error_formats;
#[cfg(not(loom))]
mod fallback;
#[cfg(not(loom))]
mod grants;
#[cfg(not(loom))]
mod http_contract;
#[cfg(not(loom))]
mod keys;
#[cfg(not(loom))]
mod ledger;
#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod newcomers;
#[cfg(not(loom))]
mod normal_forms;
#[cfg(not(loom))]
mod partitions;
#[cfg(not(loom))]
mod penalties;
#[cfg(not(loom))]
mod properties;
