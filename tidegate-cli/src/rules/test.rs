//! `tidegate rules test`: runs test files and directories of them, and shows what came out: to people, to programs, to CI.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use tidegate_rules::{Report, TestRun, run_tests};

use super::problem_json::ProblemJson;
use crate::cli::TestArgs;
use tidegate_server::command::{Exit, Failure, Output, count};

/// What came out, for programs.
#[derive(Serialize)]
struct Results<'r> {
    passed: bool,
    runs: Vec<Value>,
    unusable: Vec<Unusable<'r>>,
}

/// A file that could not be run.
#[derive(Serialize)]
struct Unusable<'r> {
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
            let shown = match &result {
                Ok(run) => run.render(output.uses_color()),
                Err(report) => report.render(output.uses_color()),
            };
            let gap = if files.len() > 1 { "\n" } else { "" };
            output.line(format_args!("{}{gap}", shown.trim_end()));
        }
        results.push(result);
    }
    if let Some(path) = &arguments.junit {
        let written = std::fs::write(path, junit(&files, &results));
        written.map_err(|error| Failure::usage(format!("{} cannot be written: {error}", path.display())))?;
    }
    let passed = results.iter().all(|result| result.as_ref().is_ok_and(TestRun::passed));
    if arguments.json {
        output.json(&Results::new(passed, &results));
    } else if results.len() > 1 {
        output.line(summary(&results));
    }
    Ok(Exit::from_success(passed))
}

/// A file as it is; of a directory, its test files by name.
fn test_files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let shown = path.display();
    let entries = entries.map_err(|error| Failure::usage(format!("{shown} cannot be read: {error}")))?;
    let is_test = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (name.ends_with(".test.yaml") || name.ends_with(".test.yml")) && !path.is_dir()
    };
    let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).filter(is_test).collect();
    files.sort();
    if files.is_empty() {
        return Err(Failure::usage(format!(
            "there are no tests in {shown}: name the files *.test.yaml, or give them one by one"
        )));
    }
    Ok(files)
}

/// `3 files, 17 tests: all passed`.
fn summary(results: &[Result<TestRun, Report>]) -> String {
    let tests = || results.iter().flatten().flat_map(|run| &run.tests);
    let failed = tests().filter(|test| !test.passed()).count();
    let unusable = results.iter().filter(|result| result.is_err()).count();
    let mut ends = Vec::new();
    ends.extend((failed > 0).then(|| format!("{failed} failed")));
    ends.extend((unusable > 0).then(|| format!("{} cannot be run", count(unusable, "file"))));
    let end = if ends.is_empty() { "all passed".to_owned() } else { ends.join(", ") };
    format!("{}, {}: {end}", count(results.len(), "file"), count(tests().count(), "test"))
}

/// CI systems know tests alone, so a file that cannot be run is a test that failed: otherwise they would show nothing of it.
fn junit(files: &[PathBuf], results: &[Result<TestRun, Report>]) -> String {
    let run = |(file, result): (&PathBuf, &Result<TestRun, Report>)| match result {
        Ok(run) => run.clone(),
        Err(report) => TestRun::unusable(&file.display().to_string(), report),
    };
    TestRun::to_junit(&files.iter().zip(results).map(run).collect::<Vec<_>>())
}

impl<'r> Results<'r> {
    fn new(passed: bool, results: &'r [Result<TestRun, Report>]) -> Self {
        let unusable = results.iter().filter_map(|result| result.as_ref().err());
        Self {
            passed,
            runs: results.iter().flatten().map(TestRun::to_json).collect(),
            unusable: unusable
                .map(|report| Unusable { file: report.file(), problems: ProblemJson::all(report) })
                .collect(),
        }
    }
}
