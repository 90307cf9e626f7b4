//! Envoy's service and the gateway, in this process, on the memory store.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod envoy;
mod gateway;
