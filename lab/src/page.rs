//! What the pages of all suites are made of: the promises in words, then the figures of the last run in Markdown tables.

use std::fmt::Display;
use std::time::Duration;

/// The heading of the figures.
pub const FIGURES: &str = "## Figures";

/// The start of the figures: the command, and a line that begins with `stamp`, the day of the measurement.
pub(crate) fn start_figures(command: &str, stamp: &str) -> String {
    format!("{FIGURES}\n\n```sh\n{command}\n```\n\n{stamp}. ")
}

/// A Markdown table. The head has all columns, as in `a | b`.
pub(crate) fn table<const N: usize>(head: &str, rows: impl IntoIterator<Item = [String; N]>) -> String {
    let table = format!("| {head} |\n|{}\n", "---|".repeat(N));
    rows.into_iter().fold(table, |table, row| format!("{table}| {} |\n", row.join(" | ")))
}

/// Cells of a table.
pub(crate) fn cells<const N: usize>(values: [&dyn Display; N]) -> [String; N] {
    values.map(ToString::to_string)
}

/// Milliseconds, with one decimal.
pub(crate) fn millis(span: Duration) -> String {
    format!("{:.1}", span.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_head_and_a_line_for_each_row() {
        let rows = [cells([&1, &"a"]), cells([&2, &millis(Duration::from_micros(1_550))])];
        assert_eq!(table("n | ms", rows), "| n | ms |\n|---|---|\n| 1 | a |\n| 2 | 1.6 |\n");
    }
}
