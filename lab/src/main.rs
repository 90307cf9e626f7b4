//! The program `tidegate-lab`: the simulation, the load generator, and the suites that hurt Tidegate on purpose. Not published.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use tidegate_server::command::Output;

fn main() -> ExitCode {
    let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr().lock());
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut output = Output::new(&mut stdout, &mut stderr)
        .with_color(!no_color && io::stdout().is_terminal())
        .with_error_color(!no_color && io::stderr().is_terminal())
        .with_progress(io::stderr().is_terminal());
    lab::run(std::env::args_os(), &mut output).into()
}
