//! `Output`: where words go, and whether in colour. It knows no command; what nobody reads any more is not an error.

use std::fmt::{self, Display};
use std::io::{ErrorKind, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;

/// Where words go.
pub struct Output<'w> {
    out: Stream<'w>,
    err: Stream<'w>,
    /// Whether somebody watches the errors as they come.
    watched: bool,
    /// What could not be written, if not because the reader has left.
    broken: Option<std::io::Error>,
}

struct Stream<'w> {
    to: &'w mut dyn Write,
    colour: bool,
    closed: bool,
}

/// When to write in colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How a word is emphasised.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Bold,
    Dim,
    Good,
    Bad,
    Caution,
}

/// Constructors
impl<'w> Output<'w> {
    /// Results go to `out` and everything else to `err`, both without colour.
    pub fn new(out: &'w mut dyn Write, err: &'w mut dyn Write) -> Self {
        let stream = |to| Stream { to, colour: false, closed: false };
        Self { out: stream(out), err: stream(err), watched: false, broken: None }
    }

    /// Whether results are in colour, unless `--color` decides.
    pub fn colour(mut self, colour: bool) -> Self {
        self.out.colour = colour;
        self
    }

    /// Whether errors are in colour, unless `--color` decides.
    pub fn colour_of_errors(mut self, colour: bool) -> Self {
        self.err.colour = colour;
        self
    }

    /// Whether progress is told, which needs a terminal: each line of it takes the place of the one before.
    pub fn progress_shown(mut self, watched: bool) -> Self {
        self.watched = watched;
        self
    }
}

/// Writing
impl Output<'_> {
    pub(crate) fn choose(&mut self, colour: Colour) {
        if colour != Colour::Auto {
            let always = colour == Colour::Always;
            (self.out.colour, self.err.colour) = (always, always);
        }
    }

    /// Whether results are in colour.
    pub(crate) const fn is_coloured(&self) -> bool {
        self.out.colour
    }

    /// Whether errors are in colour.
    pub(crate) const fn is_error_coloured(&self) -> bool {
        self.err.colour
    }

    /// A word, emphasised if results are in colour.
    pub(crate) fn styled(&self, style: Style, text: impl Display) -> String {
        paint(self.out.colour, style, text)
    }

    /// Writes a result as it is.
    pub(crate) fn print(&mut self, text: impl Display) {
        let written = self.out.write(format_args!("{text}"));
        self.note(written);
    }

    /// Writes a line of a result.
    pub(crate) fn line(&mut self, text: impl Display) {
        let written = self.out.write(format_args!("{text}\n"));
        self.note(written);
    }

    /// Writes a result for programs: one value on one line.
    pub(crate) fn json(&mut self, value: &impl Serialize) {
        match serde_json::to_string(value) {
            Ok(text) => self.line(text),
            Err(error) => self.note(Err(error.into())),
        }
    }

    /// Whether nobody reads the results any more.
    pub(crate) const fn is_closed(&self) -> bool {
        self.out.closed
    }

    /// Tells something beside the result.
    pub(crate) fn warn(&mut self, text: impl Display) {
        let title = paint(self.err.colour, Style::Caution, "warning:");
        let written = self.err.write(format_args!("{title} {text}\n"));
        self.note(written);
    }

    /// Tells what is going on.
    pub(crate) fn say(&mut self, text: impl Display) {
        let written = self.err.write(format_args!("{text}\n"));
        self.note(written);
    }

    /// Whether somebody watches the errors as they come.
    pub(crate) const fn is_watched(&self) -> bool {
        self.watched
    }

    /// Tells how far it has come, to whoever watches; nothing at all takes it away again.
    pub(crate) fn progress(&mut self, text: impl Display) {
        if self.watched {
            let written = self.err.write(format_args!("\r\x1b[K{text}"));
            self.note(written);
        }
    }

    /// Tells why there is no result.
    pub(crate) fn failed(&mut self, failure: &Failure) -> Exit {
        let title = paint(self.err.colour, Style::Bad, "error:");
        let written = match failure {
            Failure::Usage(message) => self.err.write(format_args!("{title} {message}\n")),
            Failure::Rules(report) => self.err.write(format_args!("{}\n", report.render(self.err.colour))),
            Failure::Store { error, meanwhile } => {
                let counted = if error.is_possibly_applied() { "; the request may have been counted" } else { "" };
                self.err.write(format_args!("{title} the store failed: {error}{counted}\n{meanwhile}\n"))
            }
        };
        self.note(written);
        failure.exit()
    }

    /// Shows what clap has to say instead of arguments: help, a version, or what is wrong with them.
    pub(crate) fn of_clap(&mut self, answer: &clap::Error) -> Exit {
        let (stream, exit) =
            if answer.use_stderr() { (&mut self.err, Exit::Usage) } else { (&mut self.out, Exit::Fine) };
        let text = answer.render();
        let written = if stream.colour {
            stream.write(format_args!("{}", text.ansi()))
        } else {
            stream.write(format_args!("{text}"))
        };
        self.note(written);
        self.finish(exit)
    }

    /// The end: a result that could not be written is none.
    pub(crate) fn finish(&mut self, exit: Exit) -> Exit {
        let flushed = self.out.flush();
        self.note(flushed);
        match self.broken.take() {
            Some(error) => {
                let failure = Failure::usage(format!("the result cannot be written: {error}"));
                self.failed(&failure)
            }
            None => exit,
        }
    }

    fn note(&mut self, written: std::io::Result<()>) {
        if let Err(error) = written {
            self.broken.get_or_insert(error);
        }
    }
}

impl Stream<'_> {
    fn write(&mut self, text: fmt::Arguments<'_>) -> std::io::Result<()> {
        if self.closed {
            return Ok(());
        }
        let written = self.to.write_fmt(text);
        self.unless_left(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let flushed = self.to.flush();
        self.unless_left(flushed)
    }

    /// A reader who has left, such as `head`, has what it wanted.
    fn unless_left(&mut self, written: std::io::Result<()>) -> std::io::Result<()> {
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            written => written,
        }
    }
}

fn paint(colour: bool, style: Style, text: impl Display) -> String {
    if !colour {
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
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
