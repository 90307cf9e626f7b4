//! Reloading rules, Envoy's configuration, certificates and admin tokens: whenever their files have new and complete content, and at once at
//! SIGHUP. Files with errors change nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_rules::RuleChanges;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use super::config_part::ConfigPart;
use super::file_writers::FileWriters;
use super::watched_files::{Look, WatchedFiles, WatchedPaths};
use crate::admin::AdminAccess;
use crate::args::serve_args::ServeArgs;
use crate::engine::Engine;

/// The largest number of rules that a line of the log names.
const MAX_NAMED_RULES: usize = 50;

/// The files of all parts, with the content that they have before the server reads them.
pub(crate) struct ReloadableFiles {
    parts: Vec<(ConfigPart, WatchedFiles)>,
    writers: FileWriters,
    hangup: Signal,
}

/// The task that reloads. Dropping it ends the task.
pub(crate) struct Reloading(JoinHandle<()>);

/// What reloads.
struct Reloader {
    engine: Arc<Engine>,
    access: Option<Arc<AdminAccess>>,
}

/// The use of files that were read.
type Use<'r> = Box<dyn FnOnce() + Send + 'r>;

impl ReloadableFiles {
    /// The files that the flags name. Call it before the server reads them, so that no change is missed.
    pub(crate) fn new(arguments: &ServeArgs) -> std::io::Result<Self> {
        // Until the signal is registered, it would end the process.
        let hangup = signal(SignalKind::hangup())?;
        let client_ca = arguments.tls.tls_client_ca.as_ref().filter(|_| arguments.has_envoy());
        let tls = arguments.tls.tls_cert.iter().chain(&arguments.tls.tls_key).chain(client_ca).cloned();
        let rules = arguments.rules.iter().filter(|path| path.as_path() != Path::new("-")).cloned();
        let envoy = arguments.envoy.envoy_config.clone().filter(|_| arguments.has_envoy()).map(WatchedPaths::Folder);
        let tokens = arguments.admin_tokens.files().filter(|_| arguments.admin.is_some()).cloned();
        let files = [
            (ConfigPart::Rules, Some(WatchedPaths::Files(rules.collect()))),
            (ConfigPart::Envoy, envoy),
            (ConfigPart::Certificates, Some(WatchedPaths::Files(tls.collect()))),
            (ConfigPart::Tokens, Some(WatchedPaths::Files(tokens.collect()))),
        ];
        let parts = files.into_iter().filter_map(|(part, paths)| Some((part, paths?)));
        let parts: Vec<_> = parts.map(|(part, paths)| (part, WatchedFiles::new(paths))).collect();
        let mut writers = FileWriters::new();
        for (_, files) in &parts {
            files.watch(&mut writers);
        }
        Ok(Self { parts, writers, hangup })
    }

    /// Reloads each part from now on.
    pub(crate) fn watch(self, engine: &Arc<Engine>, access: Option<&Arc<AdminAccess>>) -> Reloading {
        let reloader = Reloader { engine: Arc::clone(engine), access: access.cloned() };
        Reloading(tokio::spawn(reloader.run(self)))
    }
}

impl Reloader {
    async fn run(self, mut files: ReloadableFiles) {
        loop {
            let mut wait = Duration::MAX;
            for (part, watched) in &mut files.parts {
                watched.watch(&mut files.writers);
                wait = wait.min(self.look(*part, watched, &files.writers));
            }
            tokio::select! {
                _ = files.hangup.recv() => self.reload_all(&mut files.parts),
                () = files.writers.changed() => {}
                () = self.engine.timer().sleep(wait) => {}
            }
        }
    }

