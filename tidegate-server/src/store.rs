//! `AnyStore`: the store that a URL names. It forwards every call to that store.

mod connect;

use std::sync::Arc;

use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{
    AccountKey, Adjustment, AdjustmentResults, EntryId, GateState, Journal, Key, KnownDenial, Namespace, Outbox,
    OutboxBatch, OutboxPosition, OutstandingHolds, Plan, Store, Verdict,
};
use tidegate::{MemoryStore, StoreError};
use tidegate_redis::{RedisOptions, RedisStore, ServerState, SubjectStats};

pub(crate) use self::connect::{StoreArgs, StoreProbe};

/// The URL of a store.
///
/// ```
/// use tidegate_server::StoreUrl;
///
/// assert!(matches!(StoreUrl::parse("memory:"), Ok(StoreUrl::Memory)));
/// assert!(matches!(StoreUrl::parse("redis://127.0.0.1:6379"), Ok(StoreUrl::Redis(_))));
/// assert!(matches!(StoreUrl::parse("rediss+cluster://a:6379,b:6379"), Ok(StoreUrl::Redis(_))));
/// assert_eq!(StoreUrl::parse("valkey://h").err(), Some("a Valkey server is written `redis://`, too"));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// `memory:`: in the memory of this process.
    Memory,
    /// `redis://…`, `redis+sentinel://…` or `redis+cluster://…`, or with `rediss` over TLS: on Redis or Valkey servers. The
    /// URL may contain a password, so it is not `Debug`.
    Redis(String),
}

/// Any of the stores. Clones share the state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// In this process.
    Memory(Arc<MemoryStore>),
    /// On a Redis or Valkey server.
    Redis(RedisStore),
}

impl StoreUrl {
    /// Parses a URL. The error says what to write, and does not repeat the URL.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err("a store is a URL: `memory:`, or one such as `redis://127.0.0.1:6379`");
        };
        let has_address = rest.len() > 2 && rest.starts_with("//");
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err("the memory store has no address: write `memory:`"),
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster"
                if has_address =>
            {
                Ok(Self::Redis(url.to_owned()))
            }
            "redis" | "rediss" => Err("the address is missing: write one such as `redis://127.0.0.1:6379`"),
            "redis+sentinel" | "rediss+sentinel" => {
                Err("the address is missing: write one such as `redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/NAME`")
            }
            "redis+cluster" | "rediss+cluster" => {
                Err("the address is missing: write one such as `redis+cluster://10.0.0.1:6379,10.0.0.2:6379`")
            }
            "valkey" => Err("a Valkey server is written `redis://`, too"),
            _ => Err("there is no such store: write `memory:`, or a URL such as `redis://127.0.0.1:6379`"),
        }
    }

    /// Whether other processes can read the store.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }
}

impl AnyStore {
    /// Opens the store at `url` in a namespace and checks its servers, for a short-lived program: it does not count as an instance.
    pub async fn open(url: &StoreUrl, namespace: &Namespace) -> Result<Self, StoreError> {
        match url {
            StoreUrl::Memory => Ok(Self::Memory(Arc::default())),
            StoreUrl::Redis(url) => {
                let options = RedisOptions::new().with_namespace(namespace.clone()).with_heartbeats(false);
                RedisStore::connect_with(url, options).await.map(Self::Redis)
            }
        }
    }

    /// The store at `url`, whether or not its servers answer. The memory store has room for `memory_keys`, and records changes of quotas
    /// with a ledger in `journal`.
    pub(crate) fn from_url(
        url: &StoreUrl,
        options: RedisOptions,
        memory_keys: usize,
        journal: Option<Arc<dyn Journal>>,
    ) -> Result<Self, StoreError> {
        match url {
            StoreUrl::Memory => {
                let store = MemoryStore::new().with_max_keys(memory_keys);
                Ok(Self::Memory(Arc::new(match journal {
                    Some(journal) => store.with_journal(journal),
                    None => store,
                })))
            }
            StoreUrl::Redis(url) => RedisStore::open(url, options).map(Self::Redis),
        }
    }

    /// Checks the servers, and returns a warning for each harmful setting.
    pub(crate) async fn check_servers(&self) -> Result<Vec<String>, StoreError> {
        match self {
            Self::Memory(_) => Ok(Vec::new()),
            Self::Redis(store) => store.check_servers().await,
        }
    }

    /// Statistics of anonymous subjects, on a shared store.
    pub(crate) fn anonymous_stats(&self) -> Vec<SubjectStats> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(store) => store.anonymous_stats(),
        }
    }

    /// Statistics of authenticated subjects, on a shared store.
    pub(crate) fn authenticated_stats(&self) -> Vec<SubjectStats> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(store) => store.authenticated_stats(),
        }
    }

    /// The size of the denial cache, on a shared store.
    pub(crate) fn denial_cache_entries(&self) -> Option<usize> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(store.denial_cache_entries()),
        }
    }

    /// The number of tasks that apply adjustments in the background.
    pub(crate) fn background_adjustments(&self) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(store) => store.background_adjustments(),
        }
    }

    /// The store on servers, if it is one.
    pub(crate) const fn redis(&self) -> Option<&RedisStore> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(store),
        }
    }

    /// The state of its servers; none for the memory store.
    pub(crate) fn servers(&self) -> Vec<ServerState> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(store) => store.server_states(),
        }
    }

    /// Harmful settings of the servers, found when the store was opened.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Memory(_) => &[],
            Self::Redis(store) => store.warnings(),
        }
    }
}

