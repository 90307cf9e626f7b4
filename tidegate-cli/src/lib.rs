//! The command line of Tidegate, as a library: the binary `tidegate` and tests call [`run`].
//!
//! ```text
//! arguments ──▶ cli ──▶ serve │ rules │ check │ subject │ quota │ status │ manual ──▶ output ──▶ exit code
//! ```
//!
//! [`run`] reads arguments and files, writes to an [`Output`], and never ends the process.
//!
//! - `cli`: every command and flag, with the texts of `--help`; `arguments` parses them, `config` adds the config file, and `origins` blames errors on the place
//!   of the value.
//! - `rules`: validate, explain and test rule files, and print their JSON Schema.
//! - `check`: decide a request once. `request`: the flags that describe it.
//! - `subject`, `status`: look up and reset a subject, and show the state of a running server, through its `admin_client`.
//! - `quota`: usage, reconciliation, corrections and export of the ledger of a running server.
//! - `manual`: shell completions and manual pages.
//! - `tidegate serve` comes from `tidegate-server`.

mod admin_client;
mod arguments;
mod check;
mod cli;
mod config;
mod manual;
mod origins;
mod quota;
mod request;
mod rules;
mod status;
mod subject;

pub use tidegate_server::command::{Exit, Output};

use std::ffi::OsString;

use cli::Command;

/// Runs the command that the arguments name; the first of them is the name of the program.
///
/// ```
/// use tidegate_cli::{Exit, Output, run};
///
/// let (mut out, mut err) = (Vec::new(), Vec::new());
/// let exit = run(["tidegate", "rules", "schema"], &mut Output::new(&mut out, &mut err));
/// assert_eq!(exit, Exit::Success);
/// assert!(String::from_utf8_lossy(&out).contains("token_bucket"));
/// ```
pub fn run<A: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = A>, output: &mut Output<'_>) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let (cli, origins) = match arguments::parse(&arguments, output) {
        Ok(parsed) => parsed,
        Err(exit) => return exit,
    };
    let result = match cli.command {
        Command::Rules { command } => rules::run(command, output),
        Command::Check(arguments) => check::run(&arguments, output),
        Command::Subject { command } => subject::run(&command, output),
        Command::Quota { command } => quota::run(&command, output),
        Command::Status(arguments) => status::run(&arguments, output),
        Command::Serve(arguments) => tidegate_server::command::serve(&arguments, output),
        Command::Completions { shell } => Ok(manual::print_completions(shell, output)),
        Command::Man { dir } => manual::manual_pages(dir.as_deref(), output),
    };
    let exit = result.unwrap_or_else(|failure| output.report_failure(&origins.blame(failure)));
    output.finish(exit)
}
