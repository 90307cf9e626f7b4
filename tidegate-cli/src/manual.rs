//! Completions and manual pages, made from the same definitions as `--help`, so that they cannot say anything else.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use tidegate_server::command::{Exit, Failure, Output};

pub(crate) fn completions(shell: Shell, output: &mut Output<'_>) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
    output.print(String::from_utf8_lossy(&script));
    Exit::Success
}

/// Every page into a directory, or the main one to the output.
pub(crate) fn man(directory: Option<&Path>, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        let rendered = Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|error| Failure::usage(format!("the page cannot be made: {error}")))?;
        output.print(String::from_utf8_lossy(&page));
        return Ok(Exit::Success);
    };
    let written = std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    let shown = directory.display();
    written.map_err(|error| Failure::usage(format!("the pages cannot be written to {shown}: {error}")))?;
    output.line(format_args!("the manual is in {shown}; read it with `man {shown}/tidegate.1`"));
    Ok(Exit::Success)
}
