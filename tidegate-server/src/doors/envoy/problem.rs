//! `ConfigProblem`: an error or a warning about a configuration file, with its position.

use std::error::Error;
use std::fmt;

use tidegate_rules::Report;
use tidegate_rules::yaml::SourceFile;

/// Maximum number of problems in the text of [`ConfigErrors`].
const MAX_PRINTED_PROBLEMS: usize = 50;

/// An error or a warning about a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    pub(super) file: String,
    pub(super) position: Position,
    pub(super) message: String,
}

/// All errors of a configuration that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigProblem>);

/// A line and a column, counted from 1; 0 for the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl ConfigProblem {
    pub(super) fn new(file: &str, position: Position, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), position, message: message.into() }
    }

    /// A problem at a byte offset of a file.
    pub(super) fn at(source: &SourceFile, offset: usize, message: impl Into<String>) -> Self {
        let (line, column) = source.position(offset);
        Self::new(source.name(), Position { line, column }, message)
    }

    /// The problems that the YAML parser reports.
    pub(super) fn from_report(report: &Report) -> Vec<Self> {
        let problems = report.problems().iter().map(|problem| {
            let (line, column) = report.position(problem);
            let help = problem.help().map(|help| format!("; {help}")).unwrap_or_default();
            Self::new(report.file(), Position { line, column }, format!("{}{help}", problem.message()))
        });
        problems.collect()
    }

    /// The line, counted from 1; 0 for the whole file.
    pub const fn line(&self) -> usize {
        self.position.line
    }

    /// The column, counted from 1; 0 for the whole file.
    pub const fn column(&self) -> usize {
        self.position.column
    }

    /// The problem, and how to fix it.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.position.line == 0 {
            return write!(f, "{}: {}", self.file, self.message);
        }
        write!(f, "{}:{}:{}: {}", self.file, self.position.line, self.position.column, self.message)
    }
}

// === impl ConfigErrors ===

impl ConfigErrors {
    pub(super) const fn new(problems: Vec<ConfigProblem>) -> Self {
        Self(problems)
    }

    /// The errors, sorted by file and position.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().take(MAX_PRINTED_PROBLEMS).map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))?;
        match self.0.len().saturating_sub(MAX_PRINTED_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl Error for ConfigErrors {}
