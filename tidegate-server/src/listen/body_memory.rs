//! `BodyMemory`: the memory that bodies share, so that all of them together are bounded. Whatever keeps bodies in memory takes it from one
//! of these, before it keeps them.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::clients::{ClientCounts, ClientPermit};

/// The memory that is left. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory {
    all: Arc<Semaphore>,
    /// What one client may take, if that is bounded.
    by_client: Option<Arc<ClientCounts>>,
}

/// The memory of one body, until it is dropped.
pub(crate) struct MemoryPermit {
    all: OwnedSemaphorePermit,
    client: Option<ClientPermit>,
}

/// Why there is no memory for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutOfMemory {
    /// All bodies together have all of it.
    All,
    /// The client has its part.
    OfClient,
}

impl BodyMemory {
    /// So many bytes for all bodies together.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(bytes)), by_client: None }
    }

    /// Bounds what one client takes.
    pub(crate) fn with_client_bytes(self, bytes: usize) -> Self {
        Self { by_client: Some(ClientCounts::new(bytes)), ..self }
    }

    /// Memory for a body. Without a client, only the memory for all bounds it.
    pub(crate) fn acquire(&self, bytes: usize, client: Option<IpAddr>) -> Result<MemoryPermit, OutOfMemory> {
        let permits = u32::try_from(bytes).map_err(|_| OutOfMemory::All)?;
        let client = match (&self.by_client, client) {
            (Some(counts), Some(client)) => Some(counts.acquire_many(client, bytes).ok_or(OutOfMemory::OfClient)?),
            _ => None,
        };
        let all = Arc::clone(&self.all).try_acquire_many_owned(permits).map_err(|_| OutOfMemory::All)?;
        Ok(MemoryPermit { all, client })
    }

    /// The bytes that are left.
    #[cfg(test)]
    pub(crate) fn available(&self) -> usize {
        self.all.available_permits()
    }
}

impl MemoryPermit {
    /// Adds further memory of the same body.
    pub(crate) fn merge(&mut self, further: Self) {
        self.all.merge(further.all);
        if let (Some(client), Some(further)) = (&mut self.client, further.client) {
            client.merge(further);
        }
    }
}