impl Store for AnyStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        match self {
            Self::Memory(store) => store.decide(plan).await,
            Self::Redis(store) => store.decide(plan).await,
        }
    }

    async fn apply(&self, adjustments: &[Adjustment<'_>]) -> AdjustmentResults {
        match self {
            Self::Memory(store) => store.apply(adjustments).await,
            Self::Redis(store) => store.apply(adjustments).await,
        }
    }

    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        match self {
            Self::Memory(store) => store.spawn_apply(adjustments),
            Self::Redis(store) => store.spawn_apply(adjustments),
        }
    }

    async fn outstanding(&self, plan: &Plan<'_>) -> Result<OutstandingHolds, StoreError> {
        match self {
            Self::Memory(store) => store.outstanding(plan).await,
            Self::Redis(store) => store.outstanding(plan).await,
        }
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.forget(keys).await,
            Self::Redis(store) => store.forget(keys).await,
        }
    }

    async fn ping(&self) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.ping().await,
            Self::Redis(store) => store.ping().await,
        }
    }

    fn instances(&self) -> Option<u32> {
        match self {
            Self::Memory(store) => store.instances(),
            Self::Redis(store) => store.instances(),
        }
    }

    fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        match self {
            Self::Memory(store) => store.known_denial(plan),
            Self::Redis(store) => store.known_denial(plan),
        }
    }

    fn ledger_generation(&self, partition: u16) -> Option<u64> {
        match self {
            Self::Memory(store) => store.ledger_generation(partition),
            Self::Redis(store) => store.ledger_generation(partition),
        }
    }
}

impl Outbox for AnyStore {
    async fn read_outbox(&self, partition: u16, max: usize) -> Result<OutboxBatch, StoreError> {
        match self {
            Self::Memory(store) => store.read_outbox(partition, max).await,
            Self::Redis(store) => store.read_outbox(partition, max).await,
        }
    }

    async fn acknowledge(&self, partition: u16, ids: &[EntryId]) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.acknowledge(partition, ids).await,
            Self::Redis(store) => store.acknowledge(partition, ids).await,
        }
    }

    fn take_written_partitions(&self) -> Vec<u16> {
        match self {
            Self::Memory(store) => store.take_written_partitions(),
            Self::Redis(store) => store.take_written_partitions(),
        }
    }

    async fn read_states(
        &self,
        partition: u16,
        keys: &[AccountKey],
    ) -> Result<Option<(OutboxPosition, Vec<Option<QuotaState>>)>, StoreError> {
        match self {
            Self::Memory(store) => store.read_states(partition, keys).await,
            Self::Redis(store) => store.read_states(partition, keys).await,
        }
    }

    async fn repair_states(
        &self,
        partition: u16,
        position: &OutboxPosition,
        states: &[GateState],
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => store.repair_states(partition, position, states).await,
            Self::Redis(store) => store.repair_states(partition, position, states).await,
        }
    }

    async fn rebuild_partition(
        &self,
        partition: u16,
        generation: u64,
        states: &[GateState],
    ) -> Result<u64, StoreError> {
        match self {
            Self::Memory(store) => store.rebuild_partition(partition, generation, states).await,
            Self::Redis(store) => store.rebuild_partition(partition, generation, states).await,
        }
    }

    async fn discard_generation(&self, partition: u16, generation: u64) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.discard_generation(partition, generation).await,
            Self::Redis(store) => store.discard_generation(partition, generation).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_wrong_url_says_what_to_write_and_does_not_repeat_it() {
        for url in [
            "",
            "redis",
            "redis:",
            "redis://",
            "rediss://",
            "redis+sentinel://",
            "rediss+cluster:",
            "memory",
            "memory://",
            "valkey://:pw7@h",
            "pw7:x",
        ] {
            let why = StoreUrl::parse(url).err();
            assert!(why.is_some_and(|why| why.contains("://") || why.contains("memory:")), "{url}: {why:?}");
            assert!(!why.unwrap().contains("pw7"), "{url}");
        }
    }

    #[test]
    fn only_redis_stores_are_shared() {
        assert!(!StoreUrl::parse("memory:").is_ok_and(|url| url.is_shared()));
        for url in [
            "redis://:pw7@127.0.0.1:1/2",
            "rediss://h",
            "redis+sentinel://h:1,h:2/NAME",
            "rediss+cluster://h:1,h:2?ca=/x",
        ] {
            assert!(StoreUrl::parse(url).is_ok_and(|url| url.is_shared()), "{url}");
        }
    }
}
