//! `Table`: results in cells, for the console and for the page.

use std::fmt::Write;

use super::format::{format_count, format_factor, format_millis, format_percent, format_time};
use super::results::{LatencySummary, PhaseResults, RIDE_RULE, RequestStats};

/// The text of a cell without a value.
const EMPTY_CELL: &str = "–";

/// Rows of cells; the first cell of a row is its title.
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Constructors
impl Table {
    /// The requests of a phase by endpoint; 429 responses have columns of their own.
    pub(crate) fn from_endpoints(results: &PhaseResults) -> Self {
        let head = [
            "",
            "requests",
            "RPS",
            "allowed",
            "average",
            "median",
            "min",
            "max",
            "p95",
            "p99",
            "failed",
            "cut off",
            "429s",
            "429 average",
            "429 p99",
        ];
        let row = |row: &RequestStats| {
            let LatencySummary { count, average, median, min, max, p95, p99 } = row.allowed;
            let times = [average, median, min, max, p95, p99];
            let refused = &row.refused;
            let mut cells = vec![
                row.name.to_owned(),
                format_count(row.requests),
                format_count(row.per_second.round() as u64),
                format_count(count),
            ];
            cells.extend(times.map(|value| if count == 0 { EMPTY_CELL.to_owned() } else { format_millis(value) }));
            cells.extend([format_count(row.failures), format_count(row.cut_off), format_count(refused.count)]);
            let refused_time = |value| if refused.count == 0 { EMPTY_CELL.to_owned() } else { format_millis(value) };
            cells.extend([refused.average, refused.p99].map(refused_time));
            cells
        };
        let flood = Some(&results.flood).filter(|_| results.flood_limit.is_some());
        let rows = results.endpoints.iter().chain([&results.riders, &results.bot]).chain(flood).map(row).collect();
        Self { head: head.map(str::to_owned).into(), rows }
    }

    /// The phases side by side.
    pub(crate) fn from_phases(phases: &[PhaseResults]) -> Self {
        let mut head = vec![String::new()];
        head.extend(phases.iter().map(|results| format!("phase {}", results.phase)));
        let mut rows = Vec::new();
        let mut add = |name: &str, cell: &dyn Fn(&PhaseResults) -> String| {
            rows.push([name.to_owned()].into_iter().chain(phases.iter().map(cell)).collect());
        };
        add("p99 of riders' allowed requests", &|results| format_time(results.riders.allowed.p99));
        add("failures of those", &|results| format_percent(results.riders.failure_rate));
        let refusal = |results: &PhaseResults, value: f64| match results.refusals_at_server.count {
            0 => EMPTY_CELL.to_owned(),
            _ => format_time(value),
        };
        add("a 429 at the gateway, average", &|results| refusal(results, results.refusals_at_server.average));
        add("a 429 at the gateway, p99", &|results| refusal(results, results.refusals_at_server.p99));
        add("requests per second at the service", &|results| {
            format_count(results.service.requests_per_second.round() as u64)
        });
        add("ride requests per second at matching", &|results| format_count(rides_per_second(results)));
        add("workers busy", &|results| format_percent(results.service.pool_use));
        add("wait for a worker, p99", &|results| format_time(results.service.wait.p99));
        add("longest queue for a worker", &|results| format_count(results.service.deepest_queue));
        add("longest backlog of the index", &|results| format_time(results.service.index_behind));
        add("riders matched", &|results| format_count(results.crowd.matched as u64));
        add("fairness of rides (Jain)", &|results| format!("{:.2}", results.crowd.fairness));
        add("allowed requests of the bot", &|results| format_count(results.bot.allowed.count));
        let flood = |results: &PhaseResults, count: u64| match results.flood_limit {
            Some(_) => format_count(count),
            None => EMPTY_CELL.to_owned(),
        };
        add("requests of the flood", &|results| flood(results, results.flood.requests));
        let admitted = |results: &PhaseResults| results.flood_limit.as_ref().map_or(0, |audit| audit.admitted);
        add("allowed requests of the flood", &|results| flood(results, admitted(results)));
        add("largest multiple of a limit", &|results| audit_cell(results, |factor, _| format_factor(factor)));
        add("requests over a limit", &|results| audit_cell(results, |_, overshoot| format_count(overshoot)));
        Self { head, rows }
    }
}

/// Rendering
impl Table {
    /// Lines for the console: titles left-aligned, numbers right-aligned.
    pub(crate) fn lines(&self) -> Vec<String> {
        let rows = || [&self.head].into_iter().chain(&self.rows);
        let width = |column: usize| rows().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..self.head.len()).map(|column| width(column).unwrap_or(0)).collect();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Writing to a string does not fail.
                let _ = if column == 0 { write!(line, "{cell:width$}") } else { write!(line, "  {cell:>width$}") };
            }
            line.trim_end().to_owned()
        };
        rows().map(line).collect()
    }

    /// An HTML table.
    pub(crate) fn html(&self) -> String {
        let cells = |row: &[String], tag: &str| {
            let cell = |cell: &String| format!("<{tag}>{}</{tag}>", escape_html(cell));
            row.iter().map(cell).collect::<String>()
        };
        let mut rows = String::new();
        for row in &self.rows {
            let _ = writeln!(rows, "<tr>{}</tr>", cells(row, "td"));
        }
        format!("<table><thead><tr>{}</tr></thead>\n<tbody>\n{rows}</tbody></table>\n", cells(&self.head, "th"))
    }
}

/// Escapes HTML.
pub(crate) fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn rides_per_second(results: &PhaseResults) -> u64 {
    (results.service.ride_requests as f64 / results.seconds.max(0.001)).round() as u64
}

/// A cell of the audit of the ride-request rule; factor and overshoot are formatted by `format`.
fn audit_cell(results: &PhaseResults, format: impl Fn(f64, u64) -> String) -> String {
    results.limit(RIDE_RULE).map_or(EMPTY_CELL.to_owned(), |audit| format(audit.factor, results.overshoot()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_html_is_escaped() {
        let text = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let table = Table { head: text(&["", "ms"]), rows: vec![text(&["a<b", "1,234"]), text(&["µ", "7"])] };
        assert_eq!(table.lines(), ["        ms", "a<b  1,234", "µ        7"]);
        assert!(table.html().contains("<td>a&lt;b</td><td>1,234</td>"), "{}", table.html());
    }
}
