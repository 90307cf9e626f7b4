//! The examples that ship: every rule file loads without a warning, and its tests pass.

use std::path::{Path, PathBuf};

use tidegate_rule_tools::{door_gaps, load_and_lint, report_for_every_door, run_tests};
use tidegate_rules::{FrontDoor, Severity};

/// The YAML files in `examples/` and its folders: rule files, and tests.
fn examples() -> (Vec<PathBuf>, Vec<PathBuf>) {
    let entries = |folder: PathBuf| {
        std::fs::read_dir(folder).expect("a directory").map(|entry| entry.expect("a file").path()).collect::<Vec<_>>()
    };
    let all = entries(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples"));
    let files = all.into_iter().flat_map(|path| if path.is_dir() { entries(path) } else { vec![path] });
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    files.sort();
    files.into_iter().partition(|path| !path.to_string_lossy().ends_with(".test.yaml"))
}

#[test]
fn every_example_loads_without_a_warning() {
    let (rules, _) = examples();
    assert!(rules.len() >= 8, "{rules:?}");
    for path in rules {
        let file = load_and_lint(&path).unwrap();
        let report = report_for_every_door(&file);
        assert!(report.problems().iter().all(|problem| problem.severity() == Severity::Note), "{report}");
    }
}

/// Trap: a login by its action was unlimited behind the gateway that the README starts with its file.
#[test]
fn the_file_of_the_readme_lacks_nothing_at_its_gateway() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quick-start.yaml");
    assert_eq!(door_gaps(&load_and_lint(path).unwrap(), FrontDoor::Gateway), []);
}

#[test]
fn every_example_has_tests_and_they_pass() {
    let (rules, tests) = examples();
    assert_eq!(rules.len(), tests.len(), "each rule file has a test file beside it");
    for (rules, path) in rules.iter().zip(&tests) {
        let run = run_tests(path).unwrap();
        assert!(run.passed(), "\n{}", run.render(false));
        assert_eq!(Path::new(&run.rules).file_stem(), rules.file_stem(), "a test file is named after its rules");
    }
}

/// Without such a test, nobody would notice if the rule were missing.
#[test]
fn every_rule_of_the_examples_denies_in_some_test() {
    for path in examples().1 {
        let run = run_tests(&path).unwrap();
        assert_eq!(run.never_denied().collect::<Vec<_>>(), [""; 0], "{}", path.display());
    }
}
