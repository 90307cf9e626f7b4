//! `AnyStore`: the store that a URL names. It only chooses; each store keeps its own semantics, deadline and errors.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Adjustment, Key, KeyStem, Limit, MemoryStore, Plan, Store, StoreError, Subject, Verdict};
use tidegate_redis::RedisStore;

/// Where a store is.
///
/// ```
/// use tidegate_server::StoreUrl;
///
/// assert!(matches!(StoreUrl::parse("memory:"), Ok(StoreUrl::Memory)));
/// assert!(matches!(StoreUrl::parse("redis://127.0.0.1:6379"), Ok(StoreUrl::Redis(_))));
/// assert_eq!(StoreUrl::parse("rediss://h").err(), Some("TLS is not supported yet: put a TLS proxy in front of redis://"));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUrl {
    /// `memory:`: in this process, gone with it.
    Memory,
    /// `redis://…`: on a Redis or Valkey server. The URL may hold a password.
    Redis(String),
}

/// Any of the stores. Clones share what is in it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// In this process.
    Memory(Arc<MemoryStore>),
    /// On a Redis or Valkey server.
    Redis(RedisStore),
}

/// Whether a store answers: it is asked to forget something that is not there.
pub(crate) async fn answers(store: &impl Store) -> bool {
    let Ok(limit) = Limit::fixed_window(1, Duration::from_secs(1)) else { return false };
    let stem = KeyStem::of_rule("readyz probe", &limit, "");
    let nobody = Subject::from_hash(0);
    store.forget(&[Key::new(&stem, nobody, nobody)]).await.is_ok()
}

impl StoreUrl {
    /// Reads a URL. The error says what to write, and does not repeat the URL.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err("a store is a URL: `memory:`, or one such as `redis://127.0.0.1:6379`");
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err("the memory store has no address: write `memory:`"),
            "redis" if rest.len() > 2 && rest.starts_with("//") => Ok(Self::Redis(url.to_owned())),
            "redis" => Err("the address is missing: write one such as `redis://127.0.0.1:6379`"),
            "valkey" => Err("a Valkey server is written `redis://`, too"),
            "rediss" => Err("TLS is not supported yet: put a TLS proxy in front of redis://"),
            "redis+sentinel" => Err("Sentinel is not supported yet: name the primary with redis://"),
            "redis+cluster" => Err("a cluster is not supported yet: name a single server with redis://"),
            _ => Err("there is no such store: write `memory:`, or a URL such as `redis://127.0.0.1:6379`"),
        }
    }

    /// Whether others can read what is stored there.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }
}

impl AnyStore {
    /// Opens the store at `url`.
    pub async fn open(url: &StoreUrl) -> Result<Self, StoreError> {
        match url {
            StoreUrl::Memory => Ok(Self::Memory(Arc::default())),
            StoreUrl::Redis(url) => RedisStore::connect(url).await.map(Self::Redis),
        }
    }

    /// What was found at the start that an operator should change, in plain words.
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

    async fn peek(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        match self {
            Self::Memory(store) => store.peek(plan).await,
            Self::Redis(store) => store.peek(plan).await,
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.adjust(adjustments).await,
            Self::Redis(store) => store.adjust(adjustments).await,
        }
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        match self {
            Self::Memory(store) => store.adjust_soon(adjustments),
            Self::Redis(store) => store.adjust_soon(adjustments),
        }
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.forget(keys).await,
            Self::Redis(store) => store.forget(keys).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_url_is_told_what_to_write_and_not_repeated() {
        for url in
            ["", "redis", "redis:", "redis://", "memory", "memory://", "rediss://:pw7@h", "valkey://:pw7@h", "pw7:x"]
        {
            let why = StoreUrl::parse(url).err();
            assert!(why.is_some_and(|why| why.contains("redis://") || why.contains("memory:")), "{url}: {why:?}");
            assert!(!why.unwrap().contains("pw7"), "{url}");
        }
    }

    #[test]
    fn only_what_others_can_read_is_shared() {
        assert!(!StoreUrl::parse("memory:").is_ok_and(|url| url.is_shared()));
        assert!(StoreUrl::parse("redis://:pw7@127.0.0.1:1/2").is_ok_and(|url| url.is_shared()));
    }
}
