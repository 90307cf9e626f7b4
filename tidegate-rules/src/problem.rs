//! `Problem`: something about a file that its author should know, with its place and a way out; `Report`: all of them.

use std::error::Error;
use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use crate::source_file::{SourceFile, Span};

/// The most problems that a report keeps.
pub const MAX_PROBLEMS: usize = 100;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, and probably does not do what its author wants.
    Warning,
    /// Worth knowing.
    Note,
}

/// Something about a file that its author should know.
#[derive(Clone, Debug)]
pub struct Problem {
    severity: Severity,
    code: &'static str,
    message: String,
    span: Span,
    help: Option<String>,
}

/// All problems of one file, in the order in which they stand there.
#[derive(Clone)]
pub struct Report {
    source: SourceFile,
    problems: Vec<Problem>,
}

impl Problem {
    /// A problem because of which the file cannot be used, under a short name that stays the same. The span is bytes of the
    /// file.
    pub fn error(code: &'static str, message: impl Into<String>, span: Span) -> Self {
        Self { severity: Severity::Error, code, message: message.into(), span, help: None }
    }

    /// A problem with which the file can be used.
    pub fn warning(code: &'static str, message: impl Into<String>, span: Span) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, message, span) }
    }

    pub(crate) fn note(code: &'static str, message: impl Into<String>, span: Span) -> Self {
        Self { severity: Severity::Note, ..Self::error(code, message, span) }
    }

    /// Adds a way out.
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn set_help(&mut self, help: impl Into<String>) {
        self.help = Some(help.into());
    }

    /// How bad it is.
    pub const fn severity(&self) -> Severity {
        self.severity
    }

    /// A short name that stays the same, such as `duplicate-id`.
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// What it is, in a sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// A way out, if there is a likely one.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

impl Report {
    /// The problems of a file, of which at most [`MAX_PROBLEMS`] are kept, the worst first.
    pub fn new(source: &SourceFile, mut problems: Vec<Problem>) -> Self {
        // The worst first, so that no error is lost to the warnings before it.
        problems.sort_by_key(|problem| problem.severity);
        problems.truncate(MAX_PROBLEMS);
        problems.sort_by_key(|problem| (problem.span.start, problem.severity));
        Self { source: source.clone(), problems }
    }

    /// A report of a file that could not be read at all.
    pub fn unreadable(name: &str, why: &str) -> Self {
        Self::new(&SourceFile::new(name, ""), vec![Problem::error("unreadable", why, 0..0)])
    }

    /// The problems, in the order of the file.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The name of the file.
    pub fn file(&self) -> &str {
        self.source.name()
    }

    /// The line and the column where a problem begins, both from 1.
    pub fn position(&self, problem: &Problem) -> (usize, usize) {
        self.source.position(problem.span.start)
    }

    /// Whether the file cannot be used.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// The report for people, with a picture of each place; in colour if asked for.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let pictures = self.problems.iter().map(|problem| self.picture(problem, &renderer));
        pictures.collect::<Vec<_>>().join("\n\n")
    }

    fn picture(&self, problem: &Problem, renderer: &Renderer) -> String {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Note => Level::NOTE,
        };
        let title = level.primary_title(problem.message.as_str()).id(problem.code);
        let mut group = if self.source.text().is_empty() {
            title.element(annotate_snippets::Origin::path(self.source.name()))
        } else {
            // Only the lines around it: a picture must not cost what a large file weighs.
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
        // An `unwrap` in a test then shows what is wrong.
        write!(f, "\n{self}")
    }
}

impl Error for Report {}
