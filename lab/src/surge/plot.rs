//! `Plot`: lines and areas as SVG.

use std::fmt::Write;

use crate::table::escape_html;

/// Margins in pixels.
const LEFT: f64 = 48.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;

pub(crate) struct Plot {
    /// The text for screen readers.
    pub(crate) label: String,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) x_max: f64,
    pub(crate) x_unit: &'static str,
    pub(crate) scale: Scale,
    pub(crate) series: Vec<Series>,
}

/// The scale of the y axis.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    /// From zero to a maximum.
    Linear(f64),
    /// Milliseconds between two powers of ten, given by their exponents.
    Log(i32, i32),
}

/// A curve; its CSS class decides the color.
pub(crate) enum Series {
    /// Connected points (x, y); a missing y breaks the line.
    Line(&'static str, Vec<(f64, Option<f64>)>),
    /// The area between two lines: x, lower y, upper y.
    Area(&'static str, Vec<(f64, f64, f64)>),
}

impl Plot {
    /// Width and height of a plot beside others.
    pub(crate) const SMALL: (f64, f64) = (300.0, 170.0);

    pub(crate) fn svg(&self) -> String {
        let (label, width, height) = (escape_html(&self.label), self.width, self.height);
        format!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\"><title>{label}</title>{}</svg>\n",
            self.elements()
        )
    }

    /// Axes and series, without the element around them.
    pub(crate) fn elements(&self) -> String {
        let mut svg = String::new();
        for (value, text) in self.scale.ticks() {
            let y = self.y(value);
            // Writing to a string does not fail, here and below.
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                self.width - RIGHT,
                LEFT - 5.0,
                y + 3.5
            );
        }
        let x_ticks = even_ticks(self.x_max);
        let last = x_ticks.len() - 1;
        for (number, (value, text)) in x_ticks.into_iter().enumerate() {
            let (x, y) = (self.x(value), self.height - BOTTOM + 16.0);
            let text = if number == last { format!("{text} {}", self.x_unit) } else { text };
            let anchor = match value {
                0.0 => "start",
                // The last label stays inside the plot.
                value if value >= self.x_max * 0.98 => "end",
                _ => "middle",
            };
            let _ =
                write!(svg, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
        }
        for series in &self.series {
            svg.push_str(&self.path(series));
        }
        svg
    }

    fn path(&self, series: &Series) -> String {
        let mut path = String::new();
        match series {
            Series::Line(class, points) => {
                let mut joined = false;
                for (x, y) in points {
                    if let Some(y) = y {
                        let _ = write!(path, "{}{:.1} {:.1}", if joined { 'L' } else { 'M' }, self.x(*x), self.y(*y));
                    }
                    joined = y.is_some();
                }
                format!("<path class=\"line {class}\" d=\"{path}\"/>")
            }
            Series::Area(class, points) => {
                let upper = points.iter().map(|(x, _, upper)| (*x, *upper));
                let lower = points.iter().rev().map(|(x, lower, _)| (*x, *lower));
                for (x, y) in upper.chain(lower) {
                    let _ =
                        write!(path, "{}{:.1} {:.1}", if path.is_empty() { 'M' } else { 'L' }, self.x(x), self.y(y));
                }
                format!("<path class=\"area {class}\" d=\"{path}Z\"/>")
            }
        }
    }

    pub(crate) fn x(&self, value: f64) -> f64 {
        LEFT + (self.width - LEFT - RIGHT) * value / self.x_max.max(f64::MIN_POSITIVE)
    }

    pub(crate) fn y(&self, value: f64) -> f64 {
        let height = match self.scale {
            Scale::Linear(max) => value / max.max(f64::MIN_POSITIVE),
            Scale::Log(min, max) => {
                let (min, max) = (f64::from(min), f64::from(max));
                (value.max(f64::MIN_POSITIVE).log10() - min) / (max - min)
            }
        };
        self.height - BOTTOM - (self.height - TOP - BOTTOM) * height.clamp(0.0, 1.0)
    }
}

impl Scale {
    /// A linear scale up to a round number that no value exceeds.
    pub(crate) fn fitting(values: impl Iterator<Item = f64>) -> Self {
        let max = values.fold(1.0, f64::max);
        Self::Linear((max / step(max) - 1e-9).ceil() * step(max))
    }

    fn ticks(self) -> Vec<(f64, String)> {
        match self {
            Self::Linear(max) => even_ticks(max),
            Self::Log(min, max) => (min..=max)
                .map(|power| {
                    let value = 10_f64.powi(power);
                    let text = if power < 3 { format!("{value} ms") } else { format!("{} s", value / 1000.0) };
                    (value, text)
                })
                .collect(),
        }
    }
}

/// About four round numbers from zero to `max`.
fn even_ticks(max: f64) -> Vec<(f64, String)> {
    let step = step(max);
    let count = (max / step + 1e-9).floor() as u32;
    let text = |value: f64| if value >= 1000.0 { format!("{}k", value / 1000.0) } else { format!("{value}") };
    (0..=count).map(|number| f64::from(number) * step).map(|value| (value, text(value))).collect()
}

/// A round number that is at least a quarter of `max`.
fn step(max: f64) -> f64 {
    let quarter = max.max(1e-9) / 4.0;
    let power = 10_f64.powi(quarter.log10().floor() as i32);
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|round| round * power >= quarter * 0.9999);
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_up_to_the_maximum() {
        let texts = |max| even_ticks(max).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts(45.0), ["0", "20", "40"]);
        assert_eq!(texts(40_000.0), ["0", "10k", "20k", "30k", "40k"]);
        assert!(matches!(Scale::fitting([9_432.0].into_iter()), Scale::Linear(max) if (max - 10_000.0).abs() < 1e-6));
    }

    #[test]
    fn a_line_breaks_at_missing_values_and_stays_inside_the_plot() {
        let points = vec![(0.0, Some(1.0)), (1.0, None), (2.0, Some(1e9)), (3.0, Some(0.0))];
        let scale = Scale::Log(0, 5);
        let series = vec![Series::Line("p99", points)];
        let (width, height) = Plot::SMALL;
        let plot = Plot { label: "a < b".to_owned(), width, height, x_max: 3.0, x_unit: "s", scale, series };
        let svg = plot.svg();
        assert_eq!(svg.matches('M').count(), 2, "{svg}");
        assert!(svg.contains("aria-label=\"a &lt; b\"") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
