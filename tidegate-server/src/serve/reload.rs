//! Reading the rules anew, when told by a signal or by a change of the file. A file with errors changes nothing.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::engine::Engine;

/// What keeps watching, and tells what came of it; dropping it ends that.
pub(crate) struct Reloading {
    task: JoinHandle<()>,
    told: mpsc::Receiver<String>,
    _watchers: [Option<RecommendedWatcher>; 2],
}

/// Reads the rules anew at SIGHUP and whenever their file changes, or one of those for Envoy.
pub(crate) fn watch(engine: &Arc<Engine>) -> std::io::Result<Reloading> {
    // From here on, and not from the task's first turn on: until then the signal would end the process.
    let mut hangup = signal(SignalKind::hangup())?;
    let (changed, mut changes) = mpsc::channel(1);
    let (tell, told) = mpsc::channel(16);
    let rules = engine.path().and_then(|path| of_file(path, changed.clone()));
    let envoy = engine.envoy().folder().and_then(|folder| watcher(folder, changed.clone(), |_| true));
    let engine = Arc::clone(engine);
    let task = tokio::spawn(async move {
        // The sender stays, so that the channel does not end where no file is watched.
        let _changed = changed;
        loop {
            let _: Option<()> = tokio::select! {
                hangup = hangup.recv() => hangup,
                change = changes.recv() => change,
            };
            // Nobody listens any more once the server stops.
            let _ = tell.send(reload(&engine)).await;
        }
    });
    Ok(Reloading { task, told, _watchers: [rules, envoy] })
}

/// Reads the rules anew, and says what came of it.
fn reload(engine: &Engine) -> String {
    let done = engine.reload();
    engine.metrics().reloaded(done.is_ok());
    let version = engine.loaded().version;
    if let Err(problems) = engine.envoy().reload() {
        return format!("{problems}\n\nenvoy: the configuration was not taken, and the one before stays");
    }
    match done {
        Ok(()) => format!("rules: version {version}, {} rules", engine.loaded().rules),
        Err(report) => format!("{report}\n\nrules: the file was not taken, and version {version} stays"),
    }
}

impl Reloading {
    /// What came of the next time that the rules were read.
    pub(crate) async fn told(&mut self) -> String {
        match self.told.recv().await {
            Some(told) => told,
            None => std::future::pending().await,
        }
    }
}

/// Watches the folder of the file, since editors and Kubernetes replace files instead of writing to them.
fn of_file(path: &Path, changed: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name()?.to_owned();
    // Kubernetes changes a link of this name, and what the file's own name leads to with it.
    watcher(folder, changed, move |file| file == name || file == "..data")
}

/// Watches the files of a folder that are `ours`.
fn watcher(
    folder: &Path,
    changed: mpsc::Sender<()>,
    ours: impl Fn(&OsStr) -> bool + Send + 'static,
) -> Option<RecommendedWatcher> {
    let ours = move |event: &notify::Event| {
        let changes = event.kind.is_modify() || event.kind.is_create() || event.kind.is_remove();
        changes && event.paths.iter().filter_map(|path| path.file_name()).any(&ours)
    };
    let notify = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| ours(&event)) {
            // One change that waits is enough: the file is read as it is then.
            let _ = changed.try_send(());
        }
    };
    let mut watcher = notify::recommended_watcher(notify).ok()?;
    watcher.watch(folder, RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// A future that ends when the process is told to; it listens from this call on.
pub(crate) fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        let _: Option<()> = tokio::select! {
            told = terminate.recv() => told,
            told = interrupt.recv() => told,
        };
    })
}

impl Drop for Reloading {
    fn drop(&mut self) {
        self.task.abort();
    }
}
