//! How a store is opened: what the URL and the options say, then a look at the servers. No decision goes through here.

use std::sync::Arc;
use std::time::Duration;

use tidegate::spi::{Adjustment, Check, Gate, Plan, Store, Subject};
use tidegate::{AnonymousBounds, Limit, StoreError, StoreErrorKind, SystemClock};

use crate::across::Denials;
use crate::error::unapplied;
use crate::health;
use crate::heart::Heart;
use crate::link::Link;
use crate::options::RedisOptions;
use crate::patience::Patience;
use crate::scripts::SCRIPTS;
use crate::store::RedisStore;
use crate::target::Target;

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
    /// Each also as `rediss…`, over TLS: certificates are checked, against those that the system trusts or those in the file
    /// `?ca=/path`. Sentinels that want a password of their own get it by `?sentinel_user=…&sentinel_password=…`.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, RedisOptions::new()).await
    }

    /// [Opens](Self::open) the store and [examines](Self::examine) its servers: an error if they cannot serve now.
    pub async fn connect_with(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        let mut store = Self::open(url, options)?;
        store.warnings = store.examine().await?.into();
        Ok(store)
    }

    /// A store at `url`, whether or not anybody is there: it works as soon as its servers do, and every decision fails until
    /// then. An error means that the URL or the options cannot be right.
    ///
    /// Within a tokio runtime it begins at once to count as an [instance](Self::instances), otherwise when it is examined.
    pub fn open(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        options.check()?;
        let link = Link::new(Target::parse(url)?, &options)?;
        let denials = Arc::new(Denials::new(link.has_slots()));
        let heart = Heart::default();
        heart.start(&link, &options);
        Ok(Self { link, denials, flood: Arc::default(), options, warnings: Arc::default(), heart })
    }

    /// Looks at every server that decides, loads the scripts, and tries everything that a user needs to be allowed. Returns what
    /// an operator should change, in plain words.
    pub async fn examine(&self) -> Result<Vec<String>, StoreError> {
        // Nobody's request has been counted yet.
        let warnings = self.look().await.map_err(|error| unapplied(&error))?;
        self.heart.start(&self.link, &self.options);
        self.try_permissions().await.map_err(|error| unapplied(&error))?;
        Ok(warnings)
    }

    /// What was found when the store was [connected](Self::connect) that an operator should change, in plain words.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    async fn look(&self) -> Result<Vec<String>, StoreError> {
        // Under an injected time there is nothing to compare the server's with.
        let host = self.options.clock.is_none().then(SystemClock::new);
        let patience = Patience::starting(&self.options);
        let mut warnings = Vec::new();
        for (address, node) in self.link.primaries(patience).await? {
            let found = health::Found::ask(&node, self.link.has_slots(), host.as_ref(), patience).await?;
            for script in SCRIPTS.all() {
                node.load(script, patience).await.map_err(|error| StoreError::from(&error))?;
            }
            let told = found.warnings().into_iter();
            warnings
                .extend(told.map(|told| address.as_ref().map_or(told.clone(), |address| format!("{address}: {told}"))));
        }
        Ok(warnings)
    }

    /// Tries everything that a user needs to be allowed, under a key of its own, once on every server. What else may fail at
    /// the moment is not told here: it is by the first decision.
    async fn try_permissions(&self) -> Result<(), StoreError> {
        let limit = Limit::fixed_window(1, Duration::from_secs(1));
        let limit =
            limit.map_err(|_| StoreError::new(StoreErrorKind::Unexpected, "no limit to try permissions with"))?;
        let forgetful = AnonymousBounds { forget_after: Some(Duration::from_secs(1)), ..AnonymousBounds::default() };
        let gate = Gate::of_rule("start probe", limit).anonymous(forgetful);
        // They may take longer than decisions.
        let patient = RedisOptions { budget: Patience::starting(&self.options).answer, ..self.options.clone() };
        let patient = Self { options: patient, ..self.clone() };
        for partition in self.link.partitions() {
            let check = Check::of(&gate, Subject::from_hash(u128::from(partition) << 96), 1);
            let (Ok(plan), Ok(stranger)) = (Plan::new([check]), Plan::new([check.with_anonymous(true)])) else {
                continue;
            };
            let charge = [Adjustment::charge(&check)];
            let tried = [
                patient.decide(&plan).await.map(drop),
                patient.decide(&stranger).await.map(drop),
                patient.peek(&plan).await.map(drop),
                patient.adjust(&charge).await,
                patient.forget(&[*check.key()]).await,
            ];
            let denied = tried.into_iter().filter_map(Result::err).find(|error| error.kind() == StoreErrorKind::Denied);
            denied.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}
