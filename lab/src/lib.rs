//! Experiments with Tidegate, as the program `tidegate-lab`. Not published, and nothing of the product depends on it.
//!
//! - `surge`: a simulated crowd against a service of limited capacity, without limits and with them.
//! - `bench`: the CPU time and latency of each front end, or of any HTTP service.
//! - [`faults`], [`attacks`], [`ledger_crashes`]: suites that hurt real servers under load, and compare the results with the promises.
//! - `traffic`: what they need to make load: request schedules, client connections, child processes, histograms.
//!
//! ```
//! use tidegate_server::command::{Exit, Output};
//!
//! let (mut out, mut err) = (Vec::new(), Vec::new());
//! let exit = lab::run(["tidegate-lab", "surge", "--help"], &mut Output::new(&mut out, &mut err));
//! assert_eq!(exit, Exit::Success);
//! assert!(String::from_utf8_lossy(&out).contains("--seconds"));
//! ```

#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "a panic is how a suite fails")]

pub mod attacks;
mod bench;
mod cli;
pub mod faults;
pub mod ledger_crashes;
mod page;
mod suite;
mod suite_commands;
mod surge;
pub mod table;
mod traffic;

pub use suite::{Answer, AnswerCounts};

use std::ffi::OsString;

use clap::Parser;
use tidegate_server::command::{Exit, Output};

use cli::{Cli, Command};

/// Runs the command that the arguments name; the first of them is the name of the program.
pub fn run<A: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = A>, output: &mut Output<'_>) -> Exit {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return output.print_clap_error(&error),
    };
    output.set_color(cli.color);
    let result = match cli.command {
        Command::Surge(arguments) => surge::run(&arguments, output),
        Command::Bench(arguments) => bench::run(&arguments, output),
        Command::Faults(arguments) => suite_commands::faults(&arguments, output),
        Command::Attacks(arguments) => suite_commands::attacks(&arguments, output),
        Command::LedgerCrashes(arguments) => suite_commands::ledger_crashes(&arguments, output),
        Command::Serve(arguments) => tidegate_server::command::serve(&arguments, output),
    };
    let exit = result.unwrap_or_else(|failure| output.report_failure(&failure));
    output.finish(exit)
}
