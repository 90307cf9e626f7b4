//! `Engine`: the rules on a store, with metrics and refusal log as observers, that all front ends of a server share.

pub(crate) mod client_resolver;
pub(crate) mod instrumented_store;
pub(crate) mod ledger;
mod rule_fingerprint;
mod rules_status;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use tidegate::spi::Namespace;
use tidegate::sync::RwLock;
use tidegate::{Limiter, MemoryStore, Secret, Timer};
use tidegate_rules::{FrontDoor, RuleChanges, RuleFile};
use tidegate_tower::Handle;
use tokio::sync::watch;

use self::client_resolver::ClientResolver;
use self::instrumented_store::InstrumentedStore;
use self::ledger::{LedgerMeans, LedgerSetup, ServerLedger, warn_of_unrecorded};
use self::rule_fingerprint::RuleFingerprint;
use self::rules_status::{RulesStatus, log_report};
use crate::args::serve_args::ServeArgs;
use crate::command::failure::Failure;
use crate::command::tokio_timer;
use crate::doors::check::acquire_calls::AcquireCalls;
use crate::doors::door_gaps::{check_gateway_rules, log_gaps};
use crate::doors::envoy::door::Envoy;
use crate::doors::envoy::{EnvoyConfig, EnvoyService};
use crate::lifecycle::config_part::{ConfigPart, ConfigPartErrors};
use crate::lifecycle::start_page;
use crate::listen::{Tls, TlsArgs, TlsError};
use crate::observe::log::refusal_log::RefusalLog;
use crate::observe::metrics::Metrics;
use crate::observe::observers::Observers;
use crate::store::{AnyStore, StoreProbe};
use crate::tokens::GrantTokens;

/// What all front ends share.
pub(crate) struct Engine {
    handle: Handle<InstrumentedStore>,
    /// Notified after the limiter is replaced.
    rule_changes: watch::Sender<()>,
    store: InstrumentedStore,
    metrics: Arc<Metrics>,
    refusals: Arc<RefusalLog>,
    clients: Arc<ClientResolver>,
    /// The front ends that are not off.
    doors: Vec<FrontDoor>,
    has_strict_checks: bool,
    path: Option<PathBuf>,
    envoy: Envoy,
    status: RwLock<RulesStatus>,
    fingerprint: RuleFingerprint,
    namespace: Namespace,
    store_name: &'static str,
    ledger: Option<ServerLedger>,
    has_secret: bool,
    tokens: GrantTokens,
    acquire_calls: AcquireCalls,
    /// For callers that wait, and for the age of leases.
    timer: Arc<dyn Timer>,
    part_errors: ConfigPartErrors,
    /// For the addresses that only the operator's own services call.
    tls: Option<Tls>,
    /// For the gateway, which asks for no client certificates.
    gateway_tls: Option<Tls>,
    _probe: StoreProbe,
}

impl Engine {
    /// Reads the files, connects to the store, and logs a warning for each harmful setting.
    pub(crate) async fn open(arguments: &ServeArgs) -> Result<Self, Failure> {
        let doors = arguments.front_doors()?;
        let url = arguments.store.url()?;
        if arguments.secret.secret()?.is_none() && url.is_shared() {
            let warning = "anyone who reads the store can guess subjects; set TIDEGATE_SECRET";
            tracing::warn!(target: "tidegate::store", "{warning}");
        }
        arguments.tls()?;
        let file = read(arguments.rules.as_ref())?;
        log_report(&file);
        check_gateway_rules(&file, &doors)?;
        log_gaps(&file, &doors);
        let setup = LedgerSetup::new(arguments, &url, &file).await?;
        if setup.is_some() {
            warn_of_unrecorded(&file);
        }
        let journal = setup.as_ref().and_then(LedgerSetup::journal);
        let (store, probe) = arguments.store.connect(&url, journal).await?;
        let ledger = match setup {
            Some(setup) => Some(ServerLedger::open(setup, store.clone()).await?),
            None => None,
        };
        Self::from_parts(arguments, file, store, probe, ledger, Arc::new(tokio_timer()))
    }

