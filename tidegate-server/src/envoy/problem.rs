//! `ConfigProblem`: what is wrong with a file of limits, and where. It only tells.

use std::error::Error;
use std::fmt;

use tidegate_rules::Report;
use tidegate_rules::yaml::SourceFile;

/// The most problems that are told at once.
const MAX_PROBLEMS: usize = 50;

/// Something in a file that is wrong, or has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    pub(super) file: String,
    pub(super) place: Place,
    pub(super) message: String,
}

/// Why a directory of limits cannot be used: every problem that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigProblem>);

/// A line and a column, both from 1; 0 where a problem is one of the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl ConfigProblem {
    pub(super) fn new(file: &str, place: Place, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place, message: message.into() }
    }

    /// A problem at a byte of a file.
    pub(super) fn at(source: &SourceFile, byte: usize, message: impl Into<String>) -> Self {
        let (line, column) = source.position(byte);
        Self::new(source.name(), Place { line, column }, message)
    }

    /// What the reader of YAML says, as problems of ours.
    pub(super) fn of_report(report: &Report) -> Vec<Self> {
        let told = report.problems().iter().map(|problem| {
            let (line, column) = report.position(problem);
            let help = problem.help().map(|help| format!("; {help}")).unwrap_or_default();
            Self::new(report.file(), Place { line, column }, format!("{}{help}", problem.message()))
        });
        told.collect()
    }

    /// The line, from 1; 0 for a problem of the whole file.
    pub const fn line(&self) -> usize {
        self.place.line
    }

    /// The column, from 1; 0 for a problem of the whole file.
    pub const fn column(&self) -> usize {
        self.place.column
    }

    /// What is wrong, and how to mend it.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.line == 0 {
            return write!(f, "{}: {}", self.file, self.message);
        }
        write!(f, "{}:{}:{}: {}", self.file, self.place.line, self.place.column, self.message)
    }
}

// === impl ConfigErrors ===

impl ConfigErrors {
    pub(super) const fn new(problems: Vec<ConfigProblem>) -> Self {
        Self(problems)
    }

    /// The problems, by file and then by place.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().take(MAX_PROBLEMS).map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))?;
        match self.0.len().saturating_sub(MAX_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl Error for ConfigErrors {}
