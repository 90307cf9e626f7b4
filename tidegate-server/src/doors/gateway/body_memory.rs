//! `BodyMemory`: the memory for bodies that are read before the decision. The first 64 KiB of a body need none of it, so that requests with
//! large bodies keep only each other from being served. One client has at most an eighth of it, so that none keeps others from it.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::proxy::ProxyError;
use crate::listen::{ClientCounts, ClientPermit};

/// What every body may take.
pub(super) const FREE_BYTES: usize = 64 * 1024;

/// The most bytes that all bodies together take beyond that.
const MAX_SHARED_BYTES: usize = 128 * 1024 * 1024;

/// One client takes at most this fraction of them: 16 MiB, the longest body that a rule file can ask for.
const CLIENT_FRACTION: usize = 8;

/// The memory that is left. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct BodyMemory {
    all: Arc<Semaphore>,
    by_client: Arc<ClientCounts>,
}

/// A body that is being read. It takes memory as it grows: a client that sends little holds little.
pub(super) struct BodyBuffer {
    data: Vec<u8>,
    max_bytes: usize,
    memory: BodyMemory,
    /// None for one that is exempt.
    client: Option<IpAddr>,
    permit: Option<MemoryPermit>,
}

/// The memory of one body, of that for all and of that for its client.
struct MemoryPermit {
    all: OwnedSemaphorePermit,
    client: Option<ClientPermit>,
}

/// A body with its memory, which is given back with the last reference to it.
struct ReadBody {
    data: Vec<u8>,
    _permit: MemoryPermit,
}

impl BodyMemory {
    pub(super) fn new() -> Self {
        Self::with_bytes(MAX_SHARED_BYTES)
    }

    fn with_bytes(bytes: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(bytes)), by_client: ClientCounts::new(bytes / CLIENT_FRACTION) }
    }

    /// A buffer for a body of at most `max_bytes`. Without a client, only the memory for all bounds it.
    pub(super) fn buffer(&self, max_bytes: usize, client: Option<IpAddr>) -> BodyBuffer {
        BodyBuffer { data: Vec::new(), max_bytes, memory: self.clone(), client, permit: None }
    }

    fn acquire(&self, bytes: usize, client: Option<IpAddr>) -> Result<MemoryPermit, ProxyError> {
        let permits = u32::try_from(bytes).map_err(|_| ProxyError::BodyTooLong)?;
        let client = client.map(|client| self.by_client.acquire_many(client, bytes).ok_or(ProxyError::BodiesOfClient));
        let client = client.transpose()?;
        let all = Arc::clone(&self.all).try_acquire_many_owned(permits).map_err(|_| ProxyError::BodiesInMemory)?;
        Ok(MemoryPermit { all, client })
    }
}

impl MemoryPermit {
    fn merge(&mut self, further: Self) {
        self.all.merge(further.all);
        if let (Some(client), Some(further)) = (&mut self.client, further.client) {
            client.merge(further);
        }
    }
}

impl BodyBuffer {
    /// Appends bytes. On failure the buffer is as before. It has at most a quarter more memory than it needs, and never more than the longest
    /// body.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), ProxyError> {
        let (needed, capacity) = (self.data.len() + bytes.len(), self.data.capacity());
        if needed > capacity {
            self.grow((capacity + capacity / 4).min(self.max_bytes).max(needed))?;
        }
        self.data.extend_from_slice(bytes);
        Ok(())
    }

    fn grow(&mut self, capacity: usize) -> Result<(), ProxyError> {
        let missing = capacity.saturating_sub(FREE_BYTES) - self.data.capacity().saturating_sub(FREE_BYTES);
        if missing > 0 {
            let further = self.memory.acquire(missing, self.client)?;
            match &mut self.permit {
                Some(permit) => permit.merge(further),
                None => self.permit = Some(further),
            }
        }
        self.data.reserve_exact(capacity - self.data.len());
        Ok(())
    }

    pub(super) fn into_bytes(self) -> Bytes {
        match self.permit {
            Some(permit) => Bytes::from_owner(ReadBody { data: self.data, _permit: permit }),
            None => self.data.into(),
        }
    }
}

impl AsRef<[u8]> for ReadBody {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BYTES: usize = 1 << 20;

