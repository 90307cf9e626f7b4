//! Shell completions and manual pages, generated from the same definitions as `--help`.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use tidegate_server::command::{Exit, Failure, Output};

/// Prints the completion script of a shell.
pub(crate) fn print_completions(shell: Shell, output: &mut Output<'_>) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
    output.print(String::from_utf8_lossy(&script));
    Exit::Success
}

/// Writes all pages into a directory, or prints the main page.
pub(crate) fn manual_pages(directory: Option<&Path>, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        let result = Man::new(Cli::command()).render(&mut page);
        result.map_err(|error| Failure::usage(format!("cannot generate the manual page: {error}")))?;
        output.print(String::from_utf8_lossy(&page));
        return Ok(Exit::Success);
    };
    let result = std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    let shown = directory.display();
    result.map_err(|error| Failure::usage(format!("cannot write manual pages to {shown}: {error}")))?;
    output.line(format_args!("manual pages written to {shown}; read them with `man {shown}/tidegate.1`"));
    Ok(Exit::Success)
}
