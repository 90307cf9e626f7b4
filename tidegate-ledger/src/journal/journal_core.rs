//! `JournalCore`: the segments of a journal and the places of its waiting entries. The lock of the journal protects it.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::spi::{EntryId, OutboxEntry};

use super::JournalRecovery;
use super::error::{JournalError, JournalErrorKind};
use super::lock_file::LockFile;
use super::record::{self, Frame, MAX_IDS, Payload, RecordSpan, SEGMENT_HEADER};
use super::segment::{JournalSegment, segment_numbers};

/// The share of the largest size after which a new segment begins.
const SEGMENTS: u64 = 16;

/// Entries are moved out of the oldest segment while they take at most this share of the journal.
const MIN_FREED_SHARE: u64 = 4;

/// An idle journal with more bytes than these is emptied.
const MAX_IDLE_BYTES: u64 = 64 << 10;

/// The segments of a journal and the places of its waiting entries.
#[derive(Debug)]
pub(super) struct JournalCore {
    base: PathBuf,
    segment_bytes: u64,
    /// Segments before the current one, oldest first.
    older: VecDeque<JournalSegment>,
    /// The one that is written to.
    current: JournalSegment,
    /// The number of the segment and the place in it of each waiting entry.
    index: HashMap<EntryId, (u64, RecordSpan)>,
    /// Entries of earlier runs, oldest first. The front ones may be acknowledged.
    recovered: VecDeque<EntryId>,
    recovery: JournalRecovery,
    /// The fingerprint of the secret that the next entries are hashed with.
    secret: Option<u64>,
    /// Whether the current segment was created when the journal was opened, and nothing was written to it.
    is_unused: bool,
    /// Released after everything else.
    lock_file: LockFile,
}

impl JournalCore {
    pub(super) fn open(lock_file: LockFile, base: &Path, max_bytes: u64) -> Result<Self, JournalError> {
        let io_error = |error| JournalError::io(base, error);
        let numbers = segment_numbers(base).map_err(io_error)?;
        let (mut segments, mut records, mut recovery) = (VecDeque::new(), Vec::new(), JournalRecovery::default());
        // An error must change nothing, so the last segment, whose end may be cut off, is opened last.
        for number in &numbers {
            let (segment, content) = JournalSegment::open(base, *number, Some(number) == numbers.last())?;
            recovery.cut_bytes += content.cut_bytes;
            segments.push_back(segment);
            records.extend(content.records.into_iter().map(|(offset, payload)| (*number, offset, payload)));
        }
        let current = match segments.pop_back() {
            Some(last) => last,
            None => JournalSegment::create(base, 1).map_err(io_error)?,
        };
        let mut core = Self {
            base: base.to_owned(),
            segment_bytes: (max_bytes / SEGMENTS).max(SEGMENT_HEADER.len() as u64 + 1),
            older: segments,
            current,
            index: HashMap::new(),
            recovered: VecDeque::new(),
            recovery,
            secret: None,
            is_unused: numbers.is_empty(),
            lock_file,
        };
        for (number, offset, payload) in records {
            core.replay_record(number, offset, payload);
        }
        core.remember_recovered();
        core.remove_finished_segments();
        Ok(core)
    }

    pub(super) const fn recovery(&self) -> JournalRecovery {
        self.recovery
    }

    pub(super) fn waiting(&self) -> u64 {
        self.index.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.older.iter().map(|segment| segment.length).sum::<u64>() + self.current.length
    }

    /// The file that is written to.
    pub(super) fn current_file(&self) -> Arc<File> {
        self.current.file()
    }

    /// The oldest waiting entries of earlier runs.
    pub(super) fn recovered(&mut self, max: usize) -> Vec<EntryId> {
        while self.recovered.front().is_some_and(|id| !self.index.contains_key(id)) {
            self.recovered.pop_front();
        }
        self.recovered.iter().filter(|id| self.index.contains_key(id)).take(max).copied().collect()
    }

    pub(super) fn read(&self, ids: &[EntryId]) -> Result<Vec<OutboxEntry>, JournalError> {
        let places = ids.iter().filter_map(|id| self.index.get(id));
        places.filter_map(|(number, span)| Some(self.segment(*number)?.read_entry(*span))).collect()
    }

    pub(super) fn sync(&self) -> Result<(), JournalError> {
        self.current.sync().map_err(|error| JournalError::io(self.current.path(), error))
    }

    /// Sets the secret of the next entries, unless others wait that have another one.
    pub(super) fn verify_secret(&mut self, secret: u64) -> Result<(), JournalError> {
        if self.waiting() > 0 && self.lock_file.secret().is_some_and(|stored| stored != secret) {
            return Err(JournalError::new(&self.base, JournalErrorKind::OtherSecret));
        }
        self.secret = Some(secret);
        Ok(())
    }

