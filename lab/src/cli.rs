//! The commands of `tidegate-lab`, with the texts of `--help`.

use clap::{Parser, Subcommand};
use tidegate_server::command::{ColorChoice, ServeArgs};

use crate::bench::BenchArgs;
use crate::suite_commands::{CrashArgs, SuiteArgs};
use crate::surge::SurgeArgs;

/// Experiments with Tidegate: a simulated crowd, load and measurements, faults, attacks and crashes
#[derive(Parser)]
#[command(name = "tidegate-lab", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// When to use color
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t, help_heading = "Global options")]
    pub(crate) color: ColorChoice,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Surge(SurgeArgs),
    Bench(BenchArgs),
    /// Cause every fault of the store under load, print the results, and write docs/faults.md
    Faults(SuiteArgs),
    /// Carry out every attack by a client, print the results, and write docs/attacks.md
    Attacks(SuiteArgs),
    /// Kill the processes of the ledger under load, print the results, and write docs/ledger-crashes.md
    LedgerCrashes(CrashArgs),
    /// The server under test, as `tidegate serve`
    #[command(hide = true)]
    Serve(Box<ServeArgs>),
}

const EXAMPLES: &str = "\
Examples:
  tidegate-lab surge --quick                    # a simulated crowd, in under a minute
  tidegate-lab bench gateway                    # CPU time and latency of the gateway
  tidegate-lab faults --quick
  tidegate-lab attacks --quick";
