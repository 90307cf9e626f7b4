//! `Failure`: why a command has no result, as a text that says what to do. The text never contains a subject, a password or
//! a secret.

use tidegate::StoreError;
use tidegate_rules::Report;

use super::exit::Exit;

/// Why a command has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Unusable arguments, or a file that cannot be read or written.
    Usage(String),
    /// A rule file that cannot be used.
    Rules(Box<Report>),
    /// A running server cannot be reached, or cannot answer.
    Server(String),
    /// The store failed.
    Store {
        /// How it failed.
        error: StoreError,
        /// A sentence on what front ends do until the store answers again; may be empty.
        meanwhile: &'static str,
    },
}

impl Failure {
    /// A failure with exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// The exit code of the process.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Rules(_) => Exit::Usage,
            Self::Server(_) | Self::Store { .. } => Exit::Store,
        }
    }
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Self::Rules(Box::new(report))
    }
}
