//! `SECURITY.md`: every line of the threat model names a test, and the test exists.

use std::path::Path;

const PAGE: &str = include_str!("../../SECURITY.md");

/// The names and files of the tests that a text links to: `[name](file.rs)`.
fn tests(text: &str) -> Vec<(&str, &str)> {
    text.split('[').skip(1).filter_map(test).collect()
}

fn test(part: &str) -> Option<(&str, &str)> {
    let (name, rest) = part.split_once("](")?;
    Some((name, rest.split_once(')')?.0))
        .filter(|(_, file)| Path::new(file).extension().is_some_and(|extension| extension == "rs"))
}

#[test]
fn every_line_of_the_threat_model_names_a_test_that_exists() {
    let (_, model) = PAGE.split_once("## Threat model").expect("a threat model");
    let is_row = |line: &&str| line.starts_with("| ") && !line.ends_with("the test |");
    let rows: Vec<&str> = model.lines().filter(is_row).collect();
    assert!(rows.len() >= 25, "only {} lines were found", rows.len());
    for row in rows {
        assert!(!tests(row).is_empty(), "this line has no test: {row}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (names, file) in tests(model) {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        for name in names.split(", ") {
            assert!(text.contains(&format!("fn {name}(")), "{file} has no test {name}");
        }
    }
}
