//! `LedgerUrl`: where a ledger is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;

use crate::LedgerError;

/// Where a ledger is: a file for one instance, or a PostgreSQL database for any number of them.
///
/// ```
/// use tidegate_ledger::LedgerUrl;
///
/// let file: LedgerUrl = "sqlite:/var/lib/tidegate/ledger.db".parse()?;
/// assert!(!file.is_shared());
/// let shared = LedgerUrl::parse("postgres://tidegate:secret@db.internal/ledger")?;
/// assert!(shared.is_shared());
/// assert_eq!(shared.to_string(), "postgres://tidegate:…@db.internal/ledger");
/// # Ok::<(), tidegate_ledger::LedgerError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LedgerUrl {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// The URL of a PostgreSQL database. It may contain a password: only its display form is for logs.
    Postgres(String),
}

/// The parameters of a PostgreSQL URL, by the names that other tools use, too.
const PARAMETERS: [&str; 11] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "options",
];

impl LedgerUrl {
    /// Reads `sqlite:FILE`, `postgres://…` or `postgresql://…`.
    pub fn parse(text: &str) -> Result<Self, LedgerError> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            // Both `sqlite:FILE` and the form of other tools, `sqlite://FILE`.
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path.starts_with(":memory:") {
                return Err(LedgerError::invalid(
                    "a SQLite ledger needs a file, as in sqlite:/var/lib/tidegate/ledger.db",
                ));
            }
            return Ok(Self::Sqlite(PathBuf::from(path)));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let url = Self::Postgres(text.to_owned());
            url.postgres_options()?;
            return Ok(url);
        }
        Err(LedgerError::invalid("the ledger URL is neither sqlite:FILE nor postgres://USER:PASSWORD@HOST/DATABASE"))
    }

    /// Whether any number of instances can use it.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// The options of a connection. The error does not repeat the URL, which may contain a password.
    pub(crate) fn postgres_options(&self) -> Result<PgConnectOptions, LedgerError> {
        match self {
            Self::Postgres(url) => {
                check_parameters(url)?;
                PgConnectOptions::from_str(url).map_err(|_| malformed())
            }
            Self::Sqlite(_) => Err(malformed()),
        }
    }
}

impl FromStr for LedgerUrl {
    type Err = LedgerError;

    fn from_str(text: &str) -> Result<Self, LedgerError> {
        Self::parse(text)
    }
}

impl fmt::Display for LedgerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for LedgerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LedgerUrl({self})")
    }
}

fn malformed() -> LedgerError {
    LedgerError::invalid(
        "the ledger URL is malformed; it looks like postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters as \
         %XX",
    )
}

/// Refuses parameters that the driver does not know: it would ignore them, and log their values, which may be passwords.
fn check_parameters(url: &str) -> Result<(), LedgerError> {
    let query = url.split('#').next().and_then(|url| url.split_once('?')).map_or("", |(_, query)| query);
    let is_known = |name: &str| PARAMETERS.contains(&name) || name.starts_with("options[");
    let is_word = |name: &str| name.chars().all(|letter| letter.is_ascii_alphabetic() || "_-".contains(letter));
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some((name, _)) if is_known(name) => {}
            Some((name, _)) if is_word(name) => {
                let known = PARAMETERS.join(", ");
                let message = format!("the ledger URL has the parameter `{name}`, which is none of {known}");
                return Err(LedgerError::invalid(message));
            }
            // It may be the end of a password with a `?` or `&` in it.
            _ => return Err(malformed()),
        }
    }
    Ok(())
}

/// The URL without its query, which may contain a password too, and with `…` for the password before the host.
fn without_password(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    // The last `@`: an unescaped one in a password must not show its end.
    match rest.rsplit_once('@') {
        Some((user, place)) => {
            let user = match user.split_once(':') {
                Some((name, _)) => format!("{name}:…"),
                None => user.to_owned(),
            };
            format!("{scheme}://{user}@{place}")
        }
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_url_shows_the_password() {
        for text in [
            "postgres://ann:s3cret@db/ledger",
            "postgresql://ann:s3cret@db:5433/ledger?sslmode=require",
            "postgres://ann@db/ledger?password=s3cret",
            "postgres://ann:x%40s3cret@db/ledger#s3cret",
        ] {
            let url = LedgerUrl::parse(text).unwrap();
            let shown = format!("{url} {url:?}");
            assert!(!shown.contains("s3cret") && shown.contains("ann") && shown.contains("db"), "{shown}");
        }
        for refused in [
            "postgres://ann:s3cret@db:port/ledger",
            "postgres://ann@db/ledger?sslmode=require&passwd=s3cret",
            "postgres://ann:x?s3cret@db/ledger",
            "postgres://ann@db/ledger?password=x&s3cret",
        ] {
            let error = LedgerUrl::parse(refused).unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_malformed_url_is_invalid_and_says_what_one_looks_like() {
        for text in ["", "sqlite:", "sqlite::memory:", "mysql://db/ledger", "postgres://db:port/x"] {
            let error = LedgerUrl::parse(text).unwrap_err();
            assert_eq!(error.kind(), crate::LedgerErrorKind::Invalid, "{text}");
        }
        assert_eq!(LedgerUrl::parse("sqlite:a/b.db").unwrap(), LedgerUrl::Sqlite("a/b.db".into()));
        assert_eq!(LedgerUrl::parse("sqlite:///a/b.db").unwrap(), LedgerUrl::Sqlite("/a/b.db".into()));
    }
}
