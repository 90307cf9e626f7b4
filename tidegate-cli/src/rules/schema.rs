//! `tidegate rules schema`: prints the JSON Schema that `tidegate-rules` generates.

use crate::cli::SchemaArgs;
use tidegate_server::command::{Exit, Output};

pub(super) fn run(arguments: &SchemaArgs, output: &mut Output<'_>) -> Exit {
    output.print(if arguments.tests { tidegate_rule_tools::test_schema() } else { tidegate_rules::schema() });
    Exit::Success
}
