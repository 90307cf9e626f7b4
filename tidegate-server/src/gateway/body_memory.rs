//! `BodyMemory`: the memory for bodies that are read before the decision. The first 64 KiB of a body need none of it, so that requests with
//! large bodies keep only each other from being served.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::proxy::ProxyError;

/// What every body may take.
pub(super) const FREE_BYTES: usize = 64 * 1024;

/// The most bytes that all bodies together take beyond that.
const MAX_SHARED_BYTES: usize = 64 * 1024 * 1024;

/// The memory that is left. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct BodyMemory(Arc<Semaphore>);

/// A body that is being read. It takes memory as it grows: a client that sends little holds little.
pub(super) struct BodyBuffer {
    data: Vec<u8>,
    max_bytes: usize,
    memory: BodyMemory,
    permit: Option<OwnedSemaphorePermit>,
}

/// A body with its memory, which is given back with the last reference to it.
struct ReadBody {
    data: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl BodyMemory {
    pub(super) fn new() -> Self {
        Self::with_bytes(MAX_SHARED_BYTES)
    }

    fn with_bytes(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// A buffer for a body of at most `max_bytes`.
    pub(super) fn buffer(&self, max_bytes: usize) -> BodyBuffer {
        BodyBuffer { data: Vec::new(), max_bytes, memory: self.clone(), permit: None }
    }
}

impl BodyBuffer {
    /// Takes the memory for a body of this length at once.
    pub(super) fn reserve(&mut self, length: usize) -> Result<(), ProxyError> {
        let (before, after) = (self.data.capacity(), length.max(self.data.capacity()));
        let missing = after.saturating_sub(FREE_BYTES) - before.saturating_sub(FREE_BYTES);
        if missing > 0 {
            let missing = u32::try_from(missing).map_err(|_| ProxyError::BodyTooLong)?;
            let further = Arc::clone(&self.memory.0).try_acquire_many_owned(missing);
            let further = further.map_err(|_| ProxyError::BodiesInMemory)?;
            match &mut self.permit {
                Some(permit) => permit.merge(further),
                None => self.permit = Some(further),
            }
        }
        self.data.reserve_exact(after - self.data.len());
        Ok(())
    }

    /// Appends bytes. The buffer never takes more memory than the longest body.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), ProxyError> {
        let needed = self.data.len() + bytes.len();
        if needed > self.data.capacity() {
            self.reserve((2 * self.data.capacity()).min(self.max_bytes).max(needed))?;
        }
        self.data.extend_from_slice(bytes);
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

    #[test]
    fn the_buffer_of_a_body_never_exceeds_the_longest_body() {
        const MAX_BYTES: usize = 64 * 1024;
        for chunk in [1, 7, 1000, 40_000, MAX_BYTES] {
            let mut buffer = BodyMemory::with_bytes(0).buffer(MAX_BYTES);
            while buffer.data.len() + chunk <= MAX_BYTES {
                buffer.append(&vec![b'a'; chunk]).unwrap();
                assert!(buffer.data.capacity() <= MAX_BYTES, "{chunk}");
            }
        }
    }

    #[test]
    fn large_bodies_share_a_bounded_memory_and_small_ones_need_none() {
        const MAX_BYTES: usize = 1 << 20;
        let memory = BodyMemory::with_bytes(MAX_BYTES);
        let read = |length: usize| {
            let mut buffer = memory.buffer(MAX_BYTES);
            vec![b'a'; length].chunks(10_000).try_for_each(|chunk| buffer.append(chunk)).map(|()| buffer.into_bytes())
        };
        let first = read(MAX_BYTES).unwrap();
        assert_eq!(memory.0.available_permits(), FREE_BYTES);
        assert!(matches!(read(MAX_BYTES), Err(ProxyError::BodiesInMemory)));
        assert_eq!(read(FREE_BYTES).unwrap().len(), FREE_BYTES);
        // A part of it that waits to be sent keeps all of it.
        let part = first.slice(7..9);
        drop(first);
        assert!(read(MAX_BYTES).is_err());
        drop(part);
        assert_eq!(memory.0.available_permits(), MAX_BYTES);
        assert_eq!(read(MAX_BYTES).unwrap().len(), MAX_BYTES);
    }
}
