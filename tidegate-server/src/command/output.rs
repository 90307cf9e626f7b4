//! `Output`: the two output streams of a command, with or without color. A reader that closes its end, such as `head`, is
//! not an error.

use std::fmt::{self, Display};
use std::io::{ErrorKind, Write};

use clap::ValueEnum;
use serde::Serialize;

use super::exit::Exit;
use super::failure::Failure;

/// The output of a command: results on one stream, everything else on another.
pub struct Output<'w> {
    out: Stream<'w>,
    err: Stream<'w>,
    /// Whether progress lines are shown.
    progress: bool,
    /// The first write error, except a closed pipe.
    write_error: Option<std::io::Error>,
}

struct Stream<'w> {
    writer: &'w mut dyn Write,
    color: bool,
    closed: bool,
}

/// When to write in color: the values of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How a word is emphasized.
#[derive(Clone, Copy, Debug)]
pub enum Style {
    /// Bold.
    Bold,
    /// Faint.
    Dim,
    /// Green: success.
    Good,
    /// Red: failure.
    Bad,
    /// Yellow: warning.
    Caution,
}

/// Constructors
impl<'w> Output<'w> {
    /// Results go to `out` and everything else to `err`, both without color.
    pub fn new(out: &'w mut dyn Write, err: &'w mut dyn Write) -> Self {
        let stream = |writer| Stream { writer, color: false, closed: false };
        Self { out: stream(out), err: stream(err), progress: false, write_error: None }
    }

    /// Whether results are in color, unless `--color` decides.
    pub fn with_color(mut self, color: bool) -> Self {
        self.out.color = color;
        self
    }

    /// Whether errors are in color, unless `--color` decides.
    pub fn with_error_color(mut self, color: bool) -> Self {
        self.err.color = color;
        self
    }

    /// Whether progress is shown. It needs a terminal: each progress line overwrites the one before.
    pub fn with_progress(mut self, progress: bool) -> Self {
        self.progress = progress;
        self
    }
}

/// Writing
impl Output<'_> {
    /// Applies the value of `--color`.
    pub fn set_color(&mut self, choice: ColorChoice) {
        if choice != ColorChoice::Auto {
            let always = choice == ColorChoice::Always;
            (self.out.color, self.err.color) = (always, always);
        }
    }

    /// Whether results are in color.
    pub const fn uses_color(&self) -> bool {
        self.out.color
    }

    /// Whether errors are in color.
    pub(crate) const fn uses_error_color(&self) -> bool {
        self.err.color
    }

    /// The text, emphasized if results are in color.
    pub fn styled(&self, style: Style, text: impl Display) -> String {
        paint(self.out.color, style, text)
    }

    /// Writes a result without a line end.
    pub fn print(&mut self, text: impl Display) {
        let written = self.out.write(format_args!("{text}"));
        self.record(written);
    }

    /// Writes a line of a result.
    pub fn line(&mut self, text: impl Display) {
        let written = self.out.write(format_args!("{text}\n"));
        self.record(written);
    }

    /// Writes a result as JSON on one line.
    pub fn json(&mut self, value: &impl Serialize) {
        match serde_json::to_string(value) {
            Ok(text) => self.line(text),
            Err(error) => self.record(Err(error.into())),
        }
    }

    /// Whether the reader of the results has closed its end.
    pub const fn is_closed(&self) -> bool {
        self.out.closed
    }

    /// Writes a warning to the error stream.
    pub fn warn(&mut self, text: impl Display) {
        let title = paint(self.err.color, Style::Caution, "warning:");
        let written = self.err.write(format_args!("{title} {text}\n"));
        self.record(written);
    }

    /// Writes a line to the error stream.
    pub fn info(&mut self, text: impl Display) {
        let written = self.err.write(format_args!("{text}\n"));
        self.record(written);
    }

    /// Whether progress lines are shown.
    pub const fn shows_progress(&self) -> bool {
        self.progress
    }

    /// Overwrites the progress line, if progress is shown. An empty text clears it.
    pub fn progress(&mut self, text: impl Display) {
        if self.progress {
            let written = self.err.write(format_args!("\r\x1b[K{text}"));
            self.record(written);
        }
    }

    /// Writes why there is no result, and returns the exit code.
    pub fn report_failure(&mut self, failure: &Failure) -> Exit {
        let title = paint(self.err.color, Style::Bad, "error:");
        let written = match failure {
            Failure::Usage(message) | Failure::Server(message) => self.err.write(format_args!("{title} {message}\n")),
            Failure::Rules(report) => self.err.write(format_args!("{}\n", report.render(self.err.color))),
            Failure::Store { error, meanwhile } => {
                let counted = if error.is_possibly_applied() { "; the request may have been counted" } else { "" };
                self.err.write(format_args!("{title} the store failed: {error}{counted}\n{meanwhile}\n"))
            }
        };
        self.record(written);
        failure.exit()
    }

    /// Writes what clap returns instead of arguments: help, the version, or an error.
    pub fn print_clap_error(&mut self, error: &clap::Error) -> Exit {
        let (stream, exit) =
            if error.use_stderr() { (&mut self.err, Exit::Usage) } else { (&mut self.out, Exit::Success) };
        let text = error.render();
        let written = if stream.color {
            stream.write(format_args!("{}", text.ansi()))
        } else {
            stream.write(format_args!("{text}"))
        };
        self.record(written);
        self.finish(exit)
    }

    /// Flushes the results, and returns the final exit code: a result that could not be written is a failure.
    pub fn finish(&mut self, exit: Exit) -> Exit {
        let flushed = self.out.flush();
        self.record(flushed);
        match self.write_error.take() {
            Some(error) => {
                let failure = Failure::usage(format!("cannot write the result: {error}"));
                self.report_failure(&failure)
            }
            None => exit,
        }
    }

    fn record(&mut self, written: std::io::Result<()>) {
        if let Err(error) = written {
            self.write_error.get_or_insert(error);
        }
    }
}

impl Stream<'_> {
    fn write(&mut self, text: fmt::Arguments<'_>) -> std::io::Result<()> {
        if self.closed {
            return Ok(());
        }
        let written = self.writer.write_fmt(text);
        self.ignore_closed_pipe(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let flushed = self.writer.flush();
        self.ignore_closed_pipe(flushed)
    }

    /// Remembers that the reader has closed its end, which is not an error.
    fn ignore_closed_pipe(&mut self, written: std::io::Result<()>) -> std::io::Result<()> {
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            written => written,
        }
    }
}

fn paint(color: bool, style: Style, text: impl Display) -> String {
    if !color {
        return text.to_string();
    }
    let code = match style {
        Style::Bold => "1",
        Style::Dim => "2",
        Style::Good => "1;32",
        Style::Bad => "1;31",
        Style::Caution => "1;33",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// `1 rule`, `2 rules`.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
