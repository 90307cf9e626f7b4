//! `Measurement`: the results of one server, as a row of a table or as JSON.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_server::command::{Output, Style};

use super::latency::Latencies;
use super::server_under_test::ServerKind;
use crate::table::Table;

/// The results of one server.
pub(crate) struct Measurement {
    pub(crate) kind: ServerKind,
    /// CPU time of one request, in the best round.
    pub(crate) cpu: Duration,
    pub(crate) latencies: Latencies,
}

/// The CPU time of one server divided by that of another.
struct Ratio {
    numerator: ServerKind,
    denominator: ServerKind,
}

const RATIOS: [Ratio; 6] = [
    Ratio { numerator: ServerKind::Rls { envoy_files: true }, denominator: ServerKind::Baseline },
    Ratio { numerator: ServerKind::Rls { envoy_files: false }, denominator: ServerKind::Baseline },
    Ratio { numerator: ServerKind::Gateway { limits: true }, denominator: ServerKind::Gateway { limits: false } },
    Ratio { numerator: ServerKind::GatewayLease, denominator: ServerKind::Gateway { limits: true } },
    Ratio { numerator: ServerKind::Nginx { limits: true }, denominator: ServerKind::Nginx { limits: false } },
    Ratio { numerator: ServerKind::Gateway { limits: true }, denominator: ServerKind::Nginx { limits: true } },
];

impl Measurement {
    fn micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6
    }

    fn per_second(&self) -> f64 {
        if self.cpu.is_zero() { 0.0 } else { (1.0 / self.cpu.as_secs_f64()).round() }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.kind.name(),
            "title": self.kind.title(),
            "cpu_us": round_to_thousandths(self.micros()),
            "per_second_and_core": self.per_second(),
            "latency": self.latencies.json(),
        })
    }
}

/// The ratios of which both servers were measured.
fn ratios(measurements: &[Measurement]) -> Vec<(&'static Ratio, f64)> {
    let cpu_micros = |kind| {
        measurements
            .iter()
            .find(|measurement| measurement.kind == kind)
            .map(Measurement::micros)
            .filter(|micros| *micros > 0.0)
    };
    RATIOS
        .iter()
        .filter_map(|ratio| Some((ratio, cpu_micros(ratio.numerator)? / cpu_micros(ratio.denominator)?)))
        .collect()
}

/// The JSON values of the servers and of the ratios.
pub(crate) fn to_json(measurements: &[Measurement]) -> (Value, Value) {
    let ratio = |(ratio, number): &(&Ratio, f64)| json!({ "of": ratio.numerator.name(), "to": ratio.denominator.name(), "ratio": round_to_thousandths(*number) });
    (measurements.iter().map(Measurement::json).collect(), ratios(measurements).iter().map(ratio).collect())
}

/// Prints the table, and the ratios below it.
pub(crate) fn print_table(measurements: &[Measurement], rate: u32, output: &mut Output<'_>) {
    let columns = ["", "µs CPU", "a second and core", "p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "max µs"];
    let mut table = Table::new("", columns);
    for measurement in measurements {
        let latencies = measurement.latencies.micros().map(|micros| (micros as f64, 0));
        let cpu = [(measurement.micros(), 2), (measurement.per_second(), 0)];
        table.figures(measurement.kind.title(), cpu.into_iter().chain(latencies));
    }
    let width = measurements.iter().map(|measurement| measurement.kind.title().len()).max().unwrap_or(0);
    output.line(format_args!("{:width$}                             latencies at {rate} a second", ""));
    print_lines(&table, output);
    let ratios = ratios(measurements);
    if ratios.is_empty() {
        return;
    }
    output.line("");
    for (ratio, number) in ratios {
        output.line(format_args!("{number:.2}  {} / {}", ratio.numerator.title(), ratio.denominator.title()));
    }
}

/// Prints the lines of a table, the head in bold.
pub(crate) fn print_lines(table: &Table, output: &mut Output<'_>) {
    for (index, line) in table.lines().into_iter().enumerate() {
        output.line(if index == 0 { output.styled(Style::Bold, line) } else { line });
    }
}

fn round_to_thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
