//! Tests for limits: a YAML file beside the rules has requests with their times and the expected decisions.
//!
//! ```text
//! text ──▶ read ──▶ schema_types ──▶ TestSuite ──▶ run (memory store, virtual time) ──▶ judge ──▶ TestRun: text, JSON, JUnit
//! ```
//!
//! Time is virtual: an hour of a test takes no time. Tests see only the decisions of a rule.

mod assertions;
mod held_requests;
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
use tidegate_rules::internals::{decode, format_duration, parse};
use tidegate_rules::{Problem, Report, RuleFile, yaml::SourceFile};

/// The results of the tests of one file.
///
/// ```no_run
/// let run = tidegate_rule_tools::run_tests("rules.test.yaml".as_ref())?;
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
    /// The coverage of every rule that is not disabled, in the order of the rule file.
    pub coverage: Vec<RuleCoverage>,
}

/// The result of one test.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TestOutcome {
    /// Its name.
    pub name: String,
    /// Its line.
    pub line: usize,
    /// The number of its steps.
    pub steps: usize,
    /// The number of requests that it sent.
    pub requests: u64,
    /// The failed assertions, in order. Empty if it passed.
    pub failures: Vec<TestFailure>,
}

/// A failed assertion.
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
    /// What differs: `outcome`, or a field of the decision such as `retry_after`.
    pub what: String,
    /// The expected value.
    pub expected: String,
    /// The actual value.
    pub got: String,
    /// A hint on how to fix it.
    pub note: Option<String>,
}

/// The coverage of one rule by the tests of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleCoverage {
    /// The id of the rule.
    pub id: String,
    /// The number of requests that it applied to.
    pub applied: u64,
    /// The number of requests that it refused, or would have refused in shadow mode.
    pub denied: u64,
}

/// Runs the tests of a file on a memory store, in virtual time. On failure, the report has all errors of the test file, or
/// those of the rule file.
pub fn run_tests(path: &Path) -> Result<TestRun, Report> {
    let source = SourceFile::load(path).map_err(|why| Report::unreadable(&path.display().to_string(), &why))?;
    let root = parse(&source).map_err(|problem| Report::new(&source, vec![problem]))?;
    if let Some(key) = root.key("version").filter(|_| root.key("tests").is_none()) {
        let problem = Problem::error("rules", "this is a rule file, not a test file", key.span.clone());
        return Err(Report::new(&source, vec![problem.with_help("write its tests to NAME.test.yaml beside it")]));
    }
    let mut problems = Vec::new();
    let Some(file) = decode::<schema_types::TestFileSpec>(root, &mut problems) else {
        return Err(Report::new(&source, problems));
    };
    let beside = path.parent().unwrap_or(Path::new("")).join(&file.rules.value);
    let rules = SourceFile::load(&beside).map(|text| RuleFile::parse(text.name(), text.text()));
    if let Err(why) = &rules {
        let message = format!("the rule file cannot be read: {why}");
        problems.push(
            Problem::error("rules", message, file.rules.span.clone()).with_help("the path is relative to this file"),
        );
    }
    let valid_rules = rules.as_ref().ok().and_then(|rules| rules.as_ref().ok());
    let ids = valid_rules.map(|rules| rules.ids().map(str::to_owned).collect());
    let suite = suite::TestSuite::new(&file, ids, &mut problems);
    match rules {
        Ok(rules) if problems.is_empty() => Ok(runner::run(&suite, &rules?, &source, &beside)),
        _ => Err(Report::new(&source, problems)),
    }
}

/// The JSON Schema of test files, as text.
///
/// ```
/// assert!(tidegate_rule_tools::test_schema().contains("retry_after"));
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

    /// The rules that refused no request in any test, so that the tests do not show that they limit anything.
    pub fn never_denied(&self) -> impl Iterator<Item = &str> {
        self.coverage.iter().filter(|rule| rule.denied == 0).map(|rule| rule.id.as_str())
    }
}

/// Formatting it
impl TestRun {
    /// The run as text: a line for each test, and the expected and actual values of failed assertions; in colour if `colour`
    /// is set.
    pub fn render(&self, colour: bool) -> String {
        text_report::render(self, colour)
    }

    /// The run as JSON.
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

    /// Several runs as `JUnit` XML, which most CI systems display.
    pub fn to_junit(runs: &[Self]) -> String {
        junit::junit(runs)
    }
}

impl TestOutcome {
    /// Whether every assertion held.
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
            "at": format_duration(self.at),
            "request": self.request,
            "what": self.what,
            "expected": self.expected,
            "got": self.got,
            "note": self.note,
        })
    }
}
