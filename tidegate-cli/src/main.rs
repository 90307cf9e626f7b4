//! The binary `tidegate`: arguments in, exit code out. What happens in between is in the library, where tests reach it.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use tidegate_cli::{Output, run};

fn main() -> ExitCode {
    let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr().lock());
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut output = Output::new(&mut stdout, &mut stderr)
        .with_color(!plain && io::stdout().is_terminal())
        .with_error_color(!plain && io::stderr().is_terminal())
        .with_progress(io::stderr().is_terminal());
    run(std::env::args_os(), &mut output).into()
}
