//! The results as text for a terminal.

use tidegate_server::command::{Output, Style};

use super::goals::Goal;
use super::report::Report;
use super::summary;
use super::tables::{endpoint_table, phase_table};
use crate::table::Table;

pub(crate) fn print_report(report: &Report, output: &mut Output<'_>) {
    for phase in &report.phases {
        let title = format!("Phase {}: {}", phase.phase, phase.title);
        output.line(output.styled(Style::Bold, title));
        print_table(&endpoint_table(phase), output);
    }
    output.line(output.styled(Style::Bold, "Before and after"));
    print_table(&phase_table(&report.phases), output);
    let width = report.goals.iter().map(|goal| goal.text.chars().count()).max().unwrap_or(0);
    let mut last_reason = "";
    for Goal { text, result, reached, not_judged } in &report.goals {
        let mark = match reached {
            Some(true) => output.styled(Style::Good, "✓ reached   "),
            Some(false) => output.styled(Style::Bad, "✗ missed    "),
            None => output.styled(Style::Caution, "  not judged"),
        };
        // Neighbors often have the same reason.
        let new_reason = not_judged.as_ref().filter(|reason| std::mem::replace(&mut last_reason, reason) != **reason);
        let reason = new_reason.map_or(String::new(), |reason| format!(" ({reason})"));
        output.line(format_args!("{mark}  {text:width$}  {result}{reason}"));
    }
    output.line(format_args!("\n{}", summary::conclusion(report)));
}

/// Prints a table with a dimmed heading, and an empty line after it.
fn print_table(table: &Table, output: &mut Output<'_>) {
    for (number, line) in table.lines().into_iter().enumerate() {
        output.line(if number == 0 { output.styled(Style::Dim, line) } else { line });
    }
    output.line("");
}
