//! `JournalSegment`: one file of a journal. Its bytes up to `length` are whole records.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::spi::OutboxEntry;

use super::error::{JournalError, JournalErrorKind};
use super::record::{self, Payload, RecordSpan, SEGMENT_HEADER};

/// One file of a journal.
#[derive(Debug)]
pub(super) struct JournalSegment {
    pub(super) number: u64,
    /// Entries that are not acknowledged.
    pub(super) waiting: u64,
    pub(super) length: u64,
    path: PathBuf,
    file: Arc<File>,
    /// Whether bytes of a failed write may follow. They are cut off before the next one.
    has_torn_tail: bool,
}

/// What a segment contained when it was opened: its records with their offsets, and the bytes that were cut off at its end.
#[derive(Debug)]
pub(super) struct SegmentContent {
    pub(super) records: Vec<(u64, Payload)>,
    pub(super) cut_bytes: u64,
}

impl JournalSegment {
    /// A new segment.
    pub(super) fn create(base: &Path, number: u64) -> io::Result<Self> {
        let path = segment_path(base, number);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        // Readable by its owner only, like the ledger.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path)?;
        let mut segment = Self { number, waiting: 0, length: 0, path, file: Arc::new(file), has_torn_tail: false };
        if let Err(error) = segment.append(&SEGMENT_HEADER) {
            // The next attempt must be able to create it.
            let _ = std::fs::remove_file(&segment.path);
            return Err(error);
        }
        sync_directory(base);
        Ok(segment)
    }

    /// Opens a segment and reads it. The last segment may end with an interrupted write, which is cut off.
    pub(super) fn open(base: &Path, number: u64, is_last: bool) -> Result<(Self, SegmentContent), JournalError> {
        let path = segment_path(base, number);
        let io_error = |error| JournalError::io(&path, error);
        let mut file = OpenOptions::new().read(true).write(true).open(&path).map_err(io_error)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io_error)?;
        let is_new = is_last && bytes.len() < SEGMENT_HEADER.len() && SEGMENT_HEADER.starts_with(&bytes);
        if !is_new && !bytes.starts_with(&SEGMENT_HEADER) {
            return Err(JournalError::new(&path, JournalErrorKind::Unsupported));
        }
        let (records, end) = if is_new { (Vec::new(), 0) } else { read_records(&bytes) };
        let tail = &bytes[end..];
        if !tail.is_empty() && (!is_last || record::contains_record(tail)) {
            return Err(JournalError::new(&path, JournalErrorKind::Corrupt { offset: end as u64 }));
        }
        let has_torn_tail = !tail.is_empty();
        let content = SegmentContent { records, cut_bytes: tail.len() as u64 };
        let mut segment = Self { number, waiting: 0, length: end as u64, path, file: Arc::new(file), has_torn_tail };
        segment.cut_torn_tail().map_err(|error| JournalError::io(&segment.path, error))?;
        if is_new {
            segment.append(&SEGMENT_HEADER).map_err(|error| JournalError::io(&segment.path, error))?;
        }
        Ok((segment, content))
    }

    /// Appends bytes. After an error none of them are left. Returns the offset of the first.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<u64> {
        self.cut_torn_tail()?;
        let offset = self.length;
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(offset))?;
        if let Err(error) = file.write_all(bytes) {
            self.has_torn_tail = true;
            // If this fails too, the next append repeats it, and after a restart the tail is recognised as torn.
            let _ = self.cut_torn_tail();
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(offset)
    }

    /// The entry at `span`.
    pub(super) fn read_entry(&self, span: RecordSpan) -> Result<OutboxEntry, JournalError> {
        let mut bytes = vec![0; span.length as usize];
        let mut file = &*self.file;
        let read = file.seek(SeekFrom::Start(span.offset)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|error| JournalError::io(&self.path, error))?;
        let corrupt = || JournalError::new(&self.path, JournalErrorKind::Corrupt { offset: span.offset });
        record::read_entry(&bytes).ok_or_else(corrupt)
    }

    /// Removes all records. None of its entries may wait.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.length = SEGMENT_HEADER.len() as u64;
        self.has_torn_tail = true;
        self.cut_torn_tail()
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub(super) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn cut_torn_tail(&mut self) -> io::Result<()> {
        if self.has_torn_tail {
            self.file.set_len(self.length)?;
            self.has_torn_tail = false;
        }
        Ok(())
    }
}

/// The records of a segment, and where the last whole one ends.
fn read_records(bytes: &[u8]) -> (Vec<(u64, Payload)>, usize) {
    let (mut records, mut end) = (Vec::new(), SEGMENT_HEADER.len());
    while let Some((payload, length)) = record::read_record(&bytes[end..]) {
        records.push((end as u64, payload));
        end += length;
    }
    (records, end)
}

/// The numbers of the segments of a journal, in order.
pub(super) fn segment_numbers(base: &Path) -> io::Result<Vec<u64>> {
    let prefix = format!("{}.", base.file_name().unwrap_or_default().to_string_lossy());
    let mut numbers = Vec::new();
    for file in std::fs::read_dir(directory(base))? {
        let name = file?.file_name();
        numbers.extend(name.to_string_lossy().strip_prefix(&prefix).and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn segment_path(base: &Path, number: u64) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".{number:08}"));
    name.into()
}

fn directory(base: &Path) -> &Path {
    base.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names of files in the directory durable, where the system can do that.
fn sync_directory(base: &Path) {
    if let Ok(directory) = File::open(directory(base)) {
        let _ = directory.sync_all();
    }
}