    /// The rules of `file` on `store` and `ledger`, with callers that wait on `timer`.
    pub(crate) fn from_parts(
        arguments: &ServeArgs,
        file: RuleFile,
        store: AnyStore,
        probe: StoreProbe,
        ledger: Option<ServerLedger>,
        timer: Arc<dyn Timer>,
    ) -> Result<Self, Failure> {
        let (secret, doors) = (arguments.secret.secret()?, arguments.front_doors()?);
        let is_shared = matches!(store, AnyStore::Redis(_));
        let refusals = Arc::new(RefusalLog::new(&file, secret.is_none() && is_shared));
        let has_secret = secret.is_some();
        // Instances on a shared store need the same secret. For one process alone, nobody may compute the hash of a subject.
        let secret = secret.unwrap_or_else(|| if is_shared { Secret::public() } else { Secret::random() });
        let envoy = Envoy::open(&arguments.envoy, arguments.has_envoy(), arguments.envoy_budget(), &secret)?;
        let metrics = Arc::new(Metrics::new(arguments.near_limit));
        metrics.follow(&file);
        let store = InstrumentedStore::new(store, Arc::clone(&metrics));
        let observers = Observers { metrics: Arc::clone(&metrics), refusals: Arc::clone(&refusals) };
        let limiter = Limiter::new(file.rules().clone(), store.clone()).with_instances(arguments.instances);
        let limiter = limiter.with_secret(&secret).with_observer(observers);
        let limiter = limiter.with_reservation_ttl(arguments.reservation_ttl);
        let limiter = if is_shared {
            limiter.with_fallback_store(MemoryStore::new().with_max_keys(arguments.store.memory_keys))
        } else {
            limiter
        };
        let limiter = match &ledger {
            Some(ledger) => limiter.with_ledger(ledger.stage(&metrics)),
            None => limiter,
        };
        let untrusted = metrics.untrusted_forwarded().clone();
        let acquire_calls = AcquireCalls::new(arguments.waiting, metrics.acquire().clone());
        let engine = Self {
            handle: Handle::new(limiter),
            rule_changes: watch::Sender::new(()),
            store,
            metrics,
            refusals,
            clients: Arc::new(ClientResolver::new(arguments.exempt_clients.clone(), &file, untrusted)),
            doors,
            has_strict_checks: arguments.strict_checks,
            path: arguments.rules.clone(),
            envoy,
            status: RwLock::new(RulesStatus::new(1, file)),
            fingerprint: RuleFingerprint::new(&secret),
            namespace: arguments.store.namespace().clone(),
            store_name: if is_shared { "redis" } else { "memory" },
            ledger,
            has_secret,
            tokens: GrantTokens::new(arguments.secret.token_key(), is_shared),
            acquire_calls,
            timer,
            part_errors: ConfigPartErrors::default(),
            tls: arguments.tls()?.as_ref().map(TlsArgs::load).transpose()?,
            gateway_tls: arguments.gateway_tls()?.as_ref().map(TlsArgs::load).transpose()?,
            _probe: probe,
        };
        engine.announce_rules();
        Ok(engine)
    }

    pub(crate) const fn handle(&self) -> &Handle<InstrumentedStore> {
        &self.handle
    }

    /// Envoy's rate limit service, by its own configuration or by the rule file.
    pub(crate) fn rate_limits(&self) -> EnvoyService<InstrumentedStore> {
        self.envoy.service(self.handle.clone())
    }

    pub(crate) const fn envoy(&self) -> &Envoy {
        &self.envoy
    }

    /// TLS of `--http` and `--grpc`, if they have it.
    pub(crate) const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// TLS of the gateway, if it has it.
    pub(crate) const fn gateway_tls(&self) -> Option<&Tls> {
        self.gateway_tls.as_ref()
    }

