//! `LockFile`: keeps other processes away from a journal, and has the fingerprint of the secret by which its entries are hashed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::{JournalError, JournalErrorKind};

/// The line with the fingerprint: this, 16 hexadecimal digits, and the end of the line.
const SECRET_PREFIX: &str = "secret ";
const LINE_BYTES: usize = SECRET_PREFIX.len() + 17;

/// A locked file. If locking it has created it, it is removed at the end, unless it is kept.
#[derive(Debug)]
pub(super) struct LockFile {
    path: PathBuf,
    file: File,
    is_new: bool,
    /// The fingerprint in the file. `None` if there is none.
    secret: Option<u64>,
}

impl LockFile {
    /// Locks the file at `path`, which is created if it does not exist.
    pub(super) fn lock(path: &Path) -> Result<Self, JournalError> {
        let io_error = |error| JournalError::io(path, error);
        loop {
            let (file, is_new) = open(path).map_err(io_error)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(JournalError::new(path, JournalErrorKind::Locked)),
                Err(TryLockError::Error(error)) => return Err(io_error(error)),
            }
            let mut lock = Self { path: path.to_owned(), file, is_new, secret: None };
            // The process before this one may have removed its file. Then its lock keeps nobody away.
            if !lock.is_at_path() {
                lock.is_new = false;
                continue;
            }
            let mut content = Vec::new();
            // A byte more than there may be.
            (&lock.file).take(LINE_BYTES as u64 + 1).read_to_end(&mut content).map_err(io_error)?;
            lock.secret = read_secret(path, &content)?;
            return Ok(lock);
        }
    }

    /// The fingerprint of the secret of the last entries.
    pub(super) const fn secret(&self) -> Option<u64> {
        self.secret
    }

    /// Keeps the file, for entries that are hashed with the secret of this fingerprint.
    pub(super) fn keep(&mut self, secret: Option<u64>) -> io::Result<()> {
        if let Some(secret) = secret.filter(|_| self.secret != secret) {
            let line = format!("{SECRET_PREFIX}{secret:016x}\n");
            let mut file = &self.file;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(line.as_bytes())?;
            file.sync_all()?;
            self.secret = Some(secret);
        }
        self.is_new = false;
        Ok(())
    }

    #[cfg(unix)]
    fn is_at_path(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let [own, found] =
            [self.file.metadata(), std::fs::metadata(&self.path)].map(|metadata| metadata.map(place).ok());
        own.is_some() && own == found
    }

    #[cfg(not(unix))]
    fn is_at_path(&self) -> bool {
        self.path.exists()
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.is_new {
            // Before the lock ends, so that nobody else has it yet.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Opens the file. Returns whether this has created it.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    // Readable by its owner only, like the ledger.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.read(true).write(true);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok((options.create(true).truncate(false).open(path)?, false))
        }
        created => Ok((created?, true)),
    }
}

/// The fingerprint in a file. `None` if it was not written to its end: entries follow only after all of it is on disk.
fn read_secret(path: &Path, content: &[u8]) -> Result<Option<u64>, JournalError> {
    let prefix = SECRET_PREFIX.as_bytes();
    let digits = content.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(b"\n"));
    let digits = digits.filter(|digits| digits.len() == 16).and_then(|digits| std::str::from_utf8(digits).ok());
    if let Some(secret) = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        return Ok(Some(secret));
    }
    let is_begun = content.len() < LINE_BYTES && (content.starts_with(prefix) || prefix.starts_with(content));
    let is_blank = content.len() <= LINE_BYTES && content.iter().all(|byte| *byte == 0);
    if is_begun || is_blank { Ok(None) } else { Err(JournalError::new(path, JournalErrorKind::Unsupported)) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Otherwise two processes would have the lock: one of a file that is gone, and one of its successor.
    #[test]
    fn a_file_that_is_removed_and_created_at_the_same_time_is_locked_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let (path, owners, locked) = (directory.path().join("journal"), AtomicU32::new(0), AtomicU32::new(0));
        let lock_often = || {
            for _ in 0..5_000 {
                let Ok(lock) = LockFile::lock(&path) else { continue };
                assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                assert!(path.exists());
                owners.fetch_sub(1, Ordering::SeqCst);
                locked.fetch_add(1, Ordering::SeqCst);
                drop(lock);
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(lock_often))));
        assert!(locked.into_inner() > 0);
    }
}
