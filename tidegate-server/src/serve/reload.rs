//! Reading rules, Envoy's configuration and certificates anew, when told by a signal or by a change of their files. What has
//! errors changes nothing.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::engine::{Engine, Part};

/// What keeps watching, and tells what came of it; dropping it ends that.
pub(crate) struct Reloading {
    task: JoinHandle<()>,
    told: mpsc::Receiver<String>,
    _watchers: Vec<RecommendedWatcher>,
}

/// What can be read anew. A change that waits is enough for each: everything is read as it is then.
#[derive(Default)]
struct Changes {
    rules: Notify,
    envoy: Notify,
    certificates: Notify,
}

/// Reads everything anew at SIGHUP, and each part whenever its files change.
pub(crate) fn watch(engine: &Arc<Engine>) -> std::io::Result<Reloading> {
    // From here on, and not from the task's first turn on: until then the signal would end the process.
    let mut hangup = signal(SignalKind::hangup())?;
    let changes = Arc::new(Changes::default());
    let watchers = watchers(engine, &changes);
    let (tell, told) = mpsc::channel(16);
    let engine = Arc::clone(engine);
    let task = tokio::spawn(async move {
        loop {
            let news: [Option<String>; 3] = tokio::select! {
                _ = hangup.recv() => [Some(rules(&engine)), envoy(&engine), certificates(&engine)],
                () = changes.rules.notified() => [engine.is_changed().then(|| rules(&engine)), None, None],
                () = changes.envoy.notified() => [envoy(&engine), None, None],
                () = changes.certificates.notified() => {
                    [engine.is_tls_changed().then(|| certificates(&engine)).flatten(), None, None]
                }
            };
            for news in news.into_iter().flatten() {
                // Nobody listens any more once the server stops.
                let _ = tell.send(news).await;
            }
        }
    });
    Ok(Reloading { task, told, _watchers: watchers })
}

/// Reads the rules anew, and says what came of it.
fn rules(engine: &Engine) -> String {
    let done = engine.reload();
    engine.metrics().reloaded(done.is_ok());
    let loaded = engine.loaded();
    match done {
        Ok(()) => format!(
            "rules: version {}, {} {}",
            loaded.version,
            loaded.rules,
            if loaded.rules == 1 { "rule" } else { "rules" }
        ),
        Err(report) => format!("{report}\n\nrules: the file was not taken, and version {} stays", loaded.version),
    }
}

fn envoy(engine: &Engine) -> Option<String> {
    engine.envoy().folder()?;
    let done = engine.envoy().reload();
    engine.note(Part::Envoy, done.as_ref().err().cloned());
    Some(match done {
        Ok(()) => "envoy: the configuration was read anew".to_owned(),
        Err(problems) => format!("{problems}\n\nenvoy: the configuration was not taken, and the one before stays"),
    })
}

fn certificates(engine: &Engine) -> Option<String> {
    engine.tls()?;
    let done = engine.reload_tls();
    engine.note(Part::Certificates, done.as_ref().err().map(ToString::to_string));
    Some(match done {
        Ok(()) => "tls: the certificates were read anew".to_owned(),
        Err(error) => format!("{error}\ntls: the files were not taken, and the certificates before stay"),
    })
}

impl Reloading {
    /// What came of the next time that something was read.
    pub(crate) async fn told(&mut self) -> String {
        match self.told.recv().await {
            Some(told) => told,
            None => std::future::pending().await,
        }
    }
}

fn watchers(engine: &Engine, changes: &Arc<Changes>) -> Vec<RecommendedWatcher> {
    let mut watchers = Vec::new();
    if let Some(file) = engine.path() {
        watchers.extend(watcher(file, changes, |changes| changes.rules.notify_one()));
    }
    if let Some(folder) = engine.envoy().folder() {
        watchers.extend(folder_watcher(folder, None, changes, |changes| changes.envoy.notify_one()));
    }
    if let Some(files) = engine.tls().map(crate::listen::Tls::files) {
        for file in [&files.certificate, &files.key].into_iter().chain(&files.client_ca) {
            watchers.extend(watcher(file, changes, |changes| changes.certificates.notify_one()));
        }
    }
    watchers
}

/// Watches the folder of the file, since editors and Kubernetes replace files instead of writing to them.
fn watcher(file: &Path, changes: &Arc<Changes>, changed: fn(&Changes)) -> Option<RecommendedWatcher> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder_watcher(folder, Some(file.file_name()?.to_owned()), changes, changed)
}

/// Watches a folder for changes of one file, or of any.
fn folder_watcher(
    folder: &Path,
    name: Option<OsString>,
    changes: &Arc<Changes>,
    changed: fn(&Changes),
) -> Option<RecommendedWatcher> {
    // Kubernetes changes a link of this name, and what the file's own name leads to with it.
    let ours = move |event: &notify::Event| {
        let changes = event.kind.is_modify() || event.kind.is_create() || (name.is_none() && event.kind.is_remove());
        let mut files = event.paths.iter().filter_map(|path| path.file_name());
        changes && files.any(|file| name.as_ref().is_none_or(|name| file == name) || file == "..data")
    };
    let changes = Arc::clone(changes);
    let notify = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| ours(&event)) {
            changed(&changes);
        }
    };
    let mut watcher = notify::recommended_watcher(notify).ok()?;
    watcher.watch(folder, RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// A future that ends when the process is told to; it listens from this call on.
pub fn stopped() -> std::io::Result<impl Future<Output = ()>> {
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
