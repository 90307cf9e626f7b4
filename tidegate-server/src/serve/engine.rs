//! `Engine`: rules on a store, watched by the metrics: what every door of a server shares.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tidegate::{Limiter, Secret};
use tidegate_rules::{Report, RuleFile};
use tidegate_tower::Handle;

use super::envoy::Envoy;
use super::example;
use super::metrics::Metrics;
use super::opening::{self, Told};
use super::options::ServeArgs;
use super::receipts::Receipts;
use super::watched::Watched;
use crate::envoy::EnvoyService;
use crate::failure::Failure;
use crate::listen::{Tls, TlsError, TlsFiles};
use crate::output::Output;
use crate::store::StoreUrl;

/// What every door shares.
pub(crate) struct Engine {
    handle: Handle<Watched>,
    metrics: Arc<Metrics>,
    path: Option<PathBuf>,
    /// The rule file as it was read last, whether it could be used or not.
    seen: Mutex<Option<Vec<u8>>>,
    envoy: Envoy,
    rules: RwLock<Loaded>,
    store: &'static str,
    receipts: Receipts,
    /// Why files beside the rules were not taken, the last time that they were read.
    refused: Mutex<[Option<String>; 2]>,
    /// Of the addresses that only our own services call.
    tls: Option<Tls>,
    /// Of the gateway, which does not ask clients who they are.
    gateway_tls: Option<Tls>,
}

/// What is read from files beside the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Envoy,
    Certificates,
}

/// The rules that decide now, and what became of the last attempt to change them.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// How many times rules were read; the first are version 1.
    pub(crate) version: u64,
    /// How many rules there are.
    pub(crate) rules: usize,
    /// Why the last file did not replace these.
    pub(crate) refused: Option<String>,
}

impl Engine {
    pub(crate) async fn open(arguments: &ServeArgs, output: &mut Output<'_>) -> Result<(Self, Told), Failure> {
        let url = StoreUrl::parse(&arguments.store).map_err(|why| Failure::usage(format!("--store: {why}")))?;
        let secret = arguments.secret.secret()?;
        if secret.is_none() && url.is_shared() {
            output.warn("anyone who reads the store can guess subjects; set TIDEGATE_SECRET");
        }
        let files = arguments.tls()?;
        let file = read(arguments.rules.as_ref())?;
        output.report(file.report());
        let (store, told) = opening::open(&url, arguments, output).await?;
        let receipts =
            Receipts::new(secret.as_ref(), url.is_shared()).map_err(|error| Failure::usage(error.to_string()))?;
        let secret = secret.unwrap_or_else(Secret::public);
        let envoy = Envoy::open(&arguments.envoy, &secret, output)?;
        let metrics = Arc::new(Metrics::new(arguments.near_limit, store.clone()));
        metrics.follow(&file);
        let store = Watched::new(store, Arc::clone(&metrics));
        let limiter = Limiter::new(file.rules().clone(), store).with_instances(arguments.instances);
        let limiter = limiter.with_secret(&secret).with_observer(Arc::clone(&metrics));
        let engine = Self {
            handle: Handle::new(limiter),
            metrics,
            path: arguments.rules.clone(),
            seen: Mutex::new(arguments.rules.as_ref().and_then(|path| std::fs::read(path).ok())),
            envoy,
            rules: RwLock::new(Loaded { version: 1, rules: file.ids().count(), refused: None }),
            store: if url.is_shared() { "redis" } else { "memory" },
            receipts,
            refused: Mutex::default(),
            tls: tls(files.clone())?,
            gateway_tls: tls(files.map(|files| TlsFiles { client_ca: None, ..files }))?,
        };
        Ok((engine, told))
    }

    pub(crate) const fn handle(&self) -> &Handle<Watched> {
        &self.handle
    }

    /// Envoy's rate limit service, by its own configuration or by the rule file.
    pub(crate) fn rate_limits(&self) -> EnvoyService<Watched> {
        self.envoy.service(self.handle.clone())
    }

    pub(crate) const fn envoy(&self) -> &Envoy {
        &self.envoy
    }

    /// What callers of our own addresses see, if they speak TLS.
    pub(crate) const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// What clients of the gateway see.
    pub(crate) const fn gateway_tls(&self) -> Option<&Tls> {
        self.gateway_tls.as_ref()
    }

    /// Whether the files of the certificates have changed since they were read.
    pub(crate) fn is_tls_changed(&self) -> bool {
        self.tls.as_ref().is_some_and(Tls::is_changed)
    }

    /// Reads the certificates anew; files that cannot be used change nothing.
    pub(crate) fn reload_tls(&self) -> Result<(), TlsError> {
        self.tls.iter().chain(&self.gateway_tls).try_for_each(Tls::reload)
    }

    /// Keeps why a part was not taken; nothing if it was.
    pub(crate) fn note(&self, part: Part, refused: Option<String>) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)[part as usize] = refused;
    }

    /// Why a part was not taken, the last time that it was read.
    pub(crate) fn refused(&self, part: Part) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)[part as usize].clone()
    }

    /// Whether the store answered the last time that it was asked.
    pub(crate) fn is_store_up(&self) -> bool {
        self.limiter().store().is_up()
    }

    /// The limiter that decides now.
    pub(crate) fn limiter(&self) -> Arc<Limiter<Watched>> {
        self.handle.limiter()
    }

    pub(crate) const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(crate) const fn receipts(&self) -> &Receipts {
        &self.receipts
    }

    /// The rule file, if there is one.
    pub(crate) const fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// `memory` or `redis`.
    pub(crate) const fn store_name(&self) -> &'static str {
        self.store
    }

    pub(crate) fn rules_name(&self) -> String {
        self.path.as_ref().map_or("an example".to_owned(), |path| path.display().to_string())
    }

    pub(crate) fn loaded(&self) -> Loaded {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the rule file has changed since it was read. Replacing it once is often told more than once.
    pub(crate) fn is_changed(&self) -> bool {
        let now = self.path.as_ref().and_then(|path| std::fs::read(path).ok());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *seen, now);
        before != *seen
    }

    /// Reads the rules anew. A file that cannot be used changes nothing; why is told, and stays to be asked for.
    pub(crate) fn reload(&self) -> Result<(), Box<Report>> {
        let read = match &self.path {
            Some(path) => RuleFile::load(path),
            None => RuleFile::parse("example", example::RULES),
        };
        let mut loaded = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(file) => {
                self.metrics.follow(&file);
                self.handle.replace(self.limiter().with_rules(file.rules().clone()));
                *loaded = Loaded { version: loaded.version + 1, rules: file.ids().count(), refused: None };
                Ok(())
            }
            Err(report) => {
                loaded.refused = Some(report.to_string());
                Err(Box::new(report))
            }
        }
    }
}

fn read(path: Option<&PathBuf>) -> Result<RuleFile, Failure> {
    let read = match path {
        Some(path) => crate::rule_file::load_rule_file(path)?,
        None => RuleFile::parse("example", example::RULES),
    };
    Ok(read?)
}

fn tls(files: Option<TlsFiles>) -> Result<Option<Tls>, Failure> {
    files.map(Tls::load).transpose().map_err(|error| Failure::usage(error.to_string()))
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("store", &self.store).field("rules", &self.loaded()).finish_non_exhaustive()
    }
}
