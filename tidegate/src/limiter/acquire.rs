//! `Limiter::acquire`: waits until a request passes, for workers that prefer a delay to a denial.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::clock::Sleep;
use crate::plan::Plan;
use crate::store::{Store, StoreError};
use crate::{Decision, Limiter, Receipt, Request, Timer};

/// The result of [`Limiter::acquire`].
#[derive(Debug)]
#[must_use = "only a granted request may proceed"]
pub enum AcquireOutcome {
    /// The request passes now. Its delay, if any, is over.
    Granted(Decision),
    /// The request does not pass within `max_wait`, or never.
    Denied(Decision),
    /// `max_wait` is over.
    TimedOut,
}

impl<S: Store> Limiter<S> {
    /// Waits until `request` passes, at most `max_wait`.
    ///
    /// Callers of this limiter that wait for the same limits are served in the order of arrival, whatever their cost. There is no
    /// order between processes. Dropping the future leaves the queue and [refunds](Self::refund) a request whose slot in a leaky bucket
    /// is still in the future; with others behind that slot, everything stays consumed. If it is dropped during a call to the store,
    /// units that the store grants then stay consumed.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tidegate::{AcquireOutcome, Limit, Limiter, MemoryStore, Rate, Request, Rule, RuleSet, Timer};
    /// # async fn dispatch(timer: &impl Timer) -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = Limit::token_bucket(50, Rate::per_second(10)?)?;
    /// let limiter = Limiter::new(RuleSet::new([Rule::new("webhooks", limit)])?, MemoryStore::new());
    ///
    /// match limiter.acquire(&Request::new("webhook"), Duration::from_secs(30), timer).await? {
    ///     AcquireOutcome::Granted(_) => { /* deliver */ }
    ///     AcquireOutcome::Denied(_) | AcquireOutcome::TimedOut => { /* put it back */ }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(
        &self,
        request: &Request<'_>,
        max_wait: Duration,
        timer: &impl Timer,
    ) -> Result<AcquireOutcome, StoreError> {
        let mut plan = self.plan(request);
        let (mut deadline, ends_at) = (timer.sleep(max_wait), timer.now().plus(max_wait));
        let mut ticket = self.wait_queue.enter(queue_id(&plan));
        if !completes_before(&mut deadline, &mut ticket).await {
            return Ok(AcquireOutcome::TimedOut);
        }
        loop {
            // A slot after the deadline must not be taken.
            let left = ends_at.since(timer.now());
            plan = plan.with_max_delay(left);
            let decision = self.check_plan(&plan).await?;
            if decision.is_allowed() {
                drop(ticket); // the next caller may take the slot after this one
                return Ok(self.wait_for_slot(decision, &mut deadline, timer).await);
            }
            match decision.retry_after() {
                Some(retry) if decision.proceeds_after() <= left => {
                    if !completes_before(&mut deadline, timer.sleep(retry)).await {
                        return Ok(AcquireOutcome::TimedOut);
                    }
                }
                _ => return Ok(AcquireOutcome::Denied(decision)),
            }
        }
    }

    /// Waits for the slot of a leaky bucket, and refunds it if the future is dropped or the deadline passes.
    async fn wait_for_slot(&self, decision: Decision, deadline: &mut Sleep, timer: &impl Timer) -> AcquireOutcome {
        if decision.delay().is_zero() {
            return AcquireOutcome::Granted(decision);
        }
        let guard = RefundGuard { limiter: self, receipt: Some(decision.consumed()) };
        if completes_before(deadline, timer.sleep(decision.delay())).await {
            guard.disarm();
            AcquireOutcome::Granted(decision)
        } else {
            AcquireOutcome::TimedOut
        }
    }
}

/// Identifies the queue of callers that wait for the same keys in the same order.
fn queue_id(plan: &Plan<'_>) -> u128 {
    /// The multiplier of the 128-bit PCG generator, which spreads the ids.
    const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
    plan.checks().iter().fold(0, |queue: u128, check| queue.wrapping_mul(MULTIPLIER) ^ check.key().id())
}

/// Refunds a receipt on drop unless it is disarmed.
struct RefundGuard<'l, S: Store> {
    limiter: &'l Limiter<S>,
    receipt: Option<Receipt>,
}

impl<S: Store> RefundGuard<'_, S> {
    fn disarm(mut self) {
        self.receipt = None;
    }
}

impl<S: Store> Drop for RefundGuard<'_, S> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.limiter.refund_soon(receipt);
        }
    }
}

/// Whether `event` completes before the deadline, or at the same time.
async fn completes_before(deadline: &mut Sleep, event: impl Future<Output = ()>) -> bool {
    let mut event = pin!(event);
    poll_fn(|context| {
        if event.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        Pin::as_mut(deadline).poll(context).map(|()| false)
    })
    .await
}
