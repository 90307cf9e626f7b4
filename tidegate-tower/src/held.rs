//! `Held`: a request in the queue of a leaky bucket. It waits, and gives its place back if nobody waits any more.

use std::time::Duration;

use tidegate::spi::Store;
use tidegate::{Limiter, Receipt, Timer};

/// What was taken for a request that has not gone on yet.
pub(crate) struct Held<'l, S: Store> {
    limiter: &'l Limiter<S>,
    receipt: Option<Receipt>,
}

impl<'l, S: Store> Held<'l, S> {
    pub(crate) fn new(limiter: &'l Limiter<S>, receipt: Option<Receipt>) -> Self {
        Self { limiter, receipt }
    }

    /// Waits for the slot, which is then used.
    pub(crate) async fn wait(mut self, delay: Duration, timer: &dyn Timer) -> Option<Receipt> {
        timer.sleep(delay).await;
        self.receipt.take()
    }
}

impl<S: Store> Drop for Held<'_, S> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.limiter.refund_soon(receipt);
        }
    }
}
