//! Reloading rules, Envoy's configuration and certificates, at SIGHUP and whenever their files change. A file with errors
//! changes nothing.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::engine::{Engine, Part};

/// The task that reloads, and its file watchers. Dropping it ends both.
pub(crate) struct Reloading {
    task: JoinHandle<()>,
    _watchers: Vec<RecommendedWatcher>,
}

/// What can be reloaded. One pending notification is enough for each: a reload reads the latest files.
#[derive(Default)]
struct Changes {
    rules: Notify,
    envoy: Notify,
    certificates: Notify,
}

/// Reloads everything at SIGHUP, and each part whenever its files change.
pub(crate) fn watch(engine: &Arc<Engine>) -> std::io::Result<Reloading> {
    // Here and not in the task: until the signal is registered, it would end the process.
    let mut hangup = signal(SignalKind::hangup())?;
    let changes = Arc::new(Changes::default());
    let watchers = watchers(engine, &changes);
    let engine = Arc::clone(engine);
    let task = tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = hangup.recv() => {
                    reload_rules(&engine);
                    reload_envoy(&engine);
                    reload_certificates(&engine);
                }
                () = changes.rules.notified() => if engine.is_changed() { reload_rules(&engine) },
                () = changes.envoy.notified() => reload_envoy(&engine),
                () = changes.certificates.notified() => if engine.is_tls_changed() { reload_certificates(&engine) },
            }
        }
    });
    Ok(Reloading { task, _watchers: watchers })
}

fn reload_rules(engine: &Engine) {
    let result = engine.reload();
    engine.metrics().reloaded(result.is_ok());
    let status = engine.rules_status();
    match result {
        Ok(()) => {
            tracing::info!(target: "tidegate::server", version = status.version, rules = status.rules, "rules reloaded");
        }
        Err(report) => {
            let version = status.version;
            tracing::error!(target: "tidegate::server", version, "rules not reloaded, the old version stays: {report}");
        }
    }
}

fn reload_envoy(engine: &Engine) {
    if engine.envoy().folder().is_none() {
        return;
    }
    let result = engine.envoy().reload();
    match &result {
        Ok(()) => tracing::info!(target: "tidegate::server", "Envoy configuration reloaded"),
        Err(problems) => {
            tracing::error!(target: "tidegate::server", "Envoy configuration not reloaded, the old one stays: {problems}");
        }
    }
    engine.set_part_error(Part::Envoy, result.err());
}

fn reload_certificates(engine: &Engine) {
    if engine.tls().is_none() {
        return;
    }
    let result = engine.reload_tls();
    match &result {
        Ok(()) => tracing::info!(target: "tidegate::server", "certificates reloaded"),
        Err(error) => {
            tracing::error!(target: "tidegate::server", "certificates not reloaded, the old ones stay: {error}");
        }
    }
    engine.set_part_error(Part::Certificates, result.err().map(|error| error.to_string()));
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

/// Watches the folder of a file, since editors and Kubernetes replace files instead of writing to them.
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
    // Kubernetes replaces the link `..data`, through which the name of the file leads.
    let is_relevant = move |event: &notify::Event| {
        let changes = event.kind.is_modify() || event.kind.is_create() || (name.is_none() && event.kind.is_remove());
        let mut files = event.paths.iter().filter_map(|path| path.file_name());
        changes && files.any(|file| name.as_ref().is_none_or(|name| file == name) || file == "..data")
    };
    let changes = Arc::clone(changes);
    let notify = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| is_relevant(&event)) {
            changed(&changes);
        }
    };
    let mut watcher = notify::recommended_watcher(notify).ok()?;
    watcher.watch(folder, RecursiveMode::NonRecursive).ok()?;
    Some(watcher)
}

/// A future that completes at SIGTERM or SIGINT; the signals are received from this call on.
pub fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        let _: Option<()> = tokio::select! {
            signal = terminate.recv() => signal,
            signal = interrupt.recv() => signal,
        };
    })
}

impl Drop for Reloading {
    fn drop(&mut self) {
        self.task.abort();
    }
}