    /// Whether an address has TLS.
    pub(crate) const fn has_tls(&self) -> bool {
        self.tls.is_some() || self.gateway_tls.is_some()
    }

    /// Reads the certificates again.
    pub(crate) fn read_tls(&self) -> Result<Vec<Arc<ServerConfig>>, TlsError> {
        self.tls.iter().chain(&self.gateway_tls).map(Tls::read).collect()
    }

    /// Replaces the certificates by what [`Self::read_tls`] returned.
    pub(crate) fn use_tls(&self, certificates: Vec<Arc<ServerConfig>>) {
        self.tls.iter().chain(&self.gateway_tls).zip(certificates).for_each(|(tls, new)| tls.replace(new));
    }

    /// Why the last attempt to read each part failed.
    pub(crate) const fn part_errors(&self) -> &ConfigPartErrors {
        &self.part_errors
    }

    /// The store, for its status. Decisions go through the limiter.
    pub(crate) const fn store(&self) -> &InstrumentedStore {
        &self.store
    }

    /// The limiter with the rules in force.
    pub(crate) fn limiter(&self) -> Arc<Limiter<InstrumentedStore>> {
        self.handle.limiter()
    }

    /// Replaces the limiter, then notifies those who wait.
    pub(crate) fn replace_limiter(&self, limiter: Limiter<InstrumentedStore>) {
        self.handle.replace(limiter);
        self.rule_changes.send_replace(());
    }

    /// Notified of every replacement of the limiter after this call.
    pub(crate) fn rule_changes(&self) -> watch::Receiver<()> {
        self.rule_changes.subscribe()
    }

    pub(crate) const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(crate) const fn refusals(&self) -> &Arc<RefusalLog> {
        &self.refusals
    }

    /// Who the client of a connection or a request is.
    pub(crate) const fn clients(&self) -> &Arc<ClientResolver> {
        &self.clients
    }

    /// Whether hashes of subjects are the same in every process of this deployment.
    pub(crate) const fn has_secret(&self) -> bool {
        self.has_secret
    }

    /// Whether a check that no rule matches is an error, unless the call says otherwise.
    pub(crate) const fn has_strict_checks(&self) -> bool {
        self.has_strict_checks
    }

    /// What callers hold.
    pub(crate) const fn tokens(&self) -> &GrantTokens {
        &self.tokens
    }

    /// The callers that wait.
    pub(crate) const fn acquire_calls(&self) -> &AcquireCalls {
        &self.acquire_calls
    }

    pub(crate) fn timer(&self) -> &dyn Timer {
        &*self.timer
    }

    /// The rule file, if there is one.
    pub(crate) const fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// The ledger, if there is one.
    pub(crate) const fn ledger(&self) -> Option<&ServerLedger> {
        self.ledger.as_ref()
    }

    /// The fingerprint of the rules and limits in force.
    pub(crate) fn rules_fingerprint(&self) -> u64 {
        self.fingerprint.current()
    }

    /// Tells the other instances on a shared store which rules and limits are in force.
    fn announce_rules(&self) {
        let fingerprint = self.fingerprint.update(&self.rules_status().file, &self.envoy);
        if let Some(store) = self.store.inner().redis() {
            store.announce_rules(fingerprint);
        }
    }

