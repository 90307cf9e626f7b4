//! The binary `tidegate`. The library does the work, so that tests can call it.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use tidegate_cli::{Output, run};

fn main() -> ExitCode {
    let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr().lock());
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut output = Output::new(&mut stdout, &mut stderr)
        .with_color(!no_color && io::stdout().is_terminal())
        .with_error_color(!no_color && io::stderr().is_terminal())
        .with_progress(io::stderr().is_terminal());
    run(std::env::args_os(), &mut output).into()
}
