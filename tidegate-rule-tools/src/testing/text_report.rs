//! A [`TestRun`] as text: a line for each test, and for failed ones the positions, the requests, and the expected and actual
//! values.

use std::fmt::Write;

use tidegate_rules::internals::format_duration;
use tidegate_rules::{RequestDescription, sanitize};

use super::{TestFailure, TestOutcome, TestRun};

/// Headers whose values are usually secrets.
const SECRET_HEADERS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// The longest value of a request that is printed in full.
const MAX_VALUE_CHARS: usize = 60;

/// The style of a text.
#[derive(Clone, Copy)]
enum LineStyle {
    Pass,
    Fail,
    Dim,
    Bold,
}

pub(super) fn render(run: &TestRun, colour: bool) -> String {
    let paint = |style: LineStyle, text: &str| if colour { style.paint(text) } else { text.to_owned() };
    let mut shown = format!("{}\n", paint(LineStyle::Bold, &sanitize(&run.file)));
    for test in &run.tests {
        let mark = if test.passed() { paint(LineStyle::Pass, "✓") } else { paint(LineStyle::Fail, "✗") };
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
            let _ = writeln!(shown, "  {}", paint(LineStyle::Dim, &format!("{what}: {}", rules.join(", "))));
        }
    }
    let failed = run.tests.iter().filter(|test| !test.passed()).count();
    let requests: u64 = run.tests.iter().map(|test| test.requests).sum();
    let tests = count(run.tests.len() as u64, "test");
    let verdict = match failed {
        0 => paint(LineStyle::Pass, "all passed"),
        failed => paint(LineStyle::Fail, &format!("{failed} failed")),
    };
    let _ = writeln!(shown, "  {tests}, {}: {verdict}", count(requests, "request"));
    shown
}

/// The failures of one test as plain text.
pub(super) fn plain(run: &TestRun, test: &TestOutcome) -> String {
    let steps = test.failures.chunk_by(|one, next| one.step == next.step);
    steps.map(|failures| block(run, failures, &|_, text: &str| text.to_owned())).collect()
}

/// The request in one line.
pub(super) fn format_request(description: &RequestDescription) -> String {
    let mut parts: Vec<String> = Vec::new();
    let line: Vec<_> = [&description.method, &description.path].into_iter().flatten().map(|part| short(part)).collect();
    parts.extend((!line.is_empty()).then(|| line.join(" ")));
    let mut named = |name: &str, value: &str| parts.push(format!("{name}: {}", short(value)));
    for (name, value) in [
        ("action", &description.action),
        ("host", &description.host),
        ("ip", &description.ip),
        ("tenant", &description.tenant),
    ] {
        if let Some(value) = value {
            named(name, value);
        }
    }
    for (name, value) in &description.headers {
        let secret = SECRET_HEADERS.iter().any(|secret| name.eq_ignore_ascii_case(secret));
        named(name, if secret { "…" } else { value });
    }
    for (name, value) in &description.attributes {
        named(name, value);
    }
    if let Some(body) = &description.body {
        named("body", body);
    }
    if let Some(size) = description.size {
        named("size", &size.to_string());
    }
    if let Some(cost) = description.cost {
        named("cost", &cost.to_string());
    }
    if parts.is_empty() { "a request without attributes".into() } else { parts.join(", ") }
}

/// The failures of one step.
fn block(run: &TestRun, failures: &[TestFailure], paint: &impl Fn(LineStyle, &str) -> String) -> String {
    let Some(first) = failures.first() else { return String::new() };
    let mut shown = String::new();
    let position = format!("{}:{}:{}", sanitize(&run.file), first.line, first.column);
    let _ = writeln!(shown, "      {position}, at {}", format_duration(first.at));
    let _ = writeln!(shown, "      {}\n", paint(LineStyle::Dim, &sanitize(&first.request)));
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
        let wanted = paint(LineStyle::Pass, &format!("{wanted:expected$}"));
        let _ = writeln!(shown, "        {field:what$}  {wanted}  {}", paint(LineStyle::Fail, got));
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

/// The rules that applied but refused no request.
fn reached_only(run: &TestRun) -> Vec<&str> {
    let reached = run.coverage.iter().filter(|rule| rule.applied > 0 && rule.denied == 0);
    reached.map(|rule| rule.id.as_str()).collect()
}

fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A value on one line, truncated if it is long.
fn short(value: &str) -> String {
    let one_line: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if one_line.chars().count() <= MAX_VALUE_CHARS {
        return one_line;
    }
    one_line.chars().take(MAX_VALUE_CHARS).chain(['…']).collect()
}

impl LineStyle {
    fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Pass => 32,
            Self::Fail => 31,
            Self::Dim => 2,
            Self::Bold => 1,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
