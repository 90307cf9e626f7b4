//! `SharedStore`: the store that the gateways of a run share: a server started for it, a store of the user, or none. It stops its own
//! server, and deletes only its own keys.

use tidegate::spi::Namespace;
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_server::command::Failure;

use crate::traffic::RedisServer;

/// Attempts to connect to a store, of a second each.
const MAX_CONNECT_ATTEMPTS: u32 = 5;

pub(crate) struct SharedStore {
    /// `None` if no store can be shared.
    url: Option<String>,
    /// The namespaces of this run begin with it.
    run: String,
    /// A description for the report.
    pub(crate) name: String,
    /// The server of this run. Without one the store is that of the user, and keys must be deleted at the end.
    server: Option<RedisServer>,
}

/// The keys of a namespace, in the store at a URL.
#[derive(Clone, Debug)]
pub(crate) struct StoreKeys {
    url: String,
    namespace: Namespace,
}

impl SharedStore {
    /// The store at `url`; without a URL a server of this run, or none if no server program is installed.
    pub(crate) fn open(url: Option<String>, run: String) -> Self {
        let server = if url.is_none() { RedisServer::start() } else { None };
        let name = match (&url, &server) {
            (Some(_), _) => "the store of --store".to_owned(),
            (None, Some(server)) => format!("{}, started for this run", server.version),
            (None, None) => "the memory of one gateway".to_owned(),
        };
        let url = url.or_else(|| Some(server.as_ref()?.server.url()));
        Self { url, run, name, server }
    }

    /// The process ID of the server of this run.
    pub(crate) fn process_id(&self) -> Option<u32> {
        self.server.as_ref().map(|redis| redis.server.process().id())
    }

    /// Whether gateways can share limits.
    pub(crate) const fn is_shared(&self) -> bool {
        self.url.is_some()
    }

    /// Whether all rules of a request are decided in one step. A cluster may need one step for each.
    pub(crate) fn decides_atomically(&self) -> bool {
        let scheme = self.url.as_ref().and_then(|url| url.split(':').next());
        !scheme.is_some_and(|scheme| scheme.ends_with("+cluster"))
    }

    /// The keys of a phase, with unused limits.
    pub(crate) fn phase_keys(&self, phase: usize) -> Option<StoreKeys> {
        let namespace = format!("{}.{phase}", self.run).parse().ok()?;
        Some(StoreKeys { url: self.url.clone()?, namespace })
    }

    /// Deletes the keys of these phases from a store of the user.
    pub(crate) async fn delete_keys(&self, phases: impl IntoIterator<Item = usize>) -> Result<(), Failure> {
        for keys in phases.into_iter().filter(|_| self.server.is_none()).filter_map(|phase| self.phase_keys(phase)) {
            let deleted = keys.connect().await?.forget_namespace().await;
            deleted.map_err(|error| Failure::Store { error, meanwhile: "" })?;
        }
        Ok(())
    }
}

impl StoreKeys {
    /// Connects to the store, with the timeouts that `tidegate serve` has by default. Tries several times, since on a busy machine a server
    /// that has just started may be late.
    pub(crate) async fn connect(&self) -> Result<RedisStore, Failure> {
        let failed = |error| Failure::Store { error, meanwhile: "" };
        let options = RedisOptions::new().with_namespace(self.namespace.clone()).with_heartbeats(false);
        let store = RedisStore::open(&self.url, options).map_err(failed)?;
        let mut attempts = 1;
        loop {
            match store.check_servers().await {
                Err(error) if error.is_transient() && attempts < MAX_CONNECT_ATTEMPTS => attempts += 1,
                checked => return checked.map(|_| store).map_err(failed),
            }
        }
    }
}
