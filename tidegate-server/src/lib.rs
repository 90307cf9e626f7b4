//! What the binary `tidegate` does: serve decisions, write, explain and test limits, and decide from the shell, and
//! measure what all that costs and what it is good for.
//!
//! ```text
//! arguments ──▶ cli ──▶ serve │ rules │ check │ bench │ surge │ manual ──▶ output ──▶ exit code
//!                          └── request, secret, store
//! ```
//!
//! Everything goes through [`run`], which a test calls as well as `main` does: it reads arguments and files, writes to an
//! [`Output`], and never ends the process.

mod arguments;
mod bench;
mod cli;
mod config;
mod degraded;
pub mod envoy;
mod exit;
pub use exit::Exit;
mod output;
pub use output::Output;
mod failure;
mod request;
mod secret;
mod span;
mod store;
pub use store::{AnyStore, StoreUrl};
mod check;
mod rules;
pub use check::CheckAnswer;
pub mod gateway;
mod listen;
pub use listen::{ConnectionLimits, Listener, Tls, TlsError, TlsFiles};
mod manual;
mod serve;
pub use serve::Server;
mod surge;
mod traffic;

use std::ffi::OsString;

use cli::Command;

/// Does what the arguments say, the first of which is the name of the program.
///
/// ```
/// use tidegate_server::{Exit, Output, run};
///
/// let (mut out, mut err) = (Vec::new(), Vec::new());
/// let exit = run(["tidegate", "rules", "schema"], &mut Output::new(&mut out, &mut err));
/// assert_eq!(exit, Exit::Fine);
/// assert!(String::from_utf8_lossy(&out).contains("token_bucket"));
/// ```
pub fn run<A: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = A>, output: &mut Output<'_>) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let cli = match arguments::read(&arguments, output) {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let done = match cli.command {
        Command::Rules { command } => rules::run(command, output),
        Command::Check(arguments) => check::run(&arguments, output),
        Command::Bench(arguments) => bench::run(&arguments, output),
        Command::Serve(arguments) => serve::run(&arguments, output),
        Command::Surge(arguments) => surge::run(&arguments, output),
        Command::Completions { shell } => Ok(manual::completions(shell, output)),
        Command::Man { dir } => manual::man(dir.as_deref(), output),
    };
    let exit = done.unwrap_or_else(|failure| output.failed(&failure));
    output.finish(exit)
}
