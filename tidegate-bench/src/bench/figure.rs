//! `Figures`: what was found, as a table for people or as JSON for programs. It measures nothing.

use std::time::Duration;

use serde_json::{Value, json};

use super::latency::Latencies;
use super::subject::Kind;
use tidegate_server::command::{Output, Style};

/// What was found of one server.
pub(crate) struct Figure {
    pub(crate) kind: Kind,
    /// CPU time of one request, in the best round.
    pub(crate) cpu: Duration,
    pub(crate) latencies: Latencies,
}

/// What one kind costs in terms of another.
struct Ratio {
    of: Kind,
    to: Kind,
}

const RATIOS: [Ratio; 5] = [
    Ratio { of: Kind::Rls { files: true }, to: Kind::Nothing },
    Ratio { of: Kind::Rls { files: false }, to: Kind::Nothing },
    Ratio { of: Kind::Gateway { limits: true }, to: Kind::Gateway { limits: false } },
    Ratio { of: Kind::Nginx { limits: true }, to: Kind::Nginx { limits: false } },
    Ratio { of: Kind::Gateway { limits: true }, to: Kind::Nginx { limits: true } },
];

impl Figure {
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
            "cpu_us": rounded(self.micros()),
            "per_second_and_core": self.per_second(),
            "latency": self.latencies.json(),
        })
    }
}

/// The ratios between what was measured.
fn ratios(figures: &[Figure]) -> Vec<(&'static Ratio, f64)> {
    let of =
        |kind| figures.iter().find(|figure| figure.kind == kind).map(Figure::micros).filter(|micros| *micros > 0.0);
    RATIOS.iter().filter_map(|ratio| Some((ratio, of(ratio.of)? / of(ratio.to)?))).collect()
}

pub(crate) fn json(figures: &[Figure]) -> (Value, Value) {
    let ratio = |(ratio, number): &(&Ratio, f64)| json!({ "of": ratio.of.name(), "to": ratio.to.name(), "ratio": rounded(*number) });
    (figures.iter().map(Figure::json).collect(), ratios(figures).iter().map(ratio).collect())
}

/// The table, and the ratios below it.
pub(crate) fn print(figures: &[Figure], rate: u32, output: &mut Output<'_>) {
    let wide = figures.iter().map(|figure| figure.kind.title().len()).max().unwrap_or(0);
    output.line(format_args!("{:wide$}                             latencies at {rate} a second", ""));
    let head = format!("{:wide$}  µs CPU  a second and core  p50 µs  p90 µs  p99 µs  p99.9 µs  max µs", "");
    output.line(output.styled(Style::Bold, head));
    for figure in figures {
        let [p50, p90, p99, p999, max] = figure.latencies.micros();
        output.line(format_args!(
            "{:wide$}  {:>6.2}  {:>17}  {p50:>6}  {p90:>6}  {p99:>6}  {p999:>8}  {max:>6}",
            figure.kind.title(),
            figure.micros(),
            figure.per_second(),
        ));
    }
    let ratios = ratios(figures);
    if ratios.is_empty() {
        return;
    }
    output.line("");
    for (ratio, number) in ratios {
        output.line(format_args!("{number:.2}  {} / {}", ratio.of.title(), ratio.to.title()));
    }
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
