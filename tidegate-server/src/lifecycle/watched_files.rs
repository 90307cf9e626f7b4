//! `WatchedFiles`: notices when the files of one part have new content, and when that content is complete.
//!
//! A file is complete when its writer has closed it or it was renamed into place; where the system does not report that, once it has not
//! changed for [`QUIET_TIME`]. A prefix of a YAML list is a valid file, so that nothing can be concluded from the content.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ring::digest::{Context, Digest, SHA256};
use tidegate::Timestamp;
use tidegate_rules::yaml::MAX_FILE_BYTES;

use super::file_writers::{FileWriters, WriterState, is_yaml};

/// Interval at which files are looked at that seem unchanged: reports of the system may be missing, as on network file systems.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which a file must not change before it is read, unless the system reported that it is complete.
const QUIET_TIME: Duration = Duration::from_millis(250);

/// The same for a file that was reported as complete: the report that another writer has opened it may be on its way.
const CLOSED_QUIET_TIME: Duration = Duration::from_millis(20);

/// Time for which content with errors must stay before it is reported: programs write a file in several steps.
const ERROR_DELAY: Duration = Duration::from_secs(1);

/// Time after which a file that stays open for writing is reported.
const OPEN_WARNING_DELAY: Duration = Duration::from_secs(10);

/// The files of one part.
pub(crate) struct WatchedFiles {
    paths: WatchedPaths,
    /// The content at the last look.
    seen: Content,
    /// When a look found that content for the first time.
    changed_at: Timestamp,
    /// The content that was read last, whether it could be used or not.
    read: Digest,
    completions: u64,
    is_complete: bool,
    /// The error of `seen`, until it is reported.
    error: Option<String>,
    open_since: Option<Timestamp>,
    is_open_reported: bool,
}

/// Which files.
pub(crate) enum WatchedPaths {
    Files(Vec<PathBuf>),
    /// The YAML files of a folder.
    Folder(PathBuf),
}

/// What to do after a look at the files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing; the next look is due after this time.
    Wait(Duration),
    /// To read them, and to tell the result.
    Read,
    /// To report this error, which has stayed.
    Report(String),
    /// To report that this file stays open for writing.
    StillOpen(PathBuf),
}

/// The files and a digest of their content.
struct Content {
    stamps: Vec<(PathBuf, Option<Stamp>)>,
    digest: Digest,
}

/// What changes with the content of a file, in nearly all cases.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
}

impl WatchedFiles {
    /// Files with their current content, which counts as read: call it before the content is read for the first time.
    pub(crate) fn new(paths: WatchedPaths) -> Self {
        let seen = paths.content();
        Self {
            read: seen.digest,
            seen,
            paths,
            changed_at: Timestamp::from_micros(0),
            completions: 0,
            is_complete: false,
            error: None,
            open_since: None,
            is_open_reported: false,
        }
    }

    /// Watches the files. A link that leads elsewhere since the last call is followed.
    pub(crate) fn watch(&self, writers: &mut FileWriters) {
        self.paths.list().iter().for_each(|path| writers.watch(path));
        if let WatchedPaths::Folder(folder) = &self.paths {
            writers.watch_folder(folder);
        }
    }

    /// Looks at the files.
    pub(crate) fn look(&mut self, writers: &FileWriters, now: Timestamp) -> Look {
        let states = self.paths.list().into_iter().map(|path| {
            let state = writers.state(&path);
            (path, state)
        });
        self.look_at(&states.collect::<Vec<_>>(), now)
    }

    fn look_at(&mut self, states: &[(PathBuf, WriterState)], now: Timestamp) -> Look {
        let completions = states.iter().map(|(_, state)| state.completions).sum();
        self.is_complete |= completions != std::mem::replace(&mut self.completions, completions);
        if let Some((path, _)) = states.iter().find(|(_, state)| state.is_open) {
            return self.wait_for_writer(path, now);
        }
        (self.open_since, self.is_open_reported) = (None, false);
        if self.is_complete || self.is_pending() || self.seen.stamps != self.paths.stamps() {
            let content = self.paths.content();
            if content != self.seen {
                (self.changed_at, self.error) = (now, None);
            }
            self.seen = content;
        }
        if !self.is_pending() {
            self.is_complete = false;
            return Look::Wait(LOOK_INTERVAL);
        }
        let quiet_time = if self.is_complete { CLOSED_QUIET_TIME } else { QUIET_TIME };
        let (age, due) = (now.since(self.changed_at), if self.error.is_some() { ERROR_DELAY } else { quiet_time });
        if age < due {
            return Look::Wait(due.saturating_sub(age));
        }
        match self.error.take() {
            None => Look::Read,
            Some(error) => {
                self.accept();
                Look::Report(error)
            }
        }
    }

