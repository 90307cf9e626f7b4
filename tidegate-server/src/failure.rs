//! `Failure`: why a command cannot answer: in words, with a way out. It must not repeat a subject, a password or a secret.

use tidegate::StoreError;
use tidegate_rules::Report;

use crate::exit::Exit;

/// Why a command cannot answer.
pub(crate) enum Failure {
    /// Arguments that make no sense, or a file that cannot be read or written.
    Usage(String),
    /// A rule file that cannot be used.
    Rules(Box<Report>),
    /// The store failed, and what doors do meanwhile.
    Store { error: StoreError, meanwhile: &'static str },
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    pub(crate) const fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Rules(_) => Exit::Usage,
            Self::Store { .. } => Exit::Store,
        }
    }
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Self::Rules(Box::new(report))
    }
}
