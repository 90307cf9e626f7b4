//! Reading the rules anew, when told by a signal or by a change of the file. A file with errors changes nothing.

use std::path::Path;
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::engine::Engine;

/// What keeps watching; dropping it ends that.
pub(crate) struct Reloading {
    task: JoinHandle<()>,
    _watcher: Option<RecommendedWatcher>,
}

/// Reads the rules anew at SIGHUP and whenever their file changes.
pub(crate) fn watch(engine: &Arc<Engine>) -> Reloading {
    let (changed, mut changes) = mpsc::channel(1);
    let watcher = engine.path().and_then(|path| watcher(path, changed.clone()));
    let engine = Arc::clone(engine);
    let task = tokio::spawn(async move {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
        // The sender stays, so that the channel does not end where no file is watched.
        let _changed = changed;
        loop {
            tokio::select! {
                _ = hangup.recv() => {}
                _ = changes.recv() => {}
            }
            reload(&engine);
        }
    });
    Reloading { task, _watcher: watcher }
}

fn reload(engine: &Engine) {
    let done = engine.reload();
    engine.metrics().reloaded(done.is_ok());
    match done {
        Ok(()) => eprintln!("rules: version {} ({} rules)", engine.loaded().version, engine.loaded().rules),
        Err(report) => {
            eprintln!("{report}\n\nrules: the file was not taken; version {} stays", engine.loaded().version)
        }
    }
}

/// Watches the folder of the file, since editors and Kubernetes replace files instead of writing to them.
fn watcher(path: &Path, changed: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let notify = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| event.kind.is_modify() || event.kind.is_create()) {
            // One change that waits is enough: the file is read as it is then.
            let _ = changed.try_send(());
        }
    };
    let mut watcher = notify::recommended_watcher(notify).ok()?;
    watcher.watch(folder, RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// Ends when the process is told to.
pub(crate) async fn stopped() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

impl Drop for Reloading {
    fn drop(&mut self) {
        self.task.abort();
    }
}
