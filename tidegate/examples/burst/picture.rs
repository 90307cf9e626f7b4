//! The picture: time runs to the right, a column is 100 ms, and each limit has a lane of two rows.

use std::time::Duration;

use crate::scenario::{Lane, PHASES};

/// The width of the names left of the lanes. The picture fits into a terminal of 80 by 24.
const NAME_WIDTH: usize = 23;
const COLUMNS: usize = 52;
const COLUMN_MILLIS: u64 = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Colour,
    Unicode,
    Plain,
}

/// The colour of a text, as the number of its terminal escape code.
enum Ink {
    Strong = 1,
    Aside = 2,
    Denied = 31,
    Passed = 32,
    Held = 33,
}

/// The legend, the requests, the lanes and the totals.
pub(crate) fn draw(sent: &[Duration], lanes: &[Lane], style: Style) -> String {
    let title =
        format!("Ann sends {} requests in 4 seconds. Five limits of 10 a second treat them like this:", sent.len());
    let phases = labels(PHASES.iter().map(|(name, start, ..)| (*start, (*name).into())));
    let seconds = labels((0..=5).map(|second| (second * 1000, format!("{second} s"))));
    let heading = table_row("", ["passed", "held", "denied", "busiest second", "first retry-after"].map(Into::into));
    let mut lines = vec![
        style.paint(Ink::Strong, &title),
        legend(style),
        format!("\n{:NAME_WIDTH$}{phases}", ""),
        format!("{:NAME_WIDTH$}{}", "sent", per_column(sent).map(|count| style.bar(count)).concat()),
        style.paint(Ink::Aside, &format!("{:NAME_WIDTH$}{seconds}", "")),
    ];
    lines.extend(lanes.iter().flat_map(|lane| rows(lane, style)));
    lines.push(style.paint(Ink::Strong, &format!("\n{heading}")));
    lines.extend(lanes.iter().map(totals));
    lines.iter().fold(String::new(), |page, line| page + line.trim_end() + "\n")
}

fn legend(style: Style) -> String {
    let bars = [1, 2, 5, 10].map(|count| style.bar(count)).concat();
    let passed = style.paint(Ink::Passed, &format!("{bars} passed, 1 to 10 in 0.1 s"));
    let held = style.paint(Ink::Held, &format!("{} held, then passed", style.or_ascii("∘", "o")));
    let denied = style.paint(Ink::Denied, &format!("{} denied", style.or_ascii("×", "x")));
    format!("{passed}   {held}   {denied}")
}

/// The upper row shows when requests pass, the lower one when they are denied.
fn rows(lane: &Lane, style: Style) -> [String; 2] {
    let [passed, held, denied] = [&lane.passed, &lane.held, &lane.denied].map(|moments| per_column(moments));
    let cell = |column: usize| match held[column] {
        0 => style.paint(Ink::Passed, style.bar(passed[column])),
        _ => style.paint(Ink::Held, style.or_ascii("∘", "o")),
    };
    let mut through: String = (0..COLUMNS).map(cell).collect();
    if passed.windows(2).any(|pair| pair[0] + pair[1] >= 20) {
        let remark = style.or_ascii(" ← double burst", " < double burst");
        through = through.trim_end().to_owned() + &style.paint(Ink::Strong, remark);
    }
    let cross = style.or_ascii("×", "x");
    let refused = denied.map(|count| style.paint(Ink::Denied, if count > 0 { cross } else { " " })).concat();
    let meaning = style.paint(Ink::Aside, &format!("  {:1$}", lane.meaning, NAME_WIDTH - 2));
    [format!("{:NAME_WIDTH$}{through}", lane.limit), meaning + &refused]
}

fn totals(lane: &Lane) -> String {
    let counts = [lane.passed.len(), lane.held.len(), lane.denied.len(), lane.busiest_second()];
    let [passed, held, denied, busiest] = counts.map(|count| count.to_string());
    table_row(lane.limit, [passed, held, denied, busiest, format!("{:?}", lane.first_retry.unwrap_or_default())])
}

fn table_row(name: &str, [passed, held, denied, busiest, retry]: [String; 5]) -> String {
    format!("{name:NAME_WIDTH$}{passed:>6}{held:>6}{denied:>8}{busiest:>16}{retry:>19}")
}

/// The number of these times in each column. The last column includes later ones.
fn per_column(moments: &[Duration]) -> [usize; COLUMNS] {
    let mut counts = [0; COLUMNS];
    for at in moments {
        counts[column(at.as_millis() as u64).min(COLUMNS - 1)] += 1;
    }
    counts
}

/// A line with each text at its time.
fn labels(texts: impl Iterator<Item = (u64, String)>) -> String {
    texts.fold(String::new(), |line, (millis, text)| format!("{line:0$}{text}", column(millis)))
}

fn column(millis: u64) -> usize {
    (millis / COLUMN_MILLIS) as usize
}

impl Style {
    /// The height of a column with this many requests; ten or more fill it.
    fn bar(self, count: usize) -> &'static str {
        const BARS: [&str; 11] = [" ", "▁", "▂", "▃", "▄", "▄", "▅", "▆", "▇", "▇", "█"];
        const DIGITS: [&str; 11] = [" ", "1", "2", "3", "4", "5", "6", "7", "8", "9", "#"];
        self.or_ascii(BARS[count.min(10)], DIGITS[count.min(10)])
    }

    fn or_ascii(self, unicode: &'static str, ascii: &'static str) -> &'static str {
        if self == Self::Plain { ascii } else { unicode }
    }

    fn paint(self, ink: Ink, text: &str) -> String {
        if self == Self::Colour && text != " " { format!("\x1b[{}m{text}\x1b[0m", ink as u8) } else { text.to_owned() }
    }
}
