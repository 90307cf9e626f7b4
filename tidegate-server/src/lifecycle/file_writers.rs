//! `FileWriters`: which watched files are open for writing, as the system reports it. It reads no file.
//!
//! Folders are watched and not files, since editors and Kubernetes replace files instead of writing to them.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher, WatcherKind};
use tidegate::sync::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// The link that Kubernetes replaces when a `ConfigMap` or `Secret` changes: the names of its files lead through it.
const KUBERNETES_LINK: &str = "..data";

/// The writers of watched files.
pub(crate) struct FileWriters {
    /// `None` if the system reports nothing.
    watcher: Option<RecommendedWatcher>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    reports: Mutex<Reports>,
    changed: Notify,
}

#[derive(Default)]
struct Reports {
    /// The watched folders, and whether all of their YAML files are watched.
    folders: HashMap<PathBuf, bool>,
    /// By path. The folder of each path is resolved; the file may be a link.
    files: HashMap<PathBuf, WriterState>,
}

/// What was reported about one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriterState {
    /// Whether it was written to and its writer has not closed it.
    pub(crate) is_open: bool,
    /// How often it was complete: its writer closed it, or it was renamed into place or away.
    pub(crate) completions: u64,
}

impl FileWriters {
    /// Writers of no files. Without reports of the system, all files count as closed, and a warning says so.
    pub(crate) fn new() -> Self {
        let shared = Arc::new(Shared::default());
        let receiver = Arc::clone(&shared);
        let watcher = match notify::recommended_watcher(move |event: notify::Result<Event>| receiver.receive(event)) {
            // Other systems report changes, but not that a writer has closed its file.
            Ok(watcher) => (RecommendedWatcher::kind() == WatcherKind::Inotify).then_some(watcher),
            Err(error) => {
                tracing::warn!(
                    target: "tidegate::server",
                    "the system does not report changes of files ({error}): files are read once they are quiet"
                );
                None
            }
        };
        Self { watcher, shared }
    }

    /// Watches the folder of a file, and the one in which it is if the path is a link. Calls for watched folders do nothing.
    pub(crate) fn watch(&mut self, file: &Path) {
        let (Some(folder), Some(name)) = (folder(file), file.file_name()) else { return };
        self.watch_file(&folder, name);
        self.watch_file(&folder, OsStr::new(KUBERNETES_LINK));
        let Ok(target) = file.canonicalize() else { return };
        if let (Some(folder), Some(name)) = (target.parent(), target.file_name()) {
            self.watch_file(folder, name);
        }
    }

    /// Watches all YAML files of a folder, also those that it will have.
    pub(crate) fn watch_folder(&mut self, folder: &Path) {
        let Ok(folder) = folder.canonicalize() else { return };
        self.watch_file(&folder, OsStr::new(KUBERNETES_LINK));
        if let Some(has_all) = self.shared.reports().folders.get_mut(&folder) {
            *has_all = true;
        }
    }

    fn watch_file(&mut self, folder: &Path, name: &OsStr) {
        let Some(watcher) = &mut self.watcher else { return };
        let is_new = {
            let mut reports = self.shared.reports();
            reports.files.entry(folder.join(name)).or_default();
            let is_new = !reports.folders.contains_key(folder);
            reports.folders.entry(folder.to_owned()).or_default();
            is_new
        };
        if is_new && watcher.watch(folder, RecursiveMode::NonRecursive).is_err() {
            // Without a watch the files of this folder count as closed. The next call tries again.
            self.shared.reports().folders.remove(folder);
        }
    }

    /// The reports about a file, and about what its path leads through.
    pub(crate) fn state(&self, file: &Path) -> WriterState {
        let reports = self.shared.reports();
        let Some(folder) = folder(file) else { return WriterState::default() };
        let names = [file.file_name(), Some(OsStr::new(KUBERNETES_LINK))].into_iter().flatten();
        let paths = names.map(|name| folder.join(name)).chain(file.canonicalize().ok());
        // A path that is no link is its own target.
        let paths: HashSet<PathBuf> = paths.collect();
        let states = paths.iter().filter_map(|path| reports.files.get(path));
        states.fold(WriterState::default(), |sum, state| WriterState {
            is_open: sum.is_open || state.is_open,
            completions: sum.completions + state.completions,
        })
    }

    /// Completes after a report about a watched file.
    pub(crate) async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}

impl Shared {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock()
    }

    fn receive(&self, event: notify::Result<Event>) {
        let Ok(event) = event else { return };
        let mut reports = self.reports();
        if event.need_rescan() {
            // Reports are lost, that of a close perhaps among them.
            reports.files.values_mut().for_each(|state| state.is_open = false);
            return self.changed.notify_one();
        }
        let is_open = match event.kind {
            EventKind::Modify(ModifyKind::Data(_)) => true,
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(_) => false,
            _ => return,
        };
        for path in &event.paths {
            if matches!(event.kind, EventKind::Remove(_)) {
                // A new folder of the same name needs a new watch.
                reports.folders.remove(path);
            }
            let Some(state) = reports.state_mut(path) else { continue };
            state.is_open = is_open;
            state.completions += u64::from(!is_open);
            self.changed.notify_one();
        }
    }
}

impl Reports {
    /// The state of a watched file.
    fn state_mut(&mut self, path: &Path) -> Option<&mut WriterState> {
        let in_folder = || path.parent().and_then(|folder| self.folders.get(folder)) == Some(&true);
        if !self.files.contains_key(path) && in_folder() && is_yaml(path) {
            self.files.insert(path.to_owned(), WriterState::default());
        }
        self.files.get_mut(path)
    }
}

/// Whether a file of a folder is read: hidden ones are not.
pub(crate) fn is_yaml(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// The folder of a path, without links.
fn folder(file: &Path) -> Option<PathBuf> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    /// Waits until the system has reported this.
    async fn wait_for(writers: &FileWriters, file: &Path, is_wanted: impl Fn(WriterState) -> bool) {
        while !is_wanted(writers.state(file)) {
            writers.changed().await;
        }
    }

    #[tokio::test]
    async fn a_file_is_open_from_its_first_byte_until_its_writer_closes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        let mut writers = FileWriters::new();
        writers.watch(&path);
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"version: 1").unwrap();
        wait_for(&writers, &path, |state| state.is_open).await;
        drop(file);
        wait_for(&writers, &path, |state| state == WriterState { is_open: false, completions: 1 }).await;
    }

    #[tokio::test]
    async fn a_rename_into_place_completes_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("rules.yaml"), folder.path().join("new"));
        let mut writers = FileWriters::new();
        writers.watch(&path);
        fs::write(&new, "version: 1").unwrap();
        fs::rename(&new, &path).unwrap();
        wait_for(&writers, &path, |state| !state.is_open && state.completions > 0).await;
    }

    /// The link is in another folder than the file that is written to.
    #[tokio::test]
    async fn the_writer_of_the_file_behind_a_link_is_reported() {
        let (links, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (link, path) = (links.path().join("rules.yaml"), files.path().join("live.yaml"));
        fs::write(&path, "a").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut writers = FileWriters::new();
        writers.watch(&link);
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"version: 1").unwrap();
        wait_for(&writers, &link, |state| state.is_open).await;
    }

    #[tokio::test]
    async fn new_yaml_files_of_a_watched_folder_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut writers = FileWriters::new();
        writers.watch_folder(folder.path());
        let path = folder.path().join("edge.yaml");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"domain: edge").unwrap();
        wait_for(&writers, &path, |state| state.is_open).await;
    }
}
