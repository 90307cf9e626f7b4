//! `Plot`: lines and areas as SVG. It knows pixels and scales, and nothing about riders.

use std::fmt::Write;

use super::table::escaped;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;

/// A picture with two axes.
pub(crate) struct Plot {
    /// What is to be seen, for those who cannot.
    pub(crate) label: String,
    /// How many times as wide as usual.
    pub(crate) wide: f64,
    pub(crate) right: f64,
    pub(crate) below: &'static str,
    pub(crate) scale: Scale,
    pub(crate) shapes: Vec<Shape>,
}

/// What the height means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    /// From nothing to so much.
    Linear(f64),
    /// Milliseconds between two powers of ten.
    Log(i32, i32),
}

/// Something drawn; the class says in which colour.
pub(crate) enum Shape {
    /// Points that are joined, where there are any.
    Line(&'static str, Vec<(f64, Option<f64>)>),
    /// What lies between two lines: x, lower, upper.
    Area(&'static str, Vec<(f64, f64, f64)>),
}

impl Plot {
    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let (width, label) = (self.width(), escaped(&self.label));
        let mut svg =
            format!("<svg viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" aria-label=\"{label}\"><title>{label}</title>");
        for (value, text) in self.scale.ticks() {
            let y = self.y(value);
            // Writing to a string does not fail, here and below.
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                width - RIGHT,
                LEFT - 5.0,
                y + 3.5
            );
        }
        for (value, text) in even_ticks(self.right) {
            let (x, y) = (self.x(value), HEIGHT - BOTTOM + 14.0);
            let text = if value > 0.0 { text } else { format!("{text} {}", self.below) };
            let anchor = match value {
                0.0 => "start",
                // What ends where the picture ends stays inside.
                value if value >= self.right * 0.98 => "end",
                _ => "middle",
            };
            let _ =
                write!(svg, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
        }
        for shape in &self.shapes {
            svg.push_str(&self.drawn(shape));
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn drawn(&self, shape: &Shape) -> String {
        let mut path = String::new();
        match shape {
            Shape::Line(class, points) => {
                let mut joined = false;
                for (x, y) in points {
                    if let Some(y) = y {
                        let _ = write!(path, "{}{:.1} {:.1}", if joined { 'L' } else { 'M' }, self.x(*x), self.y(*y));
                    }
                    joined = y.is_some();
                }
                format!("<path class=\"line {class}\" d=\"{path}\"/>")
            }
            Shape::Area(class, points) => {
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

    fn width(&self) -> f64 {
        WIDTH * self.wide
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (self.width() - LEFT - RIGHT) * value / self.right.max(f64::MIN_POSITIVE)
    }

    fn y(&self, value: f64) -> f64 {
        let height = match self.scale {
            Scale::Linear(most) => value / most.max(f64::MIN_POSITIVE),
            Scale::Log(least, most) => {
                let (least, most) = (f64::from(least), f64::from(most));
                (value.max(f64::MIN_POSITIVE).log10() - least) / (most - least)
            }
        };
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * height.clamp(0.0, 1.0)
    }
}

impl Scale {
    /// Up to a round number that is not below any of the values.
    pub(crate) fn above(values: impl Iterator<Item = f64>) -> Self {
        Self::Linear(step(values.fold(1.0, f64::max)) * 4.0)
    }

    fn ticks(self) -> Vec<(f64, String)> {
        match self {
            Self::Linear(most) => even_ticks(most),
            Self::Log(least, most) => (least..=most)
                .map(|power| {
                    let value = 10_f64.powi(power);
                    let text = if power < 3 { format!("{value} ms") } else { format!("{} s", value / 1000.0) };
                    (value, text)
                })
                .collect(),
        }
    }
}

/// Round numbers from nothing to `most`, about four of them.
fn even_ticks(most: f64) -> Vec<(f64, String)> {
    let step = step(most);
    let count = (most / step + 1e-9).floor() as u32;
    let text = |value: f64| if value >= 10_000.0 { format!("{}k", value / 1000.0) } else { format!("{value}") };
    (0..=count).map(|number| f64::from(number) * step).map(|value| (value, text(value))).collect()
}

/// A round number that is not below a quarter of `most`.
fn step(most: f64) -> f64 {
    let quarter = most.max(1e-9) / 4.0;
    let power = 10_f64.powi(quarter.log10().floor() as i32);
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|round| round * power >= quarter * 0.9999);
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_top() {
        let texts = |most| even_ticks(most).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts(45.0), ["0", "20", "40"]);
        assert_eq!(texts(40_000.0), ["0", "10k", "20k", "30k", "40k"]);
        assert!(matches!(Scale::above([9_432.0].into_iter()), Scale::Linear(most) if (most - 10_000.0).abs() < 1e-6));
    }

    #[test]
    fn a_line_is_broken_where_there_is_nothing_and_stays_inside() {
        let points = vec![(0.0, Some(1.0)), (1.0, None), (2.0, Some(1e9)), (3.0, Some(0.0))];
        let scale = Scale::Log(0, 5);
        let shapes = vec![Shape::Line("p99", points)];
        let plot = Plot { label: "a < b".to_owned(), wide: 1.0, right: 3.0, below: "s", scale, shapes };
        let svg = plot.svg();
        assert_eq!(svg.matches('M').count(), 2, "{svg}");
        assert!(svg.contains("aria-label=\"a &lt; b\"") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
