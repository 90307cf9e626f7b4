//! `JournalFile`: entries that wait for the ledger, in files that outlive the process.
//!
//! ```text
//! PATH            locked while the journal is open; has the fingerprint of the secret of its entries
//! PATH.00000001   segments of checksummed records, oldest first; the last one is written to
//! PATH.00000002
//! ```
//!
//! - An append is written to the file before it returns, in one record: after a crash of the process all of its entries are there or none.
//!   A second later at most it is on disk, so a crash of the machine loses no more than that second.
//! - A failed append leaves nothing behind, and says so. A full journal or disk refuses entries; it never drops one.
//! - An entry is forgotten only after it was acknowledged. Acknowledgements may be lost; the ledger counts such an entry once all the same.
//! - The end of an interrupted write is cut off when the journal is opened. Damage before undamaged records is an error that names the file
//!   and the offset, and nothing is changed.
//! - The oldest segment is removed when none of its entries waits. If little of the journal waits, they are moved to the newest one.
//! - A journal without entries that is created and closed leaves no file behind.
//! - In memory it keeps the place of each waiting entry, not the entry.

mod error;
mod journal_core;
mod lock_file;
mod record;
mod segment;
mod syncer;

use std::fmt;
use std::path::Path;
use std::time::Duration;

pub use error::{JournalError, JournalErrorKind};
use journal_core::JournalCore;
use lock_file::LockFile;
use syncer::Syncer;
use tidegate::spi::{EntryId, Journal, OutboxEntry};
use tidegate::sync::Mutex;
use tidegate::{Secret, StoreError, StoreErrorKind};

use crate::database::secret_fingerprint;

/// The largest size of all segments. A full journal refuses entries.
pub const DEFAULT_MAX_JOURNAL_BYTES: u64 = 256 << 20;

/// How long an entry is in the memory of the system only.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Entries that wait for the ledger, in files that outlive the process.
///
/// ```
/// use tidegate_ledger::JournalFile;
///
/// let directory = tempfile::tempdir()?;
/// let journal = JournalFile::open(directory.path().join("journal"))?;
/// assert_eq!(journal.waiting(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct JournalFile {
    core: Mutex<JournalCore>,
    max_bytes: u64,
    syncer: Syncer,
}

/// What a journal contained when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalRecovery {
    /// Entries of earlier runs that wait for the ledger.
    pub entries: u64,
    /// Bytes of an interrupted write that were cut off.
    pub cut_bytes: u64,
}

/// Constructors
impl JournalFile {
    /// Opens a journal, or creates one. It takes up to [`DEFAULT_MAX_JOURNAL_BYTES`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, JournalError> {
        Self::open_with_max_bytes(path, DEFAULT_MAX_JOURNAL_BYTES)
    }

    /// Opens a journal that takes up to `max_bytes`, or creates one.
    pub fn open_with_max_bytes(path: impl AsRef<Path>, max_bytes: u64) -> Result<Self, JournalError> {
        let path = path.as_ref();
        let core = JournalCore::open(LockFile::lock(path)?, path, max_bytes)?;
        let recovery = core.recovery();
        if recovery.cut_bytes > 0 {
            let bytes = recovery.cut_bytes;
            tracing::warn!(target: "tidegate::ledger", bytes, "the end of an interrupted write was cut off the journal");
        }
        let syncer = Syncer::start(SYNC_INTERVAL).map_err(|error| JournalError::io(path, error))?;
        Ok(Self { core: Mutex::new(core), max_bytes, syncer })
    }

    /// Checks that the subjects of the entries are hashed with this secret, and those of further ones are. Fails with
    /// [`JournalErrorKind::OtherSecret`], and changes nothing, if entries wait that are hashed with another one: they belong to accounts
    /// that nobody finds by this one.
    pub fn verify_secret(&self, secret: &Secret) -> Result<(), JournalError> {
        self.core.lock().verify_secret(secret_fingerprint(secret).cast_unsigned())
    }
}

/// Reading
impl JournalFile {
    /// What the journal contained when it was opened.
    pub fn recovery(&self) -> JournalRecovery {
        self.core.lock().recovery()
    }

    /// Entries that are not acknowledged.
    pub fn waiting(&self) -> u64 {
        self.core.lock().waiting()
    }

    /// The size of all segments.
    pub fn bytes(&self) -> u64 {
        self.core.lock().bytes()
    }

    /// The oldest entries of earlier runs that are not acknowledged, at most `max`.
    pub fn replay(&self, max: usize) -> Result<Vec<OutboxEntry>, JournalError> {
        let mut core = self.core.lock();
        let ids = core.recovered(max);
        core.read(&ids)
    }

    /// The ids of the entries of earlier runs that are not acknowledged.
    pub(crate) fn recovered_ids(&self) -> Vec<EntryId> {
        self.core.lock().recovered(usize::MAX)
    }

    /// The entries with these ids. Unknown and acknowledged ones are left out.
    pub fn read(&self, ids: &[EntryId]) -> Result<Vec<OutboxEntry>, JournalError> {
        self.core.lock().read(ids)
    }

    /// Makes everything durable now.
    pub fn sync(&self) -> Result<(), JournalError> {
        self.core.lock().sync()
    }
}

impl Journal for JournalFile {
    fn append(&self, entries: &[OutboxEntry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        if self.syncer.has_failed() {
            return Err(refused("the journal cannot be made durable"));
        }
        let frame =
            record::frame_entries(entries).ok_or_else(|| refused("too many entries for the journal at once"))?;
        let mut core = self.core.lock();
        if core.bytes() + frame.bytes.len() as u64 > self.max_bytes {
            return Err(refused("the journal is full; check that the ledger is reachable"));
        }
        core.append(&frame).map_err(|error| refused("the journal cannot be written").with_source(error))?;
        self.syncer.record_change(core.current_file());
        Ok(())
    }

    fn acknowledge(&self, ids: &[EntryId]) {
        let mut core = self.core.lock();
        if core.acknowledge(ids) {
            self.syncer.record_change(core.current_file());
        }
    }
}

fn refused(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, message)
}

impl fmt::Debug for JournalFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalFile").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
