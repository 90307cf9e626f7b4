//! Tests of `JournalFile`: what is there after crashes, full disks and damage.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidegate::Timestamp;
use tidegate::spi::{EntryKind, Subject};

use super::*;

fn entry(number: u64) -> OutboxEntry {
    OutboxEntry {
        id: EntryId { generation: 7, partition: 3, millis: 1_000 + number, sequence: number },
        kind: EntryKind::Consume,
        at: Timestamp::from_micros(number),
        stem: "exports:u1d.%24x".to_owned(),
        subject: Subject::from_hash(u128::MAX - u128::from(number)),
        period: 20_000,
        amount: -3,
        late_amount: i64::MIN,
        held: u64::MAX,
        owner: number,
        expires_at: Timestamp::MAX,
        hard_limit: 10_000,
    }
}

fn entries(numbers: std::ops::Range<u64>) -> Vec<OutboxEntry> {
    numbers.map(entry).collect()
}

fn ids(entries: &[OutboxEntry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    (directory, path)
}

fn segment(path: &Path, number: u64) -> PathBuf {
    PathBuf::from(format!("{}.{number:08}", path.display()))
}

fn segments(path: &Path) -> usize {
    fs::read_dir(path.parent().unwrap()).unwrap().count() - 1
}

#[test]
fn entries_are_read_back_as_they_were_written_in_this_run_and_the_next() {
    let (_directory, path) = directory();
    let written = entries(0..5);
    {
        let journal = JournalFile::open(&path).unwrap();
        journal.append(&written[..3]).unwrap();
        journal.append(&written[3..]).unwrap();
        assert_eq!(journal.replay(10).unwrap(), [], "these are not of an earlier run");
        assert_eq!(journal.read(&ids(&written)).unwrap(), written);
    }
    let journal = JournalFile::open(&path).unwrap();
    assert_eq!(journal.recovery(), JournalRecovery { entries: 5, cut_bytes: 0 });
    assert_eq!(journal.replay(2).unwrap(), written[..2]);
    journal.acknowledge(&ids(&written[..4]));
    assert_eq!(journal.replay(10).unwrap(), written[4..]);
    assert_eq!(journal.waiting(), 1);
}

#[test]
fn acknowledged_entries_are_not_replayed_after_a_restart() {
    let (_directory, path) = directory();
    let written = entries(0..5);
    {
        let journal = JournalFile::open(&path).unwrap();
        journal.append(&written).unwrap();
        journal.acknowledge(&ids(&written[1..3]));
        journal.acknowledge(&[EntryId { generation: 1, partition: 1, millis: 1, sequence: 1 }]);
    }
    let replayed = JournalFile::open(&path).unwrap().replay(10).unwrap();
    assert_eq!(ids(&replayed), [written[0].id, written[3].id, written[4].id]);
}

#[test]
fn a_write_that_was_interrupted_at_any_byte_leaves_every_append_before_it() {
    let (_directory, path) = directory();
    let mut ends = Vec::new();
    {
        let journal = JournalFile::open(&path).unwrap();
        for number in 0..4 {
            journal.append(&[entry(2 * number), entry(2 * number + 1)]).unwrap();
            ends.push(journal.bytes());
        }
    }
    let whole = fs::read(segment(&path, 1)).unwrap();
    for length in 0..whole.len() {
        fs::write(segment(&path, 1), &whole[..length]).unwrap();
        let journal = JournalFile::open(&path).unwrap();
        let appends = ends.iter().filter(|end| **end <= length as u64).count() as u64;
        assert_eq!(journal.replay(100).unwrap(), entries(0..2 * appends), "cut to {length} bytes");
        assert_eq!(journal.waiting(), 2 * appends);
        journal.append(&[entry(99)]).unwrap();
        drop(journal);
        let journal = JournalFile::open(&path).unwrap();
        assert_eq!(journal.recovery(), JournalRecovery { entries: 2 * appends + 1, cut_bytes: 0 });
    }
}

#[test]
fn a_damaged_end_is_cut_off_and_counted() {
    let (_directory, path) = directory();
    let good_bytes = {
        let journal = JournalFile::open(&path).unwrap();
        journal.append(&entries(0..1)).unwrap();
        let good_bytes = journal.bytes();
        journal.append(&entries(1..2)).unwrap();
        good_bytes
    };
    let whole = fs::read(segment(&path, 1)).unwrap();
    for at in good_bytes as usize..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        fs::write(segment(&path, 1), &damaged).unwrap();
        let journal = JournalFile::open(&path).unwrap();
        let cut_bytes = whole.len() as u64 - good_bytes;
        assert_eq!(journal.recovery(), JournalRecovery { entries: 1, cut_bytes }, "damaged at byte {at}");
    }
}