    /// Whether the content of the last look is to be read.
    fn is_pending(&self) -> bool {
        self.seen.digest.as_ref() != self.read.as_ref()
    }

    fn wait_for_writer(&mut self, path: &Path, now: Timestamp) -> Look {
        self.is_complete = false;
        let since = *self.open_since.get_or_insert(now);
        if !self.is_open_reported && now.since(since) >= OPEN_WARNING_DELAY {
            self.is_open_reported = true;
            return Look::StillOpen(path.to_owned());
        }
        Look::Wait(LOOK_INTERVAL)
    }

    /// Takes the current content as what is read next, whether it is complete or not.
    pub(crate) fn refresh(&mut self, now: Timestamp) {
        (self.seen, self.changed_at, self.error) = (self.paths.content(), now, None);
    }

    /// Whether the files have the content of the last look. What was read in between may be of two contents otherwise.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.paths.content() == self.seen
    }

    /// Marks the content of the last look as used, or as reported.
    pub(crate) const fn accept(&mut self) {
        self.read = self.seen.digest;
        self.is_complete = false;
    }

    /// Keeps the error of the content of the last look, to report it if the content stays.
    pub(crate) fn keep_error(&mut self, error: String) {
        self.error = Some(error);
    }
}

impl WatchedPaths {
    /// The paths of the files, in a fixed order.
    fn list(&self) -> Vec<PathBuf> {
        let folder = match self {
            Self::Files(files) => return files.clone(),
            Self::Folder(folder) => folder,
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(|path| is_yaml(path)).collect();
        files.sort_unstable();
        files
    }

    fn stamps(&self) -> Vec<(PathBuf, Option<Stamp>)> {
        let stamp = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some(Stamp { length: metadata.len(), modified: metadata.modified().ok() })
        };
        let with_stamp = |path| {
            let stamp = stamp(&path);
            (path, stamp)
        };
        self.list().into_iter().map(with_stamp).collect()
    }