    /// Looks at the files of a part, and does what is due. Returns when the next look is due.
    fn look(&self, part: ConfigPart, files: &mut WatchedFiles, writers: &FileWriters) -> Duration {
        match files.look(writers, self.engine.timer().now()) {
            Look::Wait(wait) => return wait,
            Look::Report(error) => self.refuse(part, &error),
            Look::StillOpen(path) => tracing::warn!(
                target: "tidegate::server",
                file = %path.display(),
                "this file stays open for writing, and is read when its writer closes it; SIGHUP reads it now"
            ),
            Look::Read => match self.read(part) {
                // The next look begins anew.
                _ if !files.is_unchanged() => {}
                Ok(new) => {
                    new();
                    files.accept();
                }
                Err(error) => files.keep_error(error),
            },
        }
        Duration::ZERO
    }

    fn reload_all(&self, parts: &mut [(ConfigPart, WatchedFiles)]) {
        for (part, files) in parts {
            files.refresh(self.engine.timer().now());
            match self.read(*part) {
                Ok(new) => new(),
                Err(error) => self.refuse(*part, &error),
            }
            files.accept();
        }
    }

    /// Reads the files of a part. Nothing changes before the result is called.
    fn read(&self, part: ConfigPart) -> Result<Use<'_>, String> {
        let engine = &*self.engine;
        Ok(match part {
            ConfigPart::Rules => {
                let file = engine.read_rules()?;
                Box::new(move || {
                    let changes = engine.use_rules(file);
                    engine.metrics().reloaded(true);
                    log_rules(engine, &changes);
                })
            }
            ConfigPart::Envoy => match engine.envoy().read()? {
                None => Box::new(|| {}),
                Some(config) => Box::new(move || {
                    engine.use_envoy(config);
                    self.log_reloaded(part);
                }),
            },
            ConfigPart::Certificates if !engine.has_tls() => Box::new(|| {}),
            ConfigPart::Certificates => {
                let certificates = engine.read_tls().map_err(|error| error.to_string())?;
                Box::new(move || {
                    engine.use_tls(certificates);
                    self.log_reloaded(part);
                })
            }
            ConfigPart::Tokens => {
                let Some(access) = &self.access else { return Ok(Box::new(|| {})) };
                match access.read_tokens()? {
                    None => Box::new(|| {}),
                    Some(tokens) => Box::new(move || {
                        access.replace_tokens(tokens);
                        self.log_reloaded(part);
                    }),
                }
            }
        })
    }

    fn log_reloaded(&self, part: ConfigPart) {
        self.engine.part_errors().set(part, None);
        tracing::info!(target: "tidegate::server", "{part} reloaded");
    }

    /// Keeps the old version of a part, and says why.
    fn refuse(&self, part: ConfigPart, error: &str) {
        self.engine.part_errors().set(part, Some(error.to_owned()));
        if part == ConfigPart::Rules {
            self.engine.metrics().reloaded(false);
            let version = self.engine.rules_status().version;
            tracing::error!(target: "tidegate::server", version, "rules not reloaded, the old version stays: {error}");
        } else {
            tracing::error!(target: "tidegate::server", "{part} not reloaded, the old version stays: {error}");
        }
    }
}

fn log_rules(engine: &Engine, changes: &RuleChanges) {
    let status = engine.rules_status();
    let list = |ids: &[String]| (!ids.is_empty()).then(|| names(ids));
    let (added, changed, removed) = (list(changes.added()), list(changes.changed()), list(changes.removed()));
    tracing::info!(
        target: "tidegate::server",
        version = status.version,
        rules = status.rules,
        added,
        changed,
        removed,
        settings = list(changes.settings()),
        "rules reloaded"
    );
    if let Some(removed) = removed {
        let version = status.version;
        tracing::warn!(target: "tidegate::server", version, removed, "rules that the file no longer has limit nothing now");
    }
}

/// A list of names, cut where it is too long for a line.
fn names(ids: &[String]) -> String {
    let list = ids.iter().take(MAX_NAMED_RULES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match ids.len().saturating_sub(MAX_NAMED_RULES) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
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
        self.0.abort();
    }
}