    fn read(memory: &BodyMemory, client: Option<[u8; 4]>, length: usize) -> Result<Bytes, ProxyError> {
        let mut buffer = memory.buffer(MAX_BYTES, client.map(IpAddr::from));
        vec![b'a'; length].chunks(10_000).try_for_each(|chunk| buffer.append(chunk)).map(|()| buffer.into_bytes())
    }

    #[test]
    fn the_buffer_of_a_body_never_exceeds_the_longest_body() {
        const MAX_BYTES: usize = 64 * 1024;
        for chunk in [1, 7, 1000, 40_000, MAX_BYTES] {
            let mut buffer = BodyMemory::with_bytes(0).buffer(MAX_BYTES, None);
            while buffer.data.len() + chunk <= MAX_BYTES {
                buffer.append(&vec![b'a'; chunk]).unwrap();
                assert!(buffer.data.capacity() <= MAX_BYTES, "{chunk}");
            }
        }
    }

    /// Otherwise a client would hold twice what it has sent.
    #[test]
    fn a_body_takes_at_most_a_quarter_more_than_has_arrived() {
        let memory = BodyMemory::with_bytes(16 * MAX_BYTES);
        let mut buffer = memory.buffer(16 * MAX_BYTES, None);
        for _ in 0..1000 {
            buffer.append(&[b'a'; 8000]).unwrap();
            let taken = 16 * MAX_BYTES - memory.all.available_permits();
            assert_eq!(taken, buffer.data.capacity().saturating_sub(FREE_BYTES));
            assert!(4 * buffer.data.capacity() <= 5 * buffer.data.len(), "{}", buffer.data.len());
        }
    }

    #[test]
    fn large_bodies_share_a_bounded_memory_and_small_ones_need_none() {
        let memory = BodyMemory::with_bytes(MAX_BYTES);
        let read = |length: usize| read(&memory, None, length);
        let first = read(MAX_BYTES).unwrap();
        assert_eq!(memory.all.available_permits(), FREE_BYTES);
        assert!(matches!(read(MAX_BYTES), Err(ProxyError::BodiesInMemory)));
        assert_eq!(read(FREE_BYTES).unwrap().len(), FREE_BYTES);
        // A part of it that waits to be sent keeps all of it.
        let part = first.slice(7..9);
        drop(first);
        assert!(read(MAX_BYTES).is_err());
        drop(part);
        assert_eq!(memory.all.available_permits(), MAX_BYTES);
        assert_eq!(read(MAX_BYTES).unwrap().len(), MAX_BYTES);
    }

    #[test]
    fn one_client_has_an_eighth_of_the_memory_and_leaves_the_rest_to_others() {
        let memory = BodyMemory::with_bytes(8 * 2 * MAX_BYTES);
        let mut bodies = Vec::new();
        for client in 1..=8 {
            let read = |length: usize| read(&memory, Some([203, 0, 113, client]), length);
            bodies.extend([read(MAX_BYTES).unwrap(), read(MAX_BYTES).unwrap()]);
            for _ in 0..10 {
                assert!(matches!(read(MAX_BYTES), Err(ProxyError::BodiesOfClient)), "{client}");
            }
            assert_eq!(read(FREE_BYTES).unwrap().len(), FREE_BYTES);
        }
        let others = Some([203, 0, 113, 9]);
        bodies.push(read(&memory, others, MAX_BYTES).unwrap());
        assert!(matches!(read(&memory, others, MAX_BYTES), Err(ProxyError::BodiesInMemory)));
        drop(bodies);
        assert_eq!(memory.all.available_permits(), 16 * MAX_BYTES);
        assert!(read(&memory, Some([203, 0, 113, 1]), MAX_BYTES).is_ok());
    }

    /// One that is exempt from the bounds for one client, such as a proxy.
    #[test]
    fn without_a_client_all_of_the_memory_may_be_taken() {
        let memory = BodyMemory::with_bytes(4 * MAX_BYTES);
        let bodies: Vec<_> = (0..4).map(|_| read(&memory, None, MAX_BYTES).unwrap()).collect();
        assert!(matches!(read(&memory, None, MAX_BYTES), Err(ProxyError::BodiesInMemory)));
        drop(bodies);
    }
}
