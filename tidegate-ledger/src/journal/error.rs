//! `JournalError`: why a journal could not be opened or read.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why a journal could not be opened or read. Nothing was changed.
#[derive(Debug)]
pub struct JournalError {
    path: PathBuf,
    kind: JournalErrorKind,
    source: Option<io::Error>,
}

/// The kind of a [`JournalError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JournalErrorKind {
    /// Another process has the journal open.
    Locked,
    /// There is damage before undamaged records, at this offset of the file. It is not the end of an interrupted write.
    Corrupt {
        /// Bytes from the start of the file.
        offset: u64,
    },
    /// Entries wait whose subjects were hashed with another secret.
    OtherSecret,
    /// The file is no journal, or one of a newer version.
    Unsupported,
    /// The file could not be read or written.
    Io,
}

impl JournalError {
    pub(super) fn new(path: &Path, kind: JournalErrorKind) -> Self {
        Self { path: path.to_owned(), kind, source: None }
    }

    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), kind: JournalErrorKind::Io, source: Some(source) }
    }

    /// The kind of failure.
    pub const fn kind(&self) -> JournalErrorKind {
        self.kind
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.kind {
            JournalErrorKind::Locked => write!(f, "the journal {path} is in use by another process"),
            JournalErrorKind::Corrupt { offset } => write!(
                f,
                "the journal {path} is damaged at byte {offset}, before undamaged records; nothing was changed. Restore the file, or move it \
                 away and reconcile afterwards"
            ),
            JournalErrorKind::OtherSecret => write!(
                f,
                "the journal {path} has entries that were written with another secret, and under this one they would be billed to nobody. Use \
                 that secret until they are in the ledger; or, if it was a mistake, move the journal away and give these entries up"
            ),
            JournalErrorKind::Unsupported => write!(f, "{path} is no journal of this version"),
            JournalErrorKind::Io => write!(f, "the journal {path} cannot be used"),
        }?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}

impl Error for JournalError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn Error + 'static))
    }
}
