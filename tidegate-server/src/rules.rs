//! `tidegate rules`: the commands that work on rule files. Each has a file of its own; what they share is reading one.

mod explain;
mod schema;
mod test;
mod told;
mod validate;

use std::io::Read;
use std::path::Path;

use tidegate_rules::{Report, RuleFile};

use crate::cli::RulesCommand;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// The most that is read of the standard input: more than a rule file may have, so that it is refused as too large.
const MOST_INPUT: u64 = 17 * 1024 * 1024;

pub(crate) fn run(command: RulesCommand, output: &mut Output<'_>) -> Result<Exit, Failure> {
    match command {
        RulesCommand::Validate(arguments) => validate::run(&arguments, output),
        RulesCommand::Explain(arguments) => explain::run(&arguments, output),
        RulesCommand::Test(arguments) => test::run(&arguments, output),
        RulesCommand::Schema(arguments) => Ok(schema::run(&arguments, output)),
    }
}

/// Reads a rule file; `-` is the standard input. A file that cannot be used is told by its report.
pub(crate) fn load(path: &Path) -> Result<Result<RuleFile, Report>, Failure> {
    if path != Path::new("-") {
        return Ok(RuleFile::load(path));
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MOST_INPUT).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("the standard input cannot be read: {error}")))?;
    Ok(RuleFile::parse("standard input", &text))
}
