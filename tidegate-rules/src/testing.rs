//! Tests for limits: a YAML file beside the rules says which requests come when, and what should become of them.
//!
//! ```text
//! text ──▶ read ──▶ written ──▶ TestSuite ──▶ run (memory store, virtual time) ──▶ judge ──▶ TestRun: text, JSON, JUnit
//! ```
//!
//! Nothing here waits: an hour of a test passes at once. It must not know more of a rule than its answers tell.

mod assertions;
mod hint;
mod instant;
mod junit;
mod runner;
mod schema_types;
mod suite;
mod text_report;
mod unavailable_step;

use std::path::Path;
use std::time::Duration;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::problem::{Problem, Report};
use crate::source_file::SourceFile;
use crate::{RuleFile, quantity, read};

/// What became of the tests of one file.
///
/// ```no_run
/// let run = tidegate_rules::run_tests("rules.test.yaml".as_ref())?;
/// print!("{}", run.render(false));
/// assert!(run.passed());
/// # Ok::<(), tidegate_rules::Report>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TestRun {
    /// The file with the tests.
    pub file: String,
    /// The file with the rules.
    pub rules: String,
    /// Its tests, in order.
    pub tests: Vec<TestOutcome>,
    /// What the tests saw of every rule that is not disabled, in the order of the rule file.
    pub coverage: Vec<RuleCoverage>,
}

/// What became of one test.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TestOutcome {
    /// What it shows.
    pub name: String,
    /// Where it stands.
    pub line: usize,
    /// How many steps it has.
    pub steps: usize,
    /// How many requests it sent.
    pub requests: u64,
    /// What was otherwise than expected, step by step. None if it passed.
    pub failures: Vec<TestFailure>,
}

/// One thing that was otherwise than expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestFailure {
    /// The line of the expectation.
    pub line: usize,
    /// Its column.
    pub column: usize,
    /// The step, from 1.
    pub step: usize,
    /// The virtual time of the step's last request, from the start of the test.
    pub at: Duration,
    /// The request, in one line.
    pub request: String,
    /// What differs: `outcome`, or a field of the answer such as `retry_after`.
    pub what: String,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub got: String,
    /// What may help to mend it.
    pub note: Option<String>,
}

/// What the tests of a file saw of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleCoverage {
    /// The id of the rule.
    pub id: String,
    /// To how many requests it applied.
    pub applied: u64,
    /// How many of them it refused, or would have refused if it is in shadow.
    pub denied: u64,
}

/// Runs the tests of a file on a memory store, in virtual time. The report of a file that cannot be run has all of its
/// errors; if the rule file is at fault, it is that file's report.
pub fn run_tests(path: &Path) -> Result<TestRun, Report> {
    let source = SourceFile::load(path).map_err(|why| Report::unreadable(&path.display().to_string(), &why))?;
    let root = read::parse(&source).map_err(|problem| Report::new(&source, vec![problem]))?;
    if let Some(key) = root.key("version").filter(|_| root.key("tests").is_none()) {
        let problem = Problem::error("rules", "this is a file of rules, not of tests", key.span.clone());
        return Err(Report::new(&source, vec![problem.with_help("its tests stand beside it, in NAME.test.yaml")]));
    }
    let mut problems = Vec::new();
    let Some(file) = read::decode::<schema_types::TestFileSpec>(root, &mut problems) else {
        return Err(Report::new(&source, problems));
    };
    let beside = path.parent().unwrap_or(Path::new("")).join(&file.rules.value);
    let rules = SourceFile::load(&beside).map(|text| RuleFile::parse(text.name(), text.text()));
    if let Err(why) = &rules {
        let message = format!("the rule file cannot be read: {why}");
        problems
            .push(Problem::error("rules", message, file.rules.span.clone()).with_help("its path begins at this file"));
    }
    let known = rules.as_ref().ok().and_then(|rules| rules.as_ref().ok());
    let ids = known.map(|rules| rules.ids().map(str::to_owned).collect());
    let suite = suite::TestSuite::new(&file, ids, &mut problems);
    match rules {
        Ok(rules) if problems.is_empty() => Ok(runner::run(&suite, &rules?, &source, &beside)),
        _ => Err(Report::new(&source, problems)),
    }
}

/// The JSON Schema of test files, as text.
///
/// ```
/// assert!(tidegate_rules::test_schema().contains("retry_after"));
/// ```
pub fn test_schema() -> String {
    let generator = SchemaSettings::draft07().into_generator();
    let mut schema = generator.into_root_schema_for::<schema_types::TestFileSpec>();
    schema.insert("title".into(), "Tests for rules of Tidegate".into());
    format!("{schema:#}\n", schema = schema.to_value())
}

/// Constructing it
impl TestRun {
    /// A run with one failed test for a file that cannot be run, with a failure for each problem of `report`. The report may
    /// be that of the rule file, whose positions are then shown.
    pub fn unusable(file: &str, report: &Report) -> Self {
        let failures = report.problems().iter().map(|problem| {
            let (line, column) = report.position(problem);
            TestFailure {
                line,
                column,
                step: 0,
                at: Duration::ZERO,
                request: String::new(),
                what: problem.code().to_owned(),
                expected: "a file that can be run".to_owned(),
                got: problem.message().to_owned(),
                note: problem.help().map(str::to_owned),
            }
        });
        let test = TestOutcome {
            name: format!("{file} can be run"),
            line: 1,
            steps: 0,
            requests: 0,
            failures: failures.collect(),
        };
        Self { file: report.file().to_owned(), rules: String::new(), tests: vec![test], coverage: Vec::new() }
    }
}

/// Reading it
impl TestRun {
    /// Whether every test passed.
    pub fn passed(&self) -> bool {
        self.tests.iter().all(TestOutcome::passed)
    }

    /// The rules that applied to no request of any test.
    pub fn unexercised(&self) -> impl Iterator<Item = &str> {
        self.coverage.iter().filter(|rule| rule.applied == 0).map(|rule| rule.id.as_str())
    }

    /// The rules that refused nothing in any test: whether they limit anything, these tests do not tell.
    pub fn never_denied(&self) -> impl Iterator<Item = &str> {
        self.coverage.iter().filter(|rule| rule.denied == 0).map(|rule| rule.id.as_str())
    }
}

/// Showing it
impl TestRun {
    /// The run for people: a line for each test, and what was expected and what came where they differ; in colour if asked
    /// for.
    pub fn render(&self, colour: bool) -> String {
        text_report::render(self, colour)
    }

    /// The run for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "file": self.file,
            "rules": self.rules,
            "passed": self.passed(),
            "tests": self.tests.iter().map(TestOutcome::to_json).collect::<Vec<_>>(),
            "coverage": self.coverage.iter().map(|rule| {
                json!({ "rule": rule.id, "applied": rule.applied, "denied": rule.denied })
            }).collect::<Vec<_>>(),
        })
    }

    /// Several runs as `JUnit` XML, which most CI systems show.
    pub fn to_junit(runs: &[Self]) -> String {
        junit::junit(runs)
    }
}

impl TestOutcome {
    /// Whether everything was as expected.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "line": self.line,
            "steps": self.steps,
            "requests": self.requests,
            "passed": self.passed(),
            "failures": self.failures.iter().map(TestFailure::to_json).collect::<Vec<_>>(),
        })
    }
}

impl TestFailure {
    fn to_json(&self) -> Value {
        json!({
            "line": self.line,
            "column": self.column,
            "step": self.step,
            "at": quantity::format_duration(self.at),
            "request": self.request,
            "what": self.what,
            "expected": self.expected,
            "got": self.got,
            "note": self.note,
        })
    }
}
