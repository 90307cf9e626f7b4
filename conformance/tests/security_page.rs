//! `docs/security.md`: every promise of the threat model, which is in bold, has a test, and the test exists.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = include_str!("../../docs/security.md");

/// Lines without indentation are sections (`## `) and promises; the others are the tests of the promise above: file and name.
const TESTS: &str = include_str!("security_page.txt");

/// Sections of the page whose bold words are advice, not promises.
const ADVICE: &str = "Before production";

/// The section and the bold words of each promise.
fn promises() -> BTreeSet<(&'static str, &'static str)> {
    let sections = PAGE.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'));
    let bold = |text: &'static str| text.split("**").skip(1).step_by(2);
    sections
        .filter(|(title, _)| *title != ADVICE)
        .flat_map(|(title, text)| bold(text).map(move |promise| (title, promise)))
        .collect()
}

#[test]
fn every_promise_of_the_threat_model_has_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut tested, mut section, mut promise) = (BTreeSet::new(), "", "");
    for line in TESTS.lines().skip(2) {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(test) = line.strip_prefix("    ") {
            let (file, name) = test.split_once(' ').expect("a file and the name of a test");
            let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            assert!(text.contains(&format!("fn {name}(")), "{file} has no test {name}");
            tested.insert((section, promise));
        } else {
            promise = line;
        }
    }
    assert!(tested.len() >= 45, "only {} promises have tests", tested.len());
    let promises = promises();
    let without: Vec<_> = promises.difference(&tested).collect();
    assert!(without.is_empty(), "these promises have no test in security_page.txt: {without:?}");
    let unknown: Vec<_> = tested.difference(&promises).collect();
    assert!(unknown.is_empty(), "these promises are not on the page: {unknown:?}");
}
