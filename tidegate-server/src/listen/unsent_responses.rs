//! `UnsentResponses`: the requests of a connection whose responses are complete, but not yet sent. A client that reads nothing could
//! otherwise have any number of responses in the buffers of HTTP/2, while none of its requests is under way.

use std::sync::atomic::{AtomicU64, Ordering};

use super::request_bounds::HeldPermit;

use tidegate::sync::Mutex;

/// The permits of requests whose responses wait in the buffers of a connection.
#[derive(Default)]
pub(super) struct UnsentResponses {
    /// How often everything was sent.
    flushes: AtomicU64,
    permits: Mutex<Vec<HeldPermit>>,
}

impl UnsentResponses {
    /// How often everything was sent.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Keeps a permit until everything is sent. If that has happened since the last bytes of the response were taken, when there had been
    /// `flushes`, nothing waits: there may be no further flush.
    pub(super) fn add(&self, permit: HeldPermit, flushes: u64) {
        let mut permits = self.permits.lock();
        if self.flushes() == flushes {
            permits.push(permit);
        }
    }

    /// Everything is sent.
    pub(super) fn report_flush(&self) {
        let mut permits = self.permits.lock();
        self.flushes.fetch_add(1, Ordering::Release);
        permits.clear();
    }
}
