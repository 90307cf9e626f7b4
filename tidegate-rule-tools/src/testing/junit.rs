//! [`TestRun`]s as `JUnit` XML: a suite for each file, a case for each test. Times are left out, since virtual time
//! takes none.

use std::fmt::Write;

use super::{TestOutcome, TestRun, text_report};

pub(super) fn junit(runs: &[TestRun]) -> String {
    let failed = |run: &TestRun| run.tests.iter().filter(|test| !test.passed()).count();
    let tests: usize = runs.iter().map(|run| run.tests.len()).sum();
    let failures: usize = runs.iter().map(failed).sum();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string cannot fail.
    let _ = writeln!(xml, "<testsuites name=\"tidegate\" tests=\"{tests}\" failures=\"{failures}\">");
    for run in runs {
        let (file, count) = (escape(&run.file), run.tests.len());
        let _ = writeln!(xml, "  <testsuite name=\"{file}\" tests=\"{count}\" failures=\"{}\">", failed(run));
        for test in &run.tests {
            case(&mut xml, run, test);
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn case(xml: &mut String, run: &TestRun, test: &TestOutcome) {
    let (name, file) = (escape(&test.name), escape(&run.file));
    let _ = write!(xml, "    <testcase name=\"{name}\" classname=\"{file}\" file=\"{file}\" line=\"{}\"", test.line);
    let Some(first) = test.failures.first() else {
        xml.push_str("/>\n");
        return;
    };
    let message = format!("{}: expected {}, got {}", first.what, first.expected, first.got);
    let text = text_report::plain(run, test);
    let _ = writeln!(xml, ">\n      <failure message=\"{}\" type=\"expectation\">", escape(&message));
    let _ = writeln!(xml, "{}</failure>\n    </testcase>", escape(&text));
}

/// Escapes markup, and replaces characters that XML does not allow.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_xml() {
        assert_eq!(escape("a<b>&\"c\"\u{0}\u{1b}\u{ffff}é"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}\u{fffd}\u{fffd}é");
    }
}