#[test]
fn damage_before_undamaged_records_is_an_error_that_changes_nothing() {
    let (_directory, path) = directory();
    let good_bytes = {
        let journal = JournalFile::open(&path).unwrap();
        journal.append(&entries(0..1)).unwrap();
        let good_bytes = journal.bytes();
        journal.append(&entries(1..2)).unwrap();
        journal.append(&entries(2..3)).unwrap();
        good_bytes
    };
    let mut damaged = fs::read(segment(&path, 1)).unwrap();
    damaged[good_bytes as usize + 20] ^= 1;
    fs::write(segment(&path, 1), &damaged).unwrap();
    let error = JournalFile::open(&path).unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::Corrupt { offset: good_bytes });
    assert_eq!(error.path(), segment(&path, 1));
    assert!(error.to_string().contains(&format!("damaged at byte {good_bytes}")), "{error}");
    assert_eq!(fs::read(segment(&path, 1)).unwrap(), damaged);
}

#[test]
fn two_processes_cannot_share_a_journal() {
    let (_directory, path) = directory();
    let first = JournalFile::open(&path).unwrap();
    let error = JournalFile::open(&path).unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::Locked);
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    drop(first);
    JournalFile::open(&path).unwrap();
}

#[test]
fn a_file_of_another_kind_is_refused_and_kept() {
    let (_directory, path) = directory();
    fs::write(segment(&path, 1), "a text").unwrap();
    assert_eq!(JournalFile::open(&path).unwrap_err().kind(), JournalErrorKind::Unsupported);
    assert_eq!(fs::read(segment(&path, 1)).unwrap(), b"a text");
}

#[test]
fn a_full_journal_refuses_entries_until_some_are_acknowledged() {
    let (_directory, path) = directory();
    let journal = JournalFile::open_with_max_bytes(&path, 16_384).unwrap();
    let mut written = Vec::new();
    let refusal = loop {
        let next = entry(written.len() as u64);
        match journal.append(std::slice::from_ref(&next)) {
            Ok(()) => written.push(next),
            Err(error) => break error,
        }
    };
    assert_eq!(refusal.kind(), StoreErrorKind::Refused);
    assert!(!refusal.is_possibly_applied());
    assert_eq!(journal.waiting(), written.len() as u64);
    assert!(segments(&path) > 8);
    journal.acknowledge(&ids(&written[..written.len() / 2]));
    journal.append(&[entry(1_000)]).unwrap();
    written.drain(..written.len() / 2);
    written.push(entry(1_000));
    drop(journal);
    let mut replayed = JournalFile::open(&path).unwrap().replay(1_000).unwrap();
    replayed.sort_by_key(|entry| entry.id);
    assert_eq!(replayed, written);
}

#[test]
fn a_few_entries_that_wait_for_long_do_not_fill_the_journal() {
    let (_directory, path) = directory();
    let journal = JournalFile::open_with_max_bytes(&path, 262_144).unwrap();
    let kept: Vec<OutboxEntry> = (0..100).map(|round| entry(1_000 * round)).collect();
    for (round, kept) in kept.iter().enumerate() {
        journal.append(std::slice::from_ref(kept)).unwrap();
        let others = entries(1_000 * round as u64 + 1..1_000 * round as u64 + 50);
        journal.append(&others).unwrap();
        journal.acknowledge(&ids(&others));
    }
    assert_eq!(journal.read(&ids(&kept)).unwrap(), kept);
    assert!(journal.bytes() < 131_072);
    drop(journal);
    let mut replayed = JournalFile::open(&path).unwrap().replay(1_000).unwrap();
    replayed.sort_by_key(|entry| entry.id);
    assert_eq!(replayed, kept);
}

