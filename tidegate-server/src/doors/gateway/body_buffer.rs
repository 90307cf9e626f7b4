//! `BodyBuffer`: a body that is read before the decision. Its first 64 KiB need no shared memory, so that requests with large bodies keep only
//! each other from being served. One client has at most an eighth of that memory, so that none keeps others from it.

use std::net::IpAddr;

use bytes::Bytes;
use tidegate::attributes::DEFAULT_MAX_BODY_BYTES;

use super::proxy::ProxyError;
use crate::listen::{BodyMemory, MemoryPermit, OutOfMemory};

/// What every body may take: by default no rule reads a longer one.
const FREE_BYTES: usize = DEFAULT_MAX_BODY_BYTES;

/// The most bytes that all bodies together take beyond that.
const MAX_SHARED_BYTES: usize = 128 * 1024 * 1024;

/// One client takes at most this fraction of them: 16 MiB, the longest body that a rule file can ask for.
const CLIENT_FRACTION: usize = 8;

/// A body that is being read. It takes memory as it grows: a client that sends little holds little.
pub(super) struct BodyBuffer {
    data: Vec<u8>,
    max_bytes: usize,
    memory: BodyMemory,
    /// None for one that is exempt.
    client: Option<IpAddr>,
    permit: Option<MemoryPermit>,
}

/// A body with its memory, which is given back with the last reference to it.
struct ReadBody {
    data: Vec<u8>,
    _permit: MemoryPermit,
}

/// The memory for the bodies of a gateway.
pub(super) fn body_memory() -> BodyMemory {
    with_bytes(MAX_SHARED_BYTES)
}

fn with_bytes(bytes: usize) -> BodyMemory {
    BodyMemory::new(bytes).with_client_bytes(bytes / CLIENT_FRACTION)
}

impl BodyBuffer {
    /// A buffer for a body of at most `max_bytes`. Without a client, only the memory for all bounds it.
    pub(super) fn new(memory: &BodyMemory, max_bytes: usize, client: Option<IpAddr>) -> Self {
        Self { data: Vec::new(), max_bytes, memory: memory.clone(), client, permit: None }
    }

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

impl From<OutOfMemory> for ProxyError {
    fn from(error: OutOfMemory) -> Self {
        match error {
            OutOfMemory::All => Self::BodiesInMemory,
            OutOfMemory::OfClient => Self::BodiesOfClient,
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
        let mut buffer = BodyBuffer::new(memory, MAX_BYTES, client.map(IpAddr::from));
        vec![b'a'; length].chunks(10_000).try_for_each(|chunk| buffer.append(chunk)).map(|()| buffer.into_bytes())
    }

    #[test]
    fn the_buffer_of_a_body_never_exceeds_the_longest_body() {
        const MAX_BYTES: usize = 64 * 1024;
        for chunk in [1, 7, 1000, 40_000, MAX_BYTES] {
            let mut buffer = BodyBuffer::new(&with_bytes(0), MAX_BYTES, None);
            while buffer.data.len() + chunk <= MAX_BYTES {
                buffer.append(&vec![b'a'; chunk]).unwrap();
                assert!(buffer.data.capacity() <= MAX_BYTES, "{chunk}");
            }
        }
    }

    /// Otherwise a client would hold twice what it has sent.
    #[test]
    fn a_body_takes_at_most_a_quarter_more_than_has_arrived() {
        let memory = with_bytes(16 * MAX_BYTES);
        let mut buffer = BodyBuffer::new(&memory, 16 * MAX_BYTES, None);
        for _ in 0..1000 {
            buffer.append(&[b'a'; 8000]).unwrap();
            let taken = 16 * MAX_BYTES - memory.available();
            assert_eq!(taken, buffer.data.capacity().saturating_sub(FREE_BYTES));
            assert!(4 * buffer.data.capacity() <= 5 * buffer.data.len(), "{}", buffer.data.len());
        }
    }

    #[test]
    fn large_bodies_share_a_bounded_memory_and_small_ones_need_none() {
        let memory = with_bytes(MAX_BYTES);
        let read = |length: usize| read(&memory, None, length);
        let first = read(MAX_BYTES).unwrap();
        assert_eq!(memory.available(), FREE_BYTES);
        assert!(matches!(read(MAX_BYTES), Err(ProxyError::BodiesInMemory)));
        assert_eq!(read(FREE_BYTES).unwrap().len(), FREE_BYTES);
        // A part of it that waits to be sent keeps all of it.
        let part = first.slice(7..9);
        drop(first);
        assert!(read(MAX_BYTES).is_err());
        drop(part);
        assert_eq!(memory.available(), MAX_BYTES);
        assert_eq!(read(MAX_BYTES).unwrap().len(), MAX_BYTES);
    }

    #[test]
    fn one_client_has_an_eighth_of_the_memory_and_leaves_the_rest_to_others() {
        let memory = with_bytes(8 * 2 * MAX_BYTES);
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
        assert_eq!(memory.available(), 16 * MAX_BYTES);
        assert!(read(&memory, Some([203, 0, 113, 1]), MAX_BYTES).is_ok());
    }

    /// One that is exempt from the bounds for one client, such as a proxy.
    #[test]
    fn without_a_client_all_of_the_memory_may_be_taken() {
        let memory = with_bytes(4 * MAX_BYTES);
        let bodies: Vec<_> = (0..4).map(|_| read(&memory, None, MAX_BYTES).unwrap()).collect();
        assert!(matches!(read(&memory, None, MAX_BYTES), Err(ProxyError::BodiesInMemory)));
        drop(bodies);
    }
}
