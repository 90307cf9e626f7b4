//! `RefundGuard`: refunds a delayed request that is cancelled before its delay has passed. With others behind its place in the queue,
//! [nothing](Limiter::refund) goes back.

use std::time::Duration;

use tidegate::spi::Store;
use tidegate::{Limiter, Receipt, Timer};

use crate::UsageReport;

/// The receipt of a request that waits in the queue of a leaky bucket. Dropping the guard refunds it.
pub(crate) struct RefundGuard<'l, S: Store> {
    limiter: &'l Limiter<S>,
    receipt: Option<Receipt>,
}

impl<'l, S: Store> RefundGuard<'l, S> {
    pub(crate) fn new(limiter: &'l Limiter<S>, receipt: Option<Receipt>) -> Self {
        Self { limiter, receipt }
    }

    /// Waits until the delay has passed and returns the receipt: from then on the request counts.
    pub(crate) async fn wait(mut self, delay: Duration, timer: &dyn Timer) -> Option<Receipt> {
        timer.sleep(delay).await;
        self.receipt.take()
    }
}

/// The report of a request that waits in such a queue. Dropping the guard gives its cost back.
pub(crate) struct ReleaseGuard<'u>(Option<&'u UsageReport>);

impl<'u> ReleaseGuard<'u> {
    pub(crate) const fn new(usage: &'u UsageReport) -> Self {
        Self(Some(usage))
    }

    /// Waits until the delay has passed: from then on the request counts.
    pub(crate) async fn wait(mut self, delay: Duration, timer: &dyn Timer) {
        timer.sleep(delay).await;
        self.0 = None;
    }
}

impl Drop for ReleaseGuard<'_> {
    fn drop(&mut self) {
        if let Some(usage) = self.0 {
            usage.release();
        }
    }
}

impl<S: Store> Drop for RefundGuard<'_, S> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.limiter.refund_soon(receipt);
        }
    }
}