#[test]
fn an_idle_journal_takes_little_space() {
    let (_directory, path) = directory();
    let journal = JournalFile::open_with_max_bytes(&path, 1 << 20).unwrap();
    for round in 0..10 {
        let written = entries(1_000 * round..1_000 * round + 1_000);
        journal.append(&written).unwrap();
        journal.acknowledge(&ids(&written));
    }
    assert_eq!((journal.bytes(), segments(&path)), (8, 1));
    journal.append(&entries(0..1)).unwrap();
    drop(journal);
    assert_eq!(JournalFile::open(&path).unwrap().replay(10).unwrap(), entries(0..1));
}

/// The names of the files in the directory of a journal.
fn files(path: &Path) -> Vec<String> {
    let files = fs::read_dir(path.parent().unwrap()).unwrap();
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_new_journal_without_entries_leaves_no_file_behind() {
    let (_directory, path) = directory();
    let journal = JournalFile::open(&path).unwrap();
    journal.verify_secret(&Secret::new("a")).unwrap();
    assert_eq!(files(&path), ["journal", "journal.00000001"]);
    drop(journal);
    assert!(files(&path).is_empty());

    let journal = JournalFile::open(&path).unwrap();
    journal.append(&entries(0..1)).unwrap();
    journal.acknowledge(&ids(&entries(0..1)));
    drop(journal);
    assert_eq!(files(&path), ["journal", "journal.00000001"], "it was used");
    drop(JournalFile::open(&path).unwrap());
    assert_eq!(files(&path), ["journal", "journal.00000001"], "it was there before");
}

#[test]
fn a_journal_that_cannot_be_opened_leaves_no_file_behind_and_changes_none() {
    let (_directory, path) = directory();
    fs::write(segment(&path, 1), "text").unwrap();
    assert_eq!(JournalFile::open(&path).unwrap_err().kind(), JournalErrorKind::Unsupported);
    assert_eq!(files(&path), ["journal.00000001"]);
    fs::remove_file(segment(&path, 1)).unwrap();

    // A mistyped path: the file is somebody's.
    for content in ["version: 1\n", "secret 0123456789abcdef\nand more", "secret of mine, not a number\n", "\0\u{1}"] {
        fs::write(&path, content).unwrap();
        assert_eq!(JournalFile::open(&path).unwrap_err().kind(), JournalErrorKind::Unsupported, "{content}");
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), files(&path).len()), (content, 1));
    }
}

#[test]
fn entries_that_wait_are_not_read_under_another_secret() {
    let (_directory, path) = directory();
    let open = |secret: &str| {
        let journal = JournalFile::open(&path).unwrap();
        journal.verify_secret(&Secret::new(secret)).map(|()| journal)
    };
    open("a").unwrap().append(&entries(0..2)).unwrap();
    let before = fs::read(segment(&path, 1)).unwrap();
    let error = open("b").unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::OtherSecret);
    assert!(error.to_string().contains("move the journal away"), "{error}");
    assert_eq!(fs::read(segment(&path, 1)).unwrap(), before);

    let journal = open("a").unwrap();
    assert_eq!(journal.replay(9).unwrap(), entries(0..2));
    journal.acknowledge(&ids(&entries(0..2)));
    drop(journal);
    open("b").unwrap().append(&entries(2..3)).unwrap();
    assert_eq!(open("a").unwrap_err().kind(), JournalErrorKind::OtherSecret);
}

/// Of a write that the end of the machine interrupted; entries are written after it.
#[test]
fn a_fingerprint_that_was_not_written_to_its_end_is_written_again() {
    let (_directory, path) = directory();
    for torn in ["", "sec", "secret 0123", "\0\0\0", &"\0".repeat(24)] {
        fs::write(&path, torn).unwrap();
        let journal = JournalFile::open(&path).unwrap();
        journal.verify_secret(&Secret::new("a")).unwrap();
        journal.append(&entries(0..1)).unwrap();
        drop(journal);
        let journal = JournalFile::open(&path).unwrap();
        assert_eq!(
            journal.verify_secret(&Secret::new("b")).unwrap_err().kind(),
            JournalErrorKind::OtherSecret,
            "{torn:?}"
        );
        journal.acknowledge(&ids(&entries(0..1)));
    }
}
