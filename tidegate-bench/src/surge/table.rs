//! `Table`: what was found, in cells, for a terminal and for a page alike.

use std::fmt::Write;

use super::found::{Found, Row, Times};
use super::numbers::{millis, percent, time, times, whole};

/// What stands where there is nothing to tell.
const NOTHING: &str = "–";

/// Rows of cells, the first of which says what the row is about.
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// What there is to tell
impl Table {
    /// What became of the requests of a phase, by endpoint; 429s apart.
    pub(crate) fn of_endpoints(found: &Found) -> Self {
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
        let row = |row: &Row| {
            let Times { count, average, median, min, max, p95, p99 } = row.allowed;
            let times = [average, median, min, max, p95, p99];
            let refused = &row.refused;
            let mut cells =
                vec![row.name.to_owned(), whole(row.requests), whole(row.per_second.round() as u64), whole(count)];
            cells.extend(times.map(|value| if count == 0 { NOTHING.to_owned() } else { millis(value) }));
            cells.extend([whole(row.failures), whole(row.cut_off), whole(refused.count)]);
            let told = |value| if refused.count == 0 { NOTHING.to_owned() } else { millis(value) };
            cells.extend([refused.average, refused.p99].map(told));
            cells
        };
        let rows = found.endpoints.iter().chain([&found.riders, &found.bot]).map(row).collect();
        Self { head: head.map(str::to_owned).into(), rows }
    }

    /// The phases side by side, beside what was published elsewhere.
    pub(crate) fn of_phases(found: &[Found]) -> Self {
        let mut head = vec![String::new()];
        head.extend(found.iter().map(|found| format!("phase {}", found.phase)));
        head.push("published".to_owned());
        let mut rows = Vec::new();
        let mut add = |name: &str, cell: &dyn Fn(&Found) -> String, published: &str| {
            let cells = found.iter().map(cell);
            rows.push([name.to_owned()].into_iter().chain(cells).chain([published.to_owned()]).collect());
        };
        add("p99 of riders' allowed requests", &|found| time(found.riders.allowed.p99), "40 s → 590 ms");
        add("failures of those", &|found| percent(found.riders.failure_rate), "20.1 % → 0.1 %");
        let refusal = |found: &Found, value: f64| match found.refusals_at_server.count {
            0 => NOTHING.to_owned(),
            _ => time(value),
        };
        add("a 429 at the server, average", &|found| refusal(found, found.refusals_at_server.average), "2 ms");
        add("a 429 at the server, p99", &|found| refusal(found, found.refusals_at_server.p99), "10 ms");
        add(
            "requests a second at the service",
            &|found| whole(found.service.requests_per_second.round() as u64),
            "−72 %",
        );
        add("ride requests a second at matching", &|found| whole(rides_a_second(found)), "");
        add("workers busy", &|found| percent(found.service.pool_use), "100 % → 62 %");
        add("wait for a worker, p99", &|found| time(found.service.wait.p99), "30 s → 5 ms");
        add("longest queue for a worker", &|found| whole(found.service.deepest_queue), "");
        add("longest wait for the index", &|found| time(found.service.index_behind), "");
        add("riders matched", &|found| whole(found.crowd.matched as u64), "");
        add("fairness of rides (Jain)", &|found| format!("{:.2}", found.crowd.fairness), "");
        add("requests of the bot let through", &|found| whole(found.bot.allowed.count), "");
        add("most that one had of its limit", &|found| kept(found, |factor, _| times(factor)), "");
        add("requests beyond a limit", &|found| kept(found, |_, beyond| whole(beyond)), "");
        Self { head, rows }
    }
}

/// Showing it
impl Table {
    /// Lines for a terminal: names to the left, numbers to the right.
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

    /// The same for a page.
    pub(crate) fn html(&self) -> String {
        let cells = |row: &[String], tag: &str| {
            let cell = |cell: &String| format!("<{tag}>{}</{tag}>", escaped(cell));
            row.iter().map(cell).collect::<String>()
        };
        let mut rows = String::new();
        for row in &self.rows {
            let _ = writeln!(rows, "<tr>{}</tr>", cells(row, "td"));
        }
        format!("<table><thead><tr>{}</tr></thead>\n<tbody>\n{rows}</tbody></table>\n", cells(&self.head, "th"))
    }
}

/// Text in which nothing is a tag.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn rides_a_second(found: &Found) -> u64 {
    (found.service.ride_requests as f64 / found.seconds.max(0.001)).round() as u64
}

/// What the limit for ride requests of each rider came to.
fn kept(found: &Found, told: impl Fn(f64, u64) -> String) -> String {
    found.limit("ride-request").map_or(NOTHING.to_owned(), |kept| told(kept.factor, found.overshoot()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads_and_a_page_has_no_tags_of_others() {
        let text = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let table = Table { head: text(&["", "ms"]), rows: vec![text(&["a<b", "1,234"]), text(&["µ", "7"])] };
        assert_eq!(table.lines(), ["        ms", "a<b  1,234", "µ        7"]);
        assert!(table.html().contains("<td>a&lt;b</td><td>1,234</td>"), "{}", table.html());
    }
}
