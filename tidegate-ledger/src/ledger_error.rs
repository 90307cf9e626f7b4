//! `LedgerError`: why the ledger did not do what it was asked to. It never contains a password or a subject.

use std::fmt;

use sqlx::postgres::PgDatabaseError;
use sqlx::sqlite::SqliteError;

/// Why the ledger did not do what it was asked to. Nothing was changed then, unless the kind is
/// [`Unavailable`](LedgerErrorKind::Unavailable): the answer to a commit may be lost, so repeat the call; entries count once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerError {
    kind: LedgerErrorKind,
    message: String,
    /// Whether the database asks for the transaction to be repeated at once.
    repeatable: bool,
}

/// The kind of a [`LedgerError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LedgerErrorKind {
    /// The database does not answer, or not in time.
    Unavailable,
    /// The database refuses writes.
    ReadOnly,
    /// The disk of the database is full.
    Full,
    /// The ledger was written by a newer version of Tidegate.
    Newer,
    /// This instance must not use the ledger: its secret, its version or its clock is not that of the ledger, or another instance uses it
    /// alone. What it wrote would be billed to wrong accounts or periods, or twice.
    Mismatch,
    /// The call is wrong: a URL, a correction below zero.
    Invalid,
    /// Somebody else does the same at this moment.
    Busy,
    /// Anything else.
    Unexpected,
}

impl LedgerErrorKind {
    /// The name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::ReadOnly => "read_only",
            Self::Full => "full",
            Self::Newer => "newer",
            Self::Mismatch => "mismatch",
            Self::Invalid => "invalid",
            Self::Busy => "busy",
            Self::Unexpected => "unexpected",
        }
    }
}

impl LedgerError {
    pub(crate) fn new(kind: LedgerErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), repeatable: false }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(LedgerErrorKind::Invalid, message)
    }

    /// The error of a ledger that does not [fit](LedgerErrorKind::Mismatch) this instance.
    pub fn mismatch(message: impl Into<String>) -> Self {
        Self::new(LedgerErrorKind::Mismatch, message)
    }

    pub(crate) fn timed_out() -> Self {
        Self::new(
            LedgerErrorKind::Unavailable,
            "the ledger's database did not answer in time; check its load and the network",
        )
    }

    /// The kind.
    pub const fn kind(&self) -> LedgerErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later, once the database is reachable, writable or has space again.
    pub const fn is_transient(&self) -> bool {
        use LedgerErrorKind::{Busy, Full, ReadOnly, Unavailable};
        matches!(self.kind, Unavailable | ReadOnly | Full | Busy)
    }

    /// Whether the transaction was the victim of a deadlock, and is to be repeated at once.
    pub(crate) const fn is_repeatable(&self) -> bool {
        self.repeatable
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for LedgerError {}

impl From<sqlx::Error> for LedgerError {
    fn from(error: sqlx::Error) -> Self {
        use LedgerErrorKind::{Unavailable, Unexpected};
        match &error {
            sqlx::Error::Database(error) => {
                if let Some(error) = error.try_downcast_ref::<PgDatabaseError>() {
                    from_postgres(error)
                } else if let Some(error) = error.try_downcast_ref::<SqliteError>() {
                    from_sqlite(error)
                } else {
                    Self::new(Unexpected, format!("the ledger's database answers: {}", error.message()))
                }
            }
            sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => no_tls(error),
            sqlx::Error::Io(error) => Self::new(
                Unavailable,
                format!("the ledger's database is not reachable ({error}); check that it runs, and the ledger URL"),
            ),
            sqlx::Error::Tls(error) => no_tls(error),
            sqlx::Error::PoolTimedOut => Self::timed_out(),
            sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::new(Unavailable, "the connection to the ledger's database is closed")
            }
            other => Self::new(Unexpected, format!("the ledger's database answers unexpectedly: {other}")),
        }
    }
}

/// Waiting does not help.
fn no_tls(error: &(impl fmt::Display + ?Sized)) -> LedgerError {
    let message = format!("no TLS connection to the ledger's database ({error}); check its certificate and `sslmode`");
    LedgerError::new(LedgerErrorKind::Unexpected, message)
}

/// By the codes of its appendix "Error Codes".
fn from_postgres(error: &PgDatabaseError) -> LedgerError {
    use LedgerErrorKind::{Full, ReadOnly, Unavailable, Unexpected};
    let (code, message) = (error.code(), error.message());
    let (kind, advice) = match code {
        "53100" => (Full, "free or add disk space for PostgreSQL"),
        "25006" => (ReadOnly, "point the ledger URL to the primary, or make the database writable"),
        "57014" | "55P03" => (Unavailable, "the statement took too long; check its load and what blocks it"),
        "40001" | "40P01" => (Unavailable, "other transactions are in its way; repeat it"),
        "53200" | "53300" => (Unavailable, "give PostgreSQL more memory or connections"),
        code if code.starts_with("57P") || code.starts_with("08") => (Unavailable, "it is starting or stopping"),
        code if code.starts_with("28") => (Unexpected, "check the user and the password in the ledger URL"),
        "3D000" => (Unexpected, "create the database that the ledger URL names"),
        "42501" => (Unexpected, "grant the user of the ledger URL the right to create and use its tables"),
        _ => (Unexpected, "see the log of PostgreSQL"),
    };
    let message = format!("PostgreSQL, the ledger's database, answers {code}: {message}; {advice}");
    LedgerError { kind, message, repeatable: matches!(code, "40001" | "40P01") }
}

/// By its primary result codes, which are the low byte of the extended ones.
fn from_sqlite(error: &SqliteError) -> LedgerError {
    use LedgerErrorKind::{Full, ReadOnly, Unavailable, Unexpected};
    use sqlx::error::DatabaseError;
    let code = error.code().and_then(|code| code.parse::<u32>().ok()).unwrap_or_default();
    let (kind, advice) = match code & 0xff {
        5 | 6 => (Unavailable, "another process uses the file for too long"),
        8 => (ReadOnly, "make the file and its directory writable"),
        10 => (Unavailable, "the disk does not read or write; see the log of the system"),
        13 => (Full, "free disk space"),
        14 => (Unavailable, "check that the directory exists and is writable"),
        11 | 26 => (Unexpected, "the file is damaged or no SQLite database; restore a backup"),
        _ => (Unexpected, "see SQLite's list of result codes"),
    };
    LedgerError::new(
        kind,
        format!("SQLite, the ledger's database, answers {code}: {}; {advice}", DatabaseError::message(error)),
    )
}
