//! The picture of a run: the queue for a worker over time, and how long the riders' requests took, one line and one bar for each phase.

use std::fmt::Write;

use super::format::{format_percent, format_time};
use super::plot::{Plot, Scale, Series};
use super::report::Report;
use super::results::PhaseResults;
use crate::table::escape_html;

/// Sizes in pixels.
const WIDTH: f64 = 440.0;
const MARGIN: f64 = 14.0;
const PLOT_TOP: f64 = 34.0;
const PLOT_HEIGHT: f64 = 200.0;
const BARS_TOP: f64 = 272.0;
const BAR_SPACING: f64 = 36.0;

/// Space between the numbers of two lines that end at the same height.
const MIN_LABEL_SPACING: f64 = 13.0;

/// The styles of a picture in a file of its own.
const STYLE: &str = concat!(include_str!("palette.css"), include_str!("plot.css"));

/// Renders the picture for a page that has the styles.
pub(crate) fn render(report: &Report) -> String {
    let height = BARS_TOP + BAR_SPACING * report.phases.len() as f64 + MARGIN;
    let label = "requests waiting for a worker, and p99 of the riders' allowed requests, in each phase";
    let mut svg = format!(
        "<svg class=\"picture\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>\
         <rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{1}\" height=\"{2}\" rx=\"8\"/>\
         <text class=\"heading\" x=\"{MARGIN}\" y=\"24\">Requests waiting for a worker</text>",
        escape_html(label),
        WIDTH - 1.0,
        height - 1.0,
    );
    let plot = queue_plot(&report.phases);
    // Writing to a string does not fail, here and below.
    let _ = write!(svg, "<g transform=\"translate(0 {PLOT_TOP})\">{}{}</g>", plot.elements(), line_ends(&plot, report));
    svg.push_str(&bars(&report.phases));
    svg + "</svg>\n"
}

/// Renders the picture as an SVG file.
pub(crate) fn render_file(report: &Report) -> String {
    let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"660\" ";
    let svg = render(report).replacen("<svg ", head, 1);
    svg.replacen("<title>", &format!("<style>\n{STYLE}</style><title>"), 1)
}

fn queue_plot(phases: &[PhaseResults]) -> Plot {
    let line = |results: &PhaseResults| {
        let points = (1..).zip(&results.timeline).map(|(second, point)| (f64::from(second), Some(point.queue as f64)));
        Series::Line(results.css_class(), [(0.0, Some(0.0))].into_iter().chain(points).collect())
    };
    let points = phases.iter().flat_map(|results| &results.timeline);
    Plot {
        label: String::new(),
        width: WIDTH - MARGIN,
        height: PLOT_HEIGHT,
        x_max: phases.iter().map(|results| results.timeline.len()).max().unwrap_or(0).max(1) as f64,
        x_unit: "s",
        scale: Scale::fitting(points.map(|point| point.queue as f64)),
        series: phases.iter().map(line).collect(),
    }
}

/// The number of each phase at the end of its line, so that colors are not needed to tell them apart.
fn line_ends(plot: &Plot, report: &Report) -> String {
    let end = |results: &PhaseResults| {
        let queue = results.timeline.last().map_or(0, |point| point.queue) as f64;
        (plot.y(queue), results.phase, results.css_class(), plot.x(results.timeline.len() as f64))
    };
    let mut ends: Vec<_> = report.phases.iter().map(end).collect();
    // From the bottom up; the later phase is lower.
    ends.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    let (mut svg, mut free) = (String::new(), f64::MAX);
    for (y, phase, class, x) in ends {
        let label_y = y.min(free);
        free = label_y - MIN_LABEL_SPACING;
        let _ =
            write!(svg, "<text class=\"end {class}\" x=\"{:.1}\" y=\"{:.1}\">{phase}</text>", x + 5.0, label_y + 4.0);
    }
    svg
}

/// A bar for each phase, which also serves as the legend.
fn bars(phases: &[PhaseResults]) -> String {
    let max = phases.iter().map(|results| results.riders.allowed.p99).fold(1.0, f64::max);
    let (full, right) = (WIDTH - 2.0 * MARGIN, WIDTH - MARGIN);
    let mut svg = format!(
        "<text class=\"heading\" x=\"{MARGIN}\" y=\"{}\">99 % of the riders’ allowed requests end within</text>",
        BARS_TOP - 8.0
    );
    for (results, row) in phases.iter().zip(0..) {
        let (y, class) = (BARS_TOP + BAR_SPACING * f64::from(row), results.css_class());
        let p99 = results.riders.allowed.p99;
        let (width, failed) = ((full * p99 / max).max(2.0), format_percent(results.riders.failure_rate));
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{MARGIN}\" y=\"{0:.0}\"><tspan class=\"end {class}\">{1}</tspan>  {2}</text>\
             <text class=\"value\" x=\"{right}\" y=\"{0:.0}\" text-anchor=\"end\">{3}, {failed} fail</text>\
             <rect class=\"track\" x=\"{MARGIN}\" y=\"{4:.0}\" width=\"{full}\" height=\"7\" rx=\"3.5\"/>\
             <rect class=\"{class}\" x=\"{MARGIN}\" y=\"{4:.0}\" width=\"{width:.1}\" height=\"7\" rx=\"2\"/>",
            y + 15.0,
            results.phase,
            results.short_title(),
            format_time(p99),
            y + 21.0,
        );
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::super::results::TimelinePoint;
    use super::*;

    #[test]
    fn numbers_of_lines_that_end_together_do_not_overlap_and_a_file_has_its_styles() {
        let phase = |phase| {
            let timeline = vec![TimelinePoint { queue: if phase == 1 { 900 } else { 1 }, ..TimelinePoint::default() }];
            PhaseResults { phase, timeline, ..PhaseResults::default() }
        };
        let report = Report { phases: (1..=4).map(phase).collect(), ..Report::default() };
        let ends = line_ends(&queue_plot(&report.phases), &report);
        let ys: Vec<f64> =
            ends.split(" y=\"").skip(1).map(|part| part.split('"').next().unwrap().parse().unwrap()).collect();
        assert_eq!(ys.len(), 4);
        assert!(ys.windows(2).all(|two| two[0] - two[1] >= MIN_LABEL_SPACING - 0.1), "{ys:?}");
        let file = render_file(&report);
        assert!(file.starts_with("<svg xmlns=") && file.contains("prefers-color-scheme: dark"), "{file}");
        assert!(!render(&report).contains("<style>") && !file.contains("NaN"));
    }
}
