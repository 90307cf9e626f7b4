//! Load and measurements for Tidegate: `tidegate bench` and `tidegate surge`. Not published.
//!
//! - [`bench()`]: the CPU time and latency of each front door, or of any HTTP service.
//! - [`surge()`]: a simulated crowd against a service of limited capacity, without limits and with them.
//! - `traffic`: what both need to make load: request schedules, client connections, child processes, histograms.
//!
//! ```no_run
//! use clap::Parser;
//! use tidegate_bench::BenchArgs;
//! use tidegate_server::command::Output;
//!
//! #[derive(Parser)]
//! struct Cli {
//!     #[command(flatten)]
//!     bench: BenchArgs,
//! }
//!
//! let cli = Cli::parse_from(["bench", "check", "--rounds", "3"]);
//! let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
//! let result = tidegate_bench::bench(&cli.bench, &mut Output::new(&mut out, &mut err));
//! assert!(result.is_ok());
//! ```

mod bench;
mod surge;
mod traffic;

pub use bench::{BenchArgs, run as bench};
pub use surge::{SurgeArgs, run as surge};
