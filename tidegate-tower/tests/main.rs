//! The layer around services of tower.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod layer;
