//! `tidegate rules`: the commands on rule files, one module each.

mod explain;
mod problem_json;
mod schema;
mod test;
mod validate;

use crate::cli::RulesCommand;
use tidegate_server::command::{Exit, Failure, Output};

pub(crate) fn run(command: RulesCommand, output: &mut Output<'_>) -> Result<Exit, Failure> {
    match command {
        RulesCommand::Validate(arguments) => validate::run(&arguments, output),
        RulesCommand::Explain(arguments) => explain::run(&arguments, output),
        RulesCommand::Test(arguments) => test::run(&arguments, output),
        RulesCommand::Schema(arguments) => Ok(schema::run(&arguments, output)),
    }
}
