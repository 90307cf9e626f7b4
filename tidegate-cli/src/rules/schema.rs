//! `tidegate rules schema`: the schema as the library generates it.

use crate::cli::SchemaArgs;
use tidegate_server::command::{Exit, Output};

pub(super) fn run(arguments: &SchemaArgs, output: &mut Output<'_>) -> Exit {
    output.print(if arguments.tests { tidegate_rules::test_schema() } else { tidegate_rules::schema() });
    Exit::Success
}
