//! Load and measurements for Tidegate: `tidegate bench` and `tidegate surge`. Not published.
//!
//! - [`bench`]: the CPU time and latency of each front door, or of any HTTP service.
//! - [`surge`]: a simulated crowd against a service of limited capacity, without limits and with them.
//! - `traffic`: what both need to make load: request schedules, client connections, child processes, histograms.

mod bench;
mod surge;
mod traffic;

pub use bench::{BenchArgs, run as bench};
pub use surge::{SurgeArgs, run as surge};
