//! A [`TestRun`] for people: a line for each test, and below one that failed the places, the requests, and what was
//! expected beside what came.

use std::fmt::Write;

use super::{TestFailure, TestOutcome, TestRun};
use crate::quantity::format_duration;
use crate::sample_request::SampleRequest;
use crate::sanitize;

/// Headers whose values are secrets more often than not.
const SECRET: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// The longest value of a request that is shown whole, in characters.
const MAX_VALUE_CHARS: usize = 60;

/// What a text looks like.
#[derive(Clone, Copy)]
enum Style {
    Good,
    Bad,
    Faint,
    Strong,
}

pub(super) fn render(run: &TestRun, colour: bool) -> String {
    let paint = |style: Style, text: &str| if colour { style.paint(text) } else { text.to_owned() };
    let mut shown = format!("{}\n", paint(Style::Strong, &sanitize(&run.file)));
    for test in &run.tests {
        let mark = if test.passed() { paint(Style::Good, "✓") } else { paint(Style::Bad, "✗") };
        // Writing to a string cannot fail.
        let _ = writeln!(shown, "  {mark} {}", sanitize(&test.name));
        for failures in test.failures.chunk_by(|one, next| one.step == next.step) {
            shown.push_str(&block(run, failures, &paint));
        }
    }
    for (what, rules) in [
        ("rules that no test reaches", run.unexercised().collect::<Vec<_>>()),
        ("rules that no test saw deny", reached_only(run)),
    ] {
        if !rules.is_empty() {
            let _ = writeln!(shown, "  {}", paint(Style::Faint, &format!("{what}: {}", rules.join(", "))));
        }
    }
    let failed = run.tests.iter().filter(|test| !test.passed()).count();
    let requests: u64 = run.tests.iter().map(|test| test.requests).sum();
    let tests = count(run.tests.len() as u64, "test");
    let verdict = match failed {
        0 => paint(Style::Good, "all passed"),
        failed => paint(Style::Bad, &format!("{failed} failed")),
    };
    let _ = writeln!(shown, "  {tests}, {}: {verdict}", count(requests, "request"));
    shown
}

/// The failures of one test as plain text, for a report that has places of its own.
pub(super) fn plain(run: &TestRun, test: &TestOutcome) -> String {
    let steps = test.failures.chunk_by(|one, next| one.step == next.step);
    steps.map(|failures| block(run, failures, &|_, text: &str| text.to_owned())).collect()
}

/// The request in one line: what it is, who sends it, and what else it brings.
pub(super) fn request(sample: &SampleRequest) -> String {
    let mut parts: Vec<String> = Vec::new();
    let line: Vec<_> = [&sample.method, &sample.path].into_iter().flatten().map(|part| short(part)).collect();
    parts.extend((!line.is_empty()).then(|| line.join(" ")));
    let mut named = |name: &str, value: &str| parts.push(format!("{name}: {}", short(value)));
    for (name, value) in
        [("action", &sample.action), ("host", &sample.host), ("ip", &sample.ip), ("tenant", &sample.tenant)]
    {
        if let Some(value) = value {
            named(name, value);
        }
    }
    for (name, value) in &sample.headers {
        let secret = SECRET.iter().any(|secret| name.eq_ignore_ascii_case(secret));
        named(name, if secret { "…" } else { value });
    }
    for (name, value) in &sample.attributes {
        named(name, value);
    }
    if let Some(body) = &sample.body {
        named("body", body);
    }
    if let Some(cost) = sample.cost {
        named("cost", &cost.to_string());
    }
    if parts.is_empty() { "a request that brings nothing".into() } else { parts.join(", ") }
}

/// What differs in one step.
fn block(run: &TestRun, failures: &[TestFailure], paint: &impl Fn(Style, &str) -> String) -> String {
    let Some(first) = failures.first() else { return String::new() };
    let mut shown = String::new();
    let place = format!("{}:{}:{}", sanitize(&run.file), first.line, first.column);
    let _ = writeln!(shown, "      {place}, at {}", format_duration(first.at));
    let _ = writeln!(shown, "      {}\n", paint(Style::Faint, &sanitize(&first.request)));
    let rows: Vec<[String; 3]> = failures
        .iter()
        .map(|failure| [&failure.what, &failure.expected, &failure.got].map(|cell| sanitize(cell)))
        .collect();
    let width = |column: usize, least: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default().max(least)
    };
    let (what, expected) = (width(0, 0), width(1, "expected".len()));
    let _ = writeln!(shown, "        {:what$}  {:expected$}  got", "", "expected");
    for [field, wanted, got] in &rows {
        let wanted = paint(Style::Good, &format!("{wanted:expected$}"));
        let _ = writeln!(shown, "        {field:what$}  {wanted}  {}", paint(Style::Bad, got));
    }
    shown.push('\n');
    let mut notes: Vec<&str> = failures.iter().filter_map(|failure| failure.note.as_deref()).collect();
    notes.dedup();
    for note in &notes {
        let _ = writeln!(shown, "      hint: {}", sanitize(note));
    }
    if !notes.is_empty() {
        shown.push('\n');
    }
    shown
}

/// The rules that applied and refused nothing.
fn reached_only(run: &TestRun) -> Vec<&str> {
    let reached = run.coverage.iter().filter(|rule| rule.applied > 0 && rule.denied == 0);
    reached.map(|rule| rule.id.as_str()).collect()
}

fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A value on one line and not too long.
fn short(value: &str) -> String {
    let one_line: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if one_line.chars().count() <= MAX_VALUE_CHARS {
        return one_line;
    }
    one_line.chars().take(MAX_VALUE_CHARS).chain(['…']).collect()
}

impl Style {
    fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Good => 32,
            Self::Bad => 31,
            Self::Faint => 2,
            Self::Strong => 1,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
