//! What a run tells people: how it goes, and what came of it.

use super::numbers::whole;
use super::phase::{Phase, Progress};
use super::report::Report;
use super::table::Table;
use tidegate_server::command::{Output, Style};

/// A phase begins.
pub(crate) fn begins(phase: Phase, output: &mut Output<'_>) {
    output.progress("");
    output.info(format_args!("phase {}: {}", phase.number(), phase.title()));
}

/// How a phase goes: on a terminal each line takes the place of the one before, elsewhere every fifth second has a line.
pub(crate) fn goes(progress: &Progress, output: &mut Output<'_>) {
    let Progress { second, of, served, refused, failed, waiting } = progress;
    let told = format!(
        "  {second:>2} of {of} s   served {:>7}   refused {:>7}   failed {:>6}   waiting for a worker {:>6}",
        whole(*served),
        whole(*refused),
        whole(*failed),
        whole(*waiting),
    );
    if output.shows_progress() {
        output.progress(told);
    } else if second.is_multiple_of(5) || second == of {
        output.info(told);
    }
}

/// What came of it.
pub(crate) fn ends(report: &Report, output: &mut Output<'_>) {
    for found in &report.phases {
        let title = format!("Phase {}: {}", found.phase, found.title);
        output.line(output.styled(Style::Bold, title));
        table(&Table::of_endpoints(found), output);
    }
    output.line(output.styled(Style::Bold, "Before and after"));
    table(&Table::of_phases(&report.phases), output);
    let width = report.aims.iter().map(|aim| aim.what.chars().count()).max().unwrap_or(0);
    for aim in &report.aims {
        let mark = match aim.reached {
            Some(true) => output.styled(Style::Good, "✓ reached   "),
            Some(false) => output.styled(Style::Bad, "✗ missed    "),
            None => output.styled(Style::Caution, "  not judged"),
        };
        output.line(format_args!("{mark}  {:width$}  {}", aim.what, aim.found));
    }
}

/// Lines of a table: times in milliseconds, from when requests were due.
fn table(table: &Table, output: &mut Output<'_>) {
    for (number, line) in table.lines().into_iter().enumerate() {
        output.line(if number == 0 { output.styled(Style::Dim, line) } else { line });
    }
    output.line("");
}
