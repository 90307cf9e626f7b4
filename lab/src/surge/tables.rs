//! The tables of the console and of the page.

use super::format::{format_count, format_factor, format_millis, format_percent, format_time};
use super::results::{LatencySummary, PhaseResults, RequestStats};
use crate::table::Table;

/// The text of a cell without a value.
const EMPTY_CELL: &str = "–";

/// A title, and the text of a cell.
type Column<'c> = (&'c str, &'c dyn Fn(&RequestStats) -> String);

/// The requests of a phase by endpoint; 429 responses have columns of their own.
pub(crate) fn endpoint_table(results: &PhaseResults) -> Table {
    let millis = |summary: &LatencySummary, value: f64| match summary.count {
        0 => EMPTY_CELL.to_owned(),
        _ => format_millis(value),
    };
    let columns: [Column<'_>; 14] = [
        ("requests", &|row| format_count(row.requests)),
        ("RPS", &|row| format_count(row.per_second.round() as u64)),
        ("allowed", &|row| format_count(row.allowed.count)),
        ("average", &|row| millis(&row.allowed, row.allowed.average)),
        ("median", &|row| millis(&row.allowed, row.allowed.median)),
        ("min", &|row| millis(&row.allowed, row.allowed.min)),
        ("max", &|row| millis(&row.allowed, row.allowed.max)),
        ("p95", &|row| millis(&row.allowed, row.allowed.p95)),
        ("p99", &|row| millis(&row.allowed, row.allowed.p99)),
        ("failed", &|row| format_count(row.failures)),
        ("cut off", &|row| format_count(row.cut_off)),
        ("429s", &|row| format_count(row.refused.count)),
        ("429 average", &|row| millis(&row.refused, row.refused.average)),
        ("429 p99", &|row| millis(&row.refused, row.refused.p99)),
    ];
    let mut table = Table::new("", [""].into_iter().chain(columns.iter().map(|(title, _)| *title)));
    let flood = Some(&results.flood).filter(|_| results.flood_limit.is_some());
    for row in results.endpoints.iter().chain([&results.riders, &results.bot]).chain(flood) {
        table.formatted(row.name, columns.iter().map(|(_, cell)| cell(row)));
    }
    table
}

/// The phases side by side.
pub(crate) fn phase_table(phases: &[PhaseResults]) -> Table {
    let titles = phases.iter().map(|results| format!("phase {}", results.phase));
    let mut table = Table::new("", [String::new()].into_iter().chain(titles));
    let mut add = |name: &str, cell: &dyn Fn(&PhaseResults) -> String| table.formatted(name, phases.iter().map(cell));
    let or_empty = |text: Option<String>| text.unwrap_or_else(|| EMPTY_CELL.to_owned());
    let refusal = |results: &PhaseResults, value: f64| {
        or_empty((results.refusals_at_server.count > 0).then(|| format_time(value)))
    };
    add("p99 of riders' allowed requests", &|results| format_time(results.riders.allowed.p99));
    add("failures of those", &|results| format_percent(results.riders.failure_rate));
    add("a 429 at the gateway, average", &|results| refusal(results, results.refusals_at_server.average));
    add("a 429 at the gateway, p99", &|results| refusal(results, results.refusals_at_server.p99));
    add("requests per second at the service", &|results| {
        format_count(results.service.requests_per_second.round() as u64)
    });
    add("ride requests per second at matching", &|results| {
        format_count((results.service.ride_requests as f64 / results.seconds.max(0.001)).round() as u64)
    });
    add("workers busy", &|results| format_percent(results.service.pool_use));
    add("wait for a worker, p99", &|results| format_time(results.service.wait.p99));
    add("longest queue for a worker", &|results| format_count(results.service.deepest_queue));
    add("longest backlog of the index", &|results| format_time(results.service.index_behind));
    add("riders matched", &|results| format_count(results.crowd.matched as u64));
    add("fairness of rides (Jain)", &|results| format!("{:.2}", results.crowd.fairness));
    add("allowed requests of the bot", &|results| format_count(results.bot.allowed.count));
    add("requests of the flood", &|results| {
        or_empty(results.flood_limit.as_ref().map(|_| format_count(results.flood.requests)))
    });
    add("allowed requests of the flood", &|results| {
        or_empty(results.flood_limit.as_ref().map(|audit| format_count(audit.admitted)))
    });
    add("largest multiple of a limit", &|results| {
        or_empty(results.ride_limit().map(|audit| format_factor(audit.factor)))
    });
    add("requests over a limit", &|results| or_empty(results.ride_limit().map(|_| format_count(results.overshoot()))));
    table
}
