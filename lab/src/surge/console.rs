//! The texts that a run prints: phases, progress and results.

use tidegate_server::command::{Output, Style};

use super::format::format_count;
use super::goals::{Goal, Judgment};
use super::phase::{Phase, Progress};
use super::report::Report;
use super::summary;
use super::table::Table;

/// Announces a phase.
pub(crate) fn print_phase_start(phase: Phase, output: &mut Output<'_>) {
    output.progress("");
    output.info(format_args!("phase {}: {}", phase.number(), phase.title()));
}

/// Shows progress: on a terminal one line that is overwritten each second, elsewhere a line every five seconds.
pub(crate) fn print_progress(progress: &Progress, output: &mut Output<'_>) {
    let Progress { second, total_seconds, served, refused, failed, waiting } = progress;
    let line = format!(
        "  {second:>2} of {total_seconds} s   served {:>7}   denied {:>7}   failed {:>6}   waiting for a worker {:>6}",
        format_count(*served),
        format_count(*refused),
        format_count(*failed),
        format_count(*waiting),
    );
    if output.shows_progress() {
        output.progress(line);
    } else if second.is_multiple_of(5) || second == total_seconds {
        output.info(line);
    }
}

/// Prints the tables and goals of a report.
pub(crate) fn print_report(report: &Report, output: &mut Output<'_>) {
    for phase in &report.phases {
        let title = format!("Phase {}: {}", phase.phase, phase.title);
        output.line(output.styled(Style::Bold, title));
        print_table(&Table::from_endpoints(phase), output);
    }
    output.line(output.styled(Style::Bold, "Before and after"));
    print_table(&Table::from_phases(&report.phases), output);
    let width = report.goals.iter().map(|goal| goal.text.chars().count()).max().unwrap_or(0);
    let mut last_reason = "";
    for Goal { text, result, judgment } in &report.goals {
        let (mark, reason) = match judgment {
            Judgment::Reached => (output.styled(Style::Good, "✓ reached   "), String::new()),
            Judgment::Missed => (output.styled(Style::Bad, "✗ missed    "), String::new()),
            Judgment::NotJudged(reason) => {
                let is_new = std::mem::replace(&mut last_reason, reason) != reason;
                let reason = if is_new { format!(" ({reason})") } else { String::new() };
                (output.styled(Style::Caution, "  not judged"), reason)
            }
        };
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
