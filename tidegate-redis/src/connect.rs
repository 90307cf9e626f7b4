//! Connecting a store: parses the URL and the options, then checks the servers. Decisions do not pass through here.

use std::sync::Arc;
use std::time::Duration;

use tidegate::rules::AnonymousBounds;
use tidegate::spi::{Adjustment, Check, Gate, Namespace, Plan, Store, Subject};
use tidegate::{Limit, Rule, StoreError, StoreErrorKind, SystemClock};

use crate::cross_slot::RecentDenials;
use crate::denial_cache::DenialCache;
use crate::error::startup_error;
use crate::heartbeat::Heartbeat;
use crate::namespace_check::check_namespace;
use crate::options::RedisOptions;
use crate::router::Router;
use crate::scripts::SCRIPTS;
use crate::server_info::ServerInfo;
use crate::store::RedisStore;
use crate::store_url::RedisUrl;
use crate::timeouts::Timeouts;

/// Connecting
impl RedisStore {
    /// Connects to `url` with the default options.
    ///
    /// ```text
    /// redis://[user:password@]host[:port][/database]                        one server
    /// redis+sentinel://[user:password@]host:port,host:port/NAME[/database]  the primary that the sentinels name
    /// redis+cluster://[user:password@]host:port,host:port                   a cluster
    /// ```
    ///
    /// Each also as `rediss…`, over TLS. Certificates are verified, with the system's CAs or those in the file `?ca=/path`.
    /// `?sentinel_user=…&sentinel_password=…` are credentials for the sentinels themselves.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, RedisOptions::new()).await
    }

    /// [Opens](Self::open) the store and [checks its servers](Self::check_servers). An error if they cannot serve now.
    pub async fn connect_with(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        let mut store = Self::open(url, options)?;
        store.warnings = store.check_servers().await?.into();
        Ok(store)
    }

    /// Opens a store without waiting for its servers: decisions fail until they are up. An error if the URL or the options
    /// are invalid.
    ///
    /// Within a tokio runtime it starts at once to count as an [instance](Self::instances), otherwise when its servers are
    /// checked.
    pub fn open(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        options.validate()?;
        let router = Router::new(RedisUrl::parse(url)?, &options)?;
        let denials = Arc::new(RecentDenials::new(router.is_cluster()));
        let denial_cache = Arc::new(DenialCache::new(options.clock.clone()));
        let heartbeat = Heartbeat::default();
        heartbeat.start(&router, &options);
        let (cardinality, warnings) = (Arc::default(), Arc::default());
        let (background_releases, adjusting) = (Arc::default(), Arc::default());
        Ok(Self {
            router,
            denials,
            denial_cache,
            cardinality,
            options,
            warnings,
            heartbeat,
            period_clock: Arc::default(),
            background_releases,
            ledger: Arc::default(),
            adjusting,
        })
    }

    /// Checks every primary: version, role and permissions. Loads the scripts. Returns warnings about settings that an
    /// operator should change.
    ///
    /// Fails if the namespace begins with that of another deployment that has live instances on this store, and has none itself.
    pub async fn check_servers(&self) -> Result<Vec<String>, StoreError> {
        self.prepare().await.map_err(|error| startup_error(&error, &self.options.namespace))
    }

    /// The namespace.
    pub const fn namespace(&self) -> &Namespace {
        &self.options.namespace
    }

    /// The warnings of [`check_servers`](Self::check_servers) from when the store was [connected](Self::connect).
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let mut warnings = self.prepare_servers().await?;
        warnings.extend(check_namespace(&self.router, &self.options).await?);
        self.heartbeat.start(&self.router, &self.options);
        self.check_permissions().await?;
        Ok(warnings)
    }

    /// Queries every primary and loads the scripts.
    async fn prepare_servers(&self) -> Result<Vec<String>, StoreError> {
        // An injected clock cannot be compared with the server's.
        let host_clock = self.options.clock.is_none().then(SystemClock::new);
        let timeouts = Timeouts::for_startup(&self.options);
        let mut warnings = Vec::new();
        for (address, node) in self.router.primaries(timeouts).await? {
            let server = ServerInfo::query(&node, self.router.is_cluster(), host_clock.as_ref(), timeouts).await?;
            for script in SCRIPTS.all() {
                node.load_script(script, timeouts).await.map_err(|error| StoreError::from(&error))?;
            }
            warnings.extend(server.warnings().into_iter().map(|warning| match &address {
                Some(address) => format!("{address}: {warning}"),
                None => warning,
            }));
        }
        Ok(warnings)
    }

    /// Runs every command that a user must be allowed, under a key of its own, once on every primary. Other errors are
    /// ignored: the first decision reports them.
    async fn check_permissions(&self) -> Result<(), StoreError> {
        let limit = Limit::fixed_window(1, Duration::from_secs(1));
        let limit =
            limit.map_err(|_| StoreError::new(StoreErrorKind::Unexpected, "no limit to check permissions with"))?;
        let bounds = AnonymousBounds::default().with_forget_after(Duration::from_secs(1));
        let gate = Gate::new(Rule::new("start probe", limit).with_per(["partition"]).with_anonymous(bounds), "", limit);
        // These calls may take longer than decisions.
        let options = RedisOptions { timeout: Timeouts::for_startup(&self.options).budget, ..self.options.clone() };
        // Its keys are not those of a rule, so they are not counted.
        let store = Self { options, cardinality: Arc::default(), ..self.clone() };
        for partition in self.router.one_partition_per_primary() {
            let check = Check::new(&gate, Subject::from_hash(u128::from(partition) << 96), 1);
            let (Ok(plan), Ok(anonymous)) = (Plan::new([check]), Plan::new([check.with_anonymous(true)])) else {
                continue;
            };
            let charge = [Adjustment::charge(&check)];
            let results = [
                store.decide(&plan).await.map(drop),
                store.decide(&anonymous).await.map(drop),
                store.apply(&charge).await.outcomes().map(drop),
                store.forget(&[*check.key()]).await,
                // Without a key, a batch needs one more command.
                store.decide(&plan.clone().with_peek()).await.map(drop),
            ];
            let mut errors = results.into_iter().filter_map(Result::err);
            errors.find(|error| error.kind() == StoreErrorKind::Denied).map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}
