//! `Problem`: an error, warning or note about a file, with its position and help; `Report`: all problems of a file.

use std::error::Error;
use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use crate::source_file::{SourceFile, Span};

/// The most problems that a report keeps.
pub const MAX_PROBLEMS: usize = 100;

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but probably does not do what its author intends.
    Warning,
    /// Worth knowing.
    Note,
}

/// An error, warning or note about a file.
#[derive(Clone, Debug)]
pub struct Problem {
    severity: Severity,
    code: &'static str,
    message: String,
    span: Span,
    help: Option<String>,
}

/// All problems of one file, in the order of their positions.
#[derive(Clone)]
pub struct Report {
    source: SourceFile,
    problems: Vec<Problem>,
}

impl Problem {
    /// A problem that makes the file unusable. `code` is a stable short name; `span` is a range of bytes of the file.
    pub fn error(code: &'static str, message: impl Into<String>, span: Span) -> Self {
        Self { severity: Severity::Error, code, message: message.into(), span, help: None }
    }

    /// A problem that leaves the file usable.
    pub fn warning(code: &'static str, message: impl Into<String>, span: Span) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, message, span) }
    }

    /// Something worth knowing.
    pub fn note(code: &'static str, message: impl Into<String>, span: Span) -> Self {
        Self { severity: Severity::Note, ..Self::error(code, message, span) }
    }

    /// Sets the help: how to fix it.
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same for a problem in place.
    pub fn set_help(&mut self, help: impl Into<String>) {
        self.help = Some(help.into());
    }

    /// The severity.
    pub const fn severity(&self) -> Severity {
        self.severity
    }

    /// The stable short name, such as `duplicate-id`.
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// The message, in one sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How to fix it, if known.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

impl Report {
    /// A report of a file. At most [`MAX_PROBLEMS`] problems are kept, the most severe ones.
    pub fn new(source: &SourceFile, mut problems: Vec<Problem>) -> Self {
        // The most severe first, so that truncation loses no error.
        problems.sort_by_key(|problem| problem.severity);
        problems.truncate(MAX_PROBLEMS);
        problems.sort_by_key(|problem| (problem.span.start, problem.severity));
        Self { source: source.clone(), problems }
    }

    /// A report of a file that could not be read at all.
    pub fn unreadable(name: &str, reason: &str) -> Self {
        Self::new(&SourceFile::new(name, ""), vec![Problem::error("unreadable", reason, 0..0)])
    }

    /// The problems, in the order of the file.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The name of the file.
    pub fn file(&self) -> &str {
        self.source.name()
    }

    /// The line and column where a problem begins, both from 1.
    pub fn position(&self, problem: &Problem) -> (usize, usize) {
        self.source.position(problem.span.start)
    }

    /// The file, for further problems.
    pub(crate) const fn source(&self) -> &SourceFile {
        &self.source
    }

    /// Whether the file cannot be used.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// The report as text with an excerpt of each position, in colour if `colour` is set.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let problems = self.problems.iter().map(|problem| self.render_problem(problem, &renderer));
        problems.collect::<Vec<_>>().join("\n\n")
    }

    fn render_problem(&self, problem: &Problem, renderer: &Renderer) -> String {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Note => Level::NOTE,
        };
        let title = level.primary_title(problem.message.as_str()).id(problem.code);
        let mut group = if self.source.text().is_empty() {
            title.element(annotate_snippets::Origin::path(self.source.name()))
        } else {
            // Only the lines around it, so that the work does not grow with the file.
            let (line, lines) = self.source.lines_around(&problem.span);
            let span = problem.span.start - lines.start..problem.span.end.min(lines.end) - lines.start;
            let snippet = Snippet::source(&self.source.text()[lines])
                .path(self.source.name())
                .line_start(line)
                .annotation(AnnotationKind::Primary.span(span));
            title.element(snippet)
        };
        if let Some(help) = &problem.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        renderer.render(&[group])
    }
}

impl Severity {
    /// `error`, `warning` or `note`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // So that an `unwrap` in a test shows the problems.
        write!(f, "\n{self}")
    }
}

impl Error for Report {}