    pub(crate) const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// `memory` or `redis`.
    pub(crate) const fn store_name(&self) -> &'static str {
        self.store_name
    }

    pub(crate) fn rules_name(&self) -> String {
        self.path.as_ref().map_or("an example".to_owned(), |path| path.display().to_string())
    }

    pub(crate) fn rules_status(&self) -> RulesStatus {
        self.status.read().clone()
    }

    /// The limiter and the rule file in force, of the same version.
    pub(crate) fn rules_in_force(&self) -> (Arc<Limiter<InstrumentedStore>>, Arc<RuleFile>) {
        // A reload replaces both while it holds the lock.
        let status = self.status.read();
        (self.limiter(), Arc::clone(&status.file))
    }

    /// Says what the server lacks for the rules of `file`.
    fn check_ledger(&self, file: &RuleFile) -> Result<(), String> {
        let means = LedgerMeans {
            url: self.ledger.as_ref().map(ServerLedger::url),
            is_store_shared: matches!(self.store.inner(), AnyStore::Redis(_)),
            has_secret: self.has_secret,
        };
        means.check(file)?;
        self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.check_journal(file))
    }

    /// Reads the rules again. A file that cannot be used is an error, and so is one that this server cannot serve.
    pub(crate) fn read_rules(&self) -> Result<RuleFile, String> {
        let read = match &self.path {
            Some(path) if path == Path::new("-") => {
                return Err("the rules came from standard input, which cannot be read again; start with --rules FILE"
                    .to_owned());
            }
            Some(path) => tidegate_rule_tools::load_and_lint(path),
            None => tidegate_rule_tools::parse_and_lint("example", start_page::EXAMPLE_RULES),
        };
        let file = read.map_err(|report| report.to_string())?;
        check_gateway_rules(&file, &self.doors).map_err(|report| report.to_string())?;
        self.check_ledger(&file).map(|()| file)
    }

    /// Replaces the configuration of Envoy's service.
    pub(crate) fn use_envoy(&self, config: EnvoyConfig) {
        self.envoy.replace(config);
        self.announce_rules();
    }

    /// Replaces the rules, and returns what has changed.
    pub(crate) fn use_rules(&self, file: RuleFile) -> RuleChanges {
        let mut status = self.status.write();
        let changes = file.changes_since(&status.file);
        log_report(&file);
        self.metrics.follow(&file);
        self.refusals.follow(&file);
        self.clients.follow(&file);
        log_gaps(&file, &self.doors);
        if self.ledger.is_some() {
            warn_of_unrecorded(&file);
        }
        self.replace_limiter(self.limiter().with_rules(file.rules().clone()));
        *status = RulesStatus::new(status.version + 1, file);
        drop(status);
        self.announce_rules();
        self.part_errors.set(ConfigPart::Rules, None);
        changes
    }
}

fn read(path: Option<&PathBuf>) -> Result<RuleFile, Failure> {
    let read = match path {
        Some(path) => crate::command::load_rule_file(path)?,
        None => tidegate_rule_tools::parse_and_lint("example", start_page::EXAMPLE_RULES),
    };
    Ok(read?)
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.store_name)
            .field("rules", &self.rules_status().version)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tidegate::Request;
    use tidegate::spi::Subject;

    use super::*;

    #[derive(Parser)]
    struct Serve {
        #[command(flatten)]
        arguments: ServeArgs,
    }

    /// The hash of a subject under the example rule.
    async fn subject(line: &str) -> Subject {
        let serve = Serve::try_parse_from(line.split_whitespace());
        let arguments = serve.unwrap_or_else(|error| panic!("{error}")).arguments;
        let engine = Engine::open(&arguments).await.unwrap_or_else(|_| panic!("{line}: the engine does not open"));
        let request = Request::new("").with_attribute("path", "/hello").with_attribute("ip", "203.0.113.9");
        engine.limiter().plan(&request).checks()[0].key().subject()
    }

    /// Otherwise a client could compute which subjects are in the same part of the memory, and fill it.
    #[tokio::test]
    async fn without_a_secret_nobody_can_compute_the_hash_of_a_subject_in_memory() {
        assert_ne!(subject("serve").await, subject("serve").await);
        assert_eq!(subject("serve --secret s1").await, subject("serve --secret s1").await);
    }

    /// Instances that share a store need the same hash.
    #[tokio::test]
    async fn without_a_secret_instances_of_a_shared_store_hash_alike() {
        let line = "serve --store redis://127.0.0.1:1";
        assert_eq!(subject(line).await, subject(line).await);
    }
}