    fn content(&self) -> Content {
        let stamps = self.stamps();
        let mut digest = Context::new(&SHA256);
        for (path, stamp) in &stamps {
            let is_short = stamp.is_some_and(|stamp| stamp.length <= MAX_FILE_BYTES);
            // One that is too long is refused by its reader.
            let content = if is_short { std::fs::read(path).ok() } else { None };
            let length = content.as_ref().map_or(u64::MAX, |content| content.len() as u64);
            // The lengths keep the end of one file from being the start of the next.
            digest.update(&(path.as_os_str().len() as u64).to_be_bytes());
            digest.update(path.as_os_str().as_encoded_bytes());
            digest.update(&length.to_be_bytes());
            digest.update(&content.unwrap_or_default());
        }
        Content { stamps, digest: digest.finish() }
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.stamps == other.stamps && self.digest.as_ref() == other.digest.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A file, and the time at which it is looked at.
    struct Fixture {
        _folder: TempDir,
        path: PathBuf,
        files: WatchedFiles,
        now: Timestamp,
        state: WriterState,
    }

    impl Fixture {
        fn new(text: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rules.yaml");
            fs::write(&path, text).unwrap();
            let files = WatchedFiles::new(WatchedPaths::Files(vec![path.clone()]));
            let now = Timestamp::from_micros(1_790_000_400_000_000);
            Self { _folder: folder, path, files, now, state: WriterState::default() }
        }

        fn write(&self, text: &str) {
            fs::write(&self.path, text).unwrap();
        }

        fn open(&mut self) {
            self.state.is_open = true;
        }

        fn close(&mut self) {
            self.state = WriterState { is_open: false, completions: self.state.completions + 1 };
        }

        /// Looks `later` than the last time.
        fn look(&mut self, later: Duration) -> Look {
            self.now = self.now.plus(later);
            self.files.look_at(&[(self.path.clone(), self.state)], self.now)
        }
    }

    #[test]
    fn an_unchanged_file_is_not_read_nor_one_that_was_only_touched() {
        let mut file = Fixture::new("a");
        assert_eq!(file.look(LOOK_INTERVAL), Look::Wait(LOOK_INTERVAL));
        file.write("a");
        file.close();
        assert_eq!(file.look(LOOK_INTERVAL), Look::Wait(LOOK_INTERVAL));
    }

    #[test]
    fn a_file_is_not_read_while_its_writer_has_it_open_however_long() {
        let mut file = Fixture::new("a");
        file.open();
        file.write("half");
        for _ in 0..9 {
            assert_eq!(file.look(LOOK_INTERVAL), Look::Wait(LOOK_INTERVAL));
        }
        file.write("half and half");
        file.close();
        assert_eq!(file.look(MILLISECOND), Look::Wait(CLOSED_QUIET_TIME));
        assert_eq!(file.look(CLOSED_QUIET_TIME), Look::Read);
        file.files.accept();
        assert_eq!(file.look(MILLISECOND), Look::Wait(LOOK_INTERVAL));
    }

    #[test]
    fn a_second_writer_that_comes_right_after_the_first_is_waited_for() {
        let mut file = Fixture::new("a");
        file.write("b");
        file.close();
        assert_eq!(file.look(MILLISECOND), Look::Wait(CLOSED_QUIET_TIME));
        file.write("");
        file.open();
        assert_eq!(file.look(CLOSED_QUIET_TIME), Look::Wait(LOOK_INTERVAL));
        file.write("c");
        file.close();
        assert_eq!(file.look(MILLISECOND), Look::Wait(CLOSED_QUIET_TIME));
        assert_eq!(file.look(CLOSED_QUIET_TIME), Look::Read);
    }

    /// Of a network file system there are no reports.
    #[test]
    fn without_reports_a_file_is_read_once_it_has_been_quiet() {
        let mut file = Fixture::new("a");
        for text in ["b", "bc", "bcd"] {
            file.write(text);
            assert_eq!(file.look(QUIET_TIME.saturating_sub(MILLISECOND)), Look::Wait(QUIET_TIME), "{text}");
        }
        assert_eq!(file.look(QUIET_TIME.saturating_sub(MILLISECOND)), Look::Wait(MILLISECOND));
        assert_eq!(file.look(MILLISECOND), Look::Read);
    }

    #[test]
    fn content_that_changes_while_it_is_read_is_not_used() {
        let mut file = Fixture::new("a");
        file.write("b");
        file.close();
        file.look(MILLISECOND);
        assert_eq!(file.look(CLOSED_QUIET_TIME), Look::Read);
        assert!(file.files.is_unchanged());
        file.write("half");
        assert!(!file.files.is_unchanged());
    }

    #[test]
    fn an_error_is_reported_once_if_its_content_stays_for_a_second() {
        let mut file = Fixture::new("a");
        file.write("");
        file.close();
        file.look(MILLISECOND);
        assert_eq!(file.look(CLOSED_QUIET_TIME), Look::Read);
        file.files.keep_error("empty".to_owned());
        assert_eq!(file.look(MILLISECOND), Look::Wait(ERROR_DELAY.saturating_sub(CLOSED_QUIET_TIME + MILLISECOND)));
        assert_eq!(file.look(ERROR_DELAY), Look::Report("empty".to_owned()));
        assert_eq!(file.look(MILLISECOND), Look::Wait(LOOK_INTERVAL));
    }

    #[test]
    fn an_error_is_not_reported_if_its_content_goes_within_a_second() {
        let mut file = Fixture::new("a");
        file.write("");
        file.close();
        file.look(MILLISECOND);
        assert_eq!(file.look(CLOSED_QUIET_TIME), Look::Read);
        file.files.keep_error("empty".to_owned());
        file.write("b");
        file.close();
        assert_eq!(file.look(ERROR_DELAY), Look::Wait(CLOSED_QUIET_TIME));
        assert_eq!(file.look(CLOSED_QUIET_TIME), Look::Read);
    }

    #[test]
    fn a_file_that_stays_open_is_reported_once() {
        let mut file = Fixture::new("a");
        file.open();
        file.write("b");
        assert_eq!(file.look(MILLISECOND), Look::Wait(LOOK_INTERVAL));
        assert_eq!(file.look(OPEN_WARNING_DELAY), Look::StillOpen(file.path.clone()));
        assert_eq!(file.look(OPEN_WARNING_DELAY), Look::Wait(LOOK_INTERVAL));
    }

    #[test]
    fn a_folder_has_its_yaml_files_and_their_removal_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.yml", ".c.yaml", "d.txt"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let paths = WatchedPaths::Folder(folder.path().to_owned());
        let names: Vec<_> = paths.list().iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["a.yaml", "b.yml"]);
        let before = paths.content();
        fs::remove_file(folder.path().join("b.yml")).unwrap();
        assert!(paths.content() != before);
    }
}
