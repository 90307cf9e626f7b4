//! `LedgerArgs`: the flags of the ledger.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate_ledger::LedgerUrl;

use crate::args::flag_values::millis;
use crate::command::failure::Failure;

const HEADING: &str = "Ledger";

/// The longest budget, in milliseconds.
const MAX_BUDGET_MILLIS: u64 = 60_000;

/// The journal of a ledger that has no file of its own.
const DEFAULT_JOURNAL: &str = "tidegate.journal";

/// The flags.
#[derive(Args)]
#[allow(clippy::struct_field_names, reason = "each field is a flag, and named like it")]
pub(crate) struct LedgerArgs {
    /// The ledger, which has the truth about quotas with `ledger:`: `sqlite:FILE` for a single instance, or
    /// `postgres://user:password@host/database` for any number of them; needs a secret
    #[arg(long, value_name = "URL", env = "TIDEGATE_LEDGER", hide_env_values = true, help_heading = HEADING)]
    ledger: Option<String>,
    /// File with that URL, which may contain a password
    #[arg(long, value_name = "FILE", env = "TIDEGATE_LEDGER_URL_FILE", help_heading = HEADING)]
    ledger_url_file: Option<PathBuf>,
    /// Time within which a request under `ledger: sync` must be durable in the ledger; after it, its units are given
    /// back, and its rule does what its `on_failure` says
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_LEDGER_BUDGET", value_parser = millis(1..=MAX_BUDGET_MILLIS), default_value = "250ms", help_heading = HEADING)]
    pub(crate) ledger_budget: Duration,
    /// File for entries that are not in the ledger yet: those of the memory store, and those of requests that a rule admits while a shared
    /// store fails; on a disk that outlives the process [default: the SQLite file with .journal, or tidegate.journal]
    #[arg(long, value_name = "FILE", env = "TIDEGATE_LEDGER_JOURNAL", help_heading = HEADING)]
    pub(crate) ledger_journal: Option<PathBuf>,
}

impl LedgerArgs {
    /// The ledger that the flags name. No error repeats the URL, which may contain a password.
    pub(crate) fn url(&self) -> Result<Option<LedgerUrl>, Failure> {
        let text = match (&self.ledger, &self.ledger_url_file) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Failure::usage("--ledger and --ledger-url-file are both given: choose one"));
            }
            (Some(text), None) => text.clone(),
            (None, Some(path)) => std::fs::read_to_string(path)
                .map_err(|error| Failure::usage(format!("--ledger-url-file {}: {error}", path.display())))?,
        };
        let url = LedgerUrl::parse(text.trim()).map_err(|error| Failure::usage(format!("--ledger: {error}")))?;
        Ok(Some(url))
    }

    /// The journal of this ledger.
    pub(crate) fn journal(&self, url: &LedgerUrl) -> PathBuf {
        let default = || match url {
            LedgerUrl::Sqlite(path) => {
                let mut name = path.clone().into_os_string();
                name.push(".journal");
                name.into()
            }
            _ => DEFAULT_JOURNAL.into(),
        };
        self.ledger_journal.clone().unwrap_or_else(default)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        ledger: LedgerArgs,
    }

    fn parse(line: &[&str]) -> LedgerArgs {
        Flags::try_parse_from([&["serve"][..], line].concat()).unwrap().ledger
    }

    fn refused(line: &[&str]) -> String {
        let Err(Failure::Usage(message)) = parse(line).url() else { panic!("{line:?} is accepted") };
        message
    }

    #[test]
    fn the_journal_is_beside_the_sqlite_file_or_where_the_flag_says() {
        let journal = |line: &[&str]| {
            let flags = parse(line);
            flags.journal(&flags.url().unwrap().unwrap())
        };
        assert_eq!(journal(&["--ledger", "sqlite:/var/l.db"]), Path::new("/var/l.db.journal"));
        assert_eq!(journal(&["--ledger", "postgres://h/d"]), Path::new("tidegate.journal"));
        assert_eq!(journal(&["--ledger", "sqlite:l.db", "--ledger-journal", "j"]), Path::new("j"));
        assert_eq!(parse(&[]).ledger_budget, Duration::from_millis(250));
    }

    #[test]
    fn the_url_may_be_in_a_file_and_no_error_repeats_its_password() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, "postgres://ann:hunter2@h/d\n").unwrap();
        let url = parse(&["--ledger-url-file", path]).url().unwrap().unwrap();
        assert_eq!(url.to_string(), "postgres://ann:…@h/d");
        assert!(refused(&["--ledger", "sqlite:l.db", "--ledger-url-file", path]).contains("choose one"));
        assert!(refused(&["--ledger-url-file", "/no/such/file"]).contains("/no/such/file"));
        for wrong in ["mysql://ann:hunter2@h/d", "postgres://ann:hunter2@h:port/d", "hunter2"] {
            let message = refused(&["--ledger", wrong]);
            assert!(message.starts_with("--ledger: ") && !message.contains("hunter2"), "{message}");
        }
        assert!(parse(&[]).url().unwrap().is_none());
    }
}
