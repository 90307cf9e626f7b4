//! `tidegate rules test`: runs test files, and prints the results as text, JSON or `JUnit` XML.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use tidegate_rule_tools::{TestRun, run_tests};
use tidegate_rules::Report;
use tidegate_server::command::{Exit, Failure, Output, count};

use super::problem_json::ProblemJson;
use crate::cli::TestArgs;

/// The JSON output.
#[derive(Serialize)]
struct TestResultsJson<'r> {
    passed: bool,
    runs: Vec<Value>,
    unusable: Vec<UnusableFileJson<'r>>,
}

/// A file that cannot be run.
#[derive(Serialize)]
struct UnusableFileJson<'r> {
    file: &'r str,
    problems: Vec<ProblemJson<'r>>,
}

pub(super) fn run(arguments: &TestArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let mut files = Vec::new();
    for path in &arguments.files {
        files.extend(test_files(path)?);
    }
    let mut results = Vec::new();
    for file in &files {
        let result = run_tests(file);
        if !arguments.json {
            let text = match &result {
                Ok(run) => run.render(output.uses_color()),
                Err(report) => report.render(output.uses_color()),
            };
            let gap = if files.len() > 1 { "\n" } else { "" };
            output.line(format_args!("{}{gap}", text.trim_end()));
        }
        results.push(result);
    }
    if let Some(path) = &arguments.junit {
        let result = std::fs::write(path, junit(&files, &results));
        result.map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
    }
    let passed = results.iter().all(|result| result.as_ref().is_ok_and(TestRun::passed));
    if arguments.json {
        output.json(&TestResultsJson::new(passed, &results));
    } else if results.len() > 1 {
        output.line(summary(&results));
    }
    Ok(Exit::from_success(passed))
}

/// A file itself, or the test files of a directory in order of their names.
fn test_files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let shown = path.display();
    let entries = entries.map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
    let is_test = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (name.ends_with(".test.yaml") || name.ends_with(".test.yml")) && !path.is_dir()
    };
    let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).filter(is_test).collect();
    files.sort();
    if files.is_empty() {
        return Err(Failure::usage(format!(
            "{shown} contains no *.test.yaml files; rename the test files, or name them one by one"
        )));
    }
    Ok(files)
}

/// `3 files, 17 tests: all passed`.
fn summary(results: &[Result<TestRun, Report>]) -> String {
    let tests = || results.iter().flatten().flat_map(|run| &run.tests);
    let failed = tests().filter(|test| !test.passed()).count();
    let unusable = results.iter().filter(|result| result.is_err()).count();
    let mut parts = Vec::new();
    parts.extend((failed > 0).then(|| format!("{failed} failed")));
    parts.extend((unusable > 0).then(|| format!("{} cannot be run", count(unusable, "file"))));
    let outcome = if parts.is_empty() { "all passed".to_owned() } else { parts.join(", ") };
    format!("{}, {}: {outcome}", count(results.len(), "file"), count(tests().count(), "test"))
}

/// CI systems show only tests, so a file that cannot be run becomes a failed test.
fn junit(files: &[PathBuf], results: &[Result<TestRun, Report>]) -> String {
    let run = |(file, result): (&PathBuf, &Result<TestRun, Report>)| match result {
        Ok(run) => run.clone(),
        Err(report) => TestRun::unusable(&file.display().to_string(), report),
    };
    TestRun::to_junit(&files.iter().zip(results).map(run).collect::<Vec<_>>())
}

impl<'r> TestResultsJson<'r> {
    fn new(passed: bool, results: &'r [Result<TestRun, Report>]) -> Self {
        let unusable = results.iter().filter_map(|result| result.as_ref().err());
        Self {
            passed,
            runs: results.iter().flatten().map(TestRun::to_json).collect(),
            unusable: unusable
                .map(|report| UnusableFileJson { file: report.file(), problems: ProblemJson::from_report(report) })
                .collect(),
        }
    }
}