    pub(super) fn append(&mut self, frame: &Frame) -> io::Result<()> {
        self.lock_file.keep(self.secret)?;
        self.is_unused = false;
        if self.current.length >= self.segment_bytes {
            // Only the last segment may have a torn end, so this one is made durable before the next one exists.
            self.current.sync()?;
            let next = JournalSegment::create(&self.base, self.current.number + 1)?;
            self.older.push_back(std::mem::replace(&mut self.current, next));
            self.move_oldest_entries();
            self.remove_finished_segments();
        }
        self.append_to_current(frame)
    }

    /// Forgets entries. Returns whether the current segment was written to.
    pub(super) fn acknowledge(&mut self, ids: &[EntryId]) -> bool {
        let known: Vec<EntryId> = ids.iter().filter(|id| self.forget(**id)).copied().collect();
        if known.is_empty() {
            return false;
        }
        if self.index.is_empty() && self.bytes() > MAX_IDLE_BYTES {
            self.remove_finished_segments();
            if self.current.clear().is_ok() {
                return true;
            }
        }
        for ids in known.chunks(MAX_IDS) {
            // Without this record the entries are replayed after a restart, and the ledger ignores them.
            let _ = self.current.append(&record::frame_ids(ids));
        }
        self.remove_finished_segments();
        true
    }

    fn append_to_current(&mut self, frame: &Frame) -> io::Result<()> {
        let start = self.current.append(&frame.bytes)?;
        let number = self.current.number;
        for (id, span) in &frame.spans {
            self.remember(*id, number, RecordSpan { offset: start + span.offset, ..*span });
        }
        Ok(())
    }

    /// Moves the waiting entries of the oldest segment to the current one if little of the journal waits, so that a few entries that wait for
    /// long do not keep the space of all others.
    fn move_oldest_entries(&mut self) {
        let Some(oldest) = self.older.front() else { return };
        let waiting_bytes: u64 = self.index.values().map(|(_, span)| u64::from(span.length)).sum();
        if waiting_bytes > self.bytes() / MIN_FREED_SHARE {
            return;
        }
        let of_oldest = self.index.iter().filter(|(_, place)| place.0 == oldest.number);
        let mut places: Vec<(RecordSpan, EntryId)> = of_oldest.map(|(id, place)| (place.1, *id)).collect();
        places.sort_unstable();
        for places in places.chunks(MAX_IDS) {
            let ids: Vec<EntryId> = places.iter().map(|(_, id)| *id).collect();
            // Whatever fails here leaves them where they are. A crash in between leaves both, under the same id.
            let frame = self.read(&ids).ok().and_then(|entries| record::frame_entries(&entries));
            let Some(frame) = frame.filter(|frame| frame.spans.len() == ids.len()) else { return };
            if self.append_to_current(&frame).and_then(|()| self.current.sync()).is_err() {
                return;
            }
        }
    }

    fn replay_record(&mut self, number: u64, start: u64, payload: Payload) {
        match payload {
            Payload::Entries(entries) => {
                for (id, span) in entries {
                    self.remember(id, number, RecordSpan { offset: start + span.offset, ..span });
                }
            }
            Payload::Acknowledged(ids) => ids.into_iter().for_each(|id| _ = self.forget(id)),
        }
    }

    fn remember_recovered(&mut self) {
        let mut places: Vec<_> = self.index.iter().map(|(id, place)| (*place, *id)).collect();
        places.sort_unstable();
        self.recovery.entries = places.len() as u64;
        self.recovered = places.into_iter().map(|(_, id)| id).collect();
    }

    fn remember(&mut self, id: EntryId, number: u64, span: RecordSpan) {
        self.forget(id);
        self.index.insert(id, (number, span));
        if let Some(segment) = self.segment_mut(number) {
            segment.waiting += 1;
        }
    }

    fn forget(&mut self, id: EntryId) -> bool {
        let Some((number, _)) = self.index.remove(&id) else { return false };
        if let Some(segment) = self.segment_mut(number) {
            segment.waiting -= 1;
        }
        true
    }

    /// Removes the oldest segments while none of their entries waits. Later ones stay: they have the acknowledgements of earlier entries.
    fn remove_finished_segments(&mut self) {
        while self.older.front().is_some_and(|oldest| oldest.waiting == 0) {
            let Some(oldest) = self.older.pop_front() else { return };
            if std::fs::remove_file(oldest.path()).is_err() {
                // It is tried again later.
                self.older.push_front(oldest);
                return;
            }
        }
    }

    fn segment(&self, number: u64) -> Option<&JournalSegment> {
        if self.current.number == number {
            return Some(&self.current);
        }
        let index = self.older.binary_search_by_key(&number, |segment| segment.number).ok()?;
        self.older.get(index)
    }

    fn segment_mut(&mut self, number: u64) -> Option<&mut JournalSegment> {
        if self.current.number == number {
            return Some(&mut self.current);
        }
        let index = self.older.binary_search_by_key(&number, |segment| segment.number).ok()?;
        self.older.get_mut(index)
    }
}

impl Drop for JournalCore {
    fn drop(&mut self) {
        if self.is_unused {
            let _ = std::fs::remove_file(self.current.path());
        }
    }
}
