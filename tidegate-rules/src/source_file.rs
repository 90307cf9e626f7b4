//! `SourceFile`: the text of a file, with its lines and columns.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The largest file that is read: about fifty thousand rules.
pub const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// A range of bytes of a [`SourceFile`].
pub type Span = Range<usize>;

/// The name and text of a file. Clones share the text.
#[derive(Clone, Debug)]
pub struct SourceFile {
    name: Arc<str>,
    text: Arc<str>,
    /// The first byte of each line.
    lines: Arc<[usize]>,
}

impl SourceFile {
    /// A text with a file name.
    pub fn new(name: &str, text: &str) -> Self {
        let after = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self { name: name.into(), text: text.into(), lines: [0].into_iter().chain(after).collect() }
    }

    /// Reads a file; the error says whether it is too large, not UTF-8, or cannot be read.
    pub fn load(path: &Path) -> Result<Self, String> {
        let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
        check_size(size)?;
        let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        // The file may have grown, or its size may not be known before it is read.
        check_size(bytes.len() as u64)?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::new(&path.display().to_string(), &text)),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
                Err(format!("line {line} is not UTF-8; save the file in that encoding"))
            }
        }
    }

    /// The name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line in which a span begins with its neighbours, and the number of the first one.
    pub(crate) fn lines_around(&self, span: &Span) -> (usize, Span) {
        let line = self.line(span.start);
        let start = |line: usize| self.lines.get(line).map_or(self.text.len(), |start| *start);
        let first = line.saturating_sub(1);
        let end = start(line + 2).max(start(first));
        (first + 1, start(first)..end.saturating_sub(usize::from(end < self.text.len())).max(start(first)))
    }

    /// The line and column of a byte, both from 1; columns count characters.
    pub fn position(&self, byte: usize) -> (usize, usize) {
        let byte = boundary(&self.text, byte);
        let line = self.line(byte);
        (line + 1, 1 + self.text[self.lines[line]..byte].chars().count())
    }

    /// The line of a byte, from 0.
    fn line(&self, byte: usize) -> usize {
        self.lines.partition_point(|start| *start <= byte).saturating_sub(1)
    }
}

/// The start of the character that a byte belongs to, or the end of the text.
pub(crate) fn boundary(text: &str, byte: usize) -> usize {
    (0..=byte.min(text.len())).rev().find(|offset| text.is_char_boundary(*offset)).unwrap_or_default()
}

pub(crate) fn check_size(size: u64) -> Result<(), String> {
    if size <= MAX_FILE_BYTES {
        return Ok(());
    }
    Err(format!(
        "the file has {size} bytes; the maximum is {MAX_FILE_BYTES}. Split it, or check that it is the right one"
    ))
}
