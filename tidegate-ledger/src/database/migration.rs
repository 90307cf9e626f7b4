//! Which migrations a schema lacks.

use crate::{LedgerError, LedgerErrorKind};

/// Whether the schema has the last version. Fails if it has a later one.
pub(super) fn is_current(version: i64, last: usize) -> Result<bool, LedgerError> {
    match usize::try_from(version) {
        Ok(version) if version <= last => Ok(version == last),
        _ => Err(LedgerError::new(
            LedgerErrorKind::Newer,
            format!(
                "the ledger has schema version {version}, and this version of Tidegate knows versions up to {last}; \
                 update Tidegate, or restore a backup from before the update"
            ),
        )),
    }
}

/// The numbers and texts of the migrations after a version.
pub(super) fn missing(version: i64, all: &'static [&'static str]) -> impl Iterator<Item = (i64, &'static str)> {
    (1..).zip(all.iter().copied()).skip_while(move |(number, _)| *number <= version)
}
