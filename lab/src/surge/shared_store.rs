//! `SharedStore`: the store that the gateways of a run share: a server started for it, a store of the user, or none. It stops its own
//! server, and deletes only its own keys.

use tidegate::StoreError;
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_server::command::Failure;

use super::fleet::LimitStorage;
use crate::traffic::RedisServer;

/// Attempts to connect to a store, of a second each.
const MAX_CONNECT_ATTEMPTS: u32 = 5;

/// The store that the gateways share.
pub(crate) struct SharedStore {
    /// `None` if no store can be shared.
    url: Option<String>,
    prefix: String,
    /// A description for the report.
    pub(crate) name: String,
    /// The server of this run.
    server: Option<RedisServer>,
    /// Whether it is a store of the user, so that keys must be deleted at the end.
    is_external: bool,
}

impl SharedStore {
    /// The store at `url`; without a URL a server of this run, or none if no server program is installed.
    pub(crate) fn open(url: Option<String>, prefix: String) -> Result<Self, Failure> {
        if let Some(url) = url {
            let name = "the store of --store".to_owned();
            return Ok(Self { url: Some(url), prefix, name, server: None, is_external: true });
        }
        if let Some(server) = RedisServer::start()? {
            let (url, name) = (Some(server.url()), format!("{}, started for this run", server.version()));
            return Ok(Self { url, prefix, name, server: Some(server), is_external: false });
        }
        let name = "the memory of one gateway".to_owned();
        Ok(Self { url: None, prefix, name, server: None, is_external: false })
    }

    /// The process ID of the server of this run.
    pub(crate) fn process_id(&self) -> Option<u32> {
        self.server.as_ref().map(|server| server.process().id())
    }

    /// Whether gateways can share limits.
    pub(crate) const fn is_shared(&self) -> bool {
        self.url.is_some()
    }

    /// Whether all rules of a request are decided in one step. A cluster may need one step for each.
    pub(crate) fn decides_atomically(&self) -> bool {
        let is_cluster = |url: &String| url.split(':').next().is_some_and(|scheme| scheme.ends_with("+cluster"));
        !self.url.as_ref().is_some_and(is_cluster)
    }

    /// The storage of a phase, with unused limits.
    pub(crate) fn limit_storage(&self, phase: usize) -> LimitStorage {
        match &self.url {
            Some(url) => LimitStorage::Shared { url: url.clone(), prefix: format!("{}.{phase}.", self.prefix) },
            None => LimitStorage::PerGateway,
        }
    }

    /// Deletes the keys of this run from a store of the user, and returns their number.
    pub(crate) async fn delete_keys(&self) -> Result<u64, Failure> {
        let Some(url) = self.url.as_ref().filter(|_| self.is_external) else { return Ok(0) };
        let failed = |error| Failure::Store { error, meanwhile: "" };
        let store = connect(url, &self.prefix).await.map_err(failed)?;
        store.forget_prefix().await.map_err(failed)
    }
}

/// Connects to the store at `url`, with the timeouts that `tidegate serve` has by default. Tries several times, since on a busy
/// machine a server that has just started may be late.
pub(crate) async fn connect(url: &str, prefix: &str) -> Result<RedisStore, StoreError> {
    let store = RedisStore::open(url, RedisOptions::new().with_prefix(prefix).with_heartbeats(false))?;
    for _ in 1..MAX_CONNECT_ATTEMPTS {
        match store.check_servers().await {
            Err(error) if error.is_transient() => {}
            checked => return checked.map(|_| store),
        }
    }
    store.check_servers().await.map(|_| store)
}
