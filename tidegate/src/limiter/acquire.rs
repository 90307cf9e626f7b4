//! `Limiter::acquire`: wait for one's turn, for workers that would rather be late than refused.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::clock::Sleep;
use crate::plan::Plan;
use crate::store::{Store, StoreError};
use crate::{Decision, Limiter, Receipt, Request, Timer};

/// What came of waiting.
#[derive(Debug)]
#[must_use = "only a granted turn may be used"]
pub enum AcquireOutcome {
    /// It is the caller's turn, and any delay has been waited for.
    Granted(Decision),
    /// Waiting does not help: never, or not within the time that the caller has.
    Denied(Decision),
    /// The time was up while others were still ahead, or before there was room.
    TimedOut,
}

impl<S: Store> Limiter<S> {
    /// Waits until `request` passes, at most `max_wait`.
    ///
    /// Callers of this limiter who wait for the same limits are served in the order in which they came, whatever their
    /// cost; between processes there is no order, only the limit. Dropping the future leaves the queue, and gives back a
    /// place in a leaky bucket that was not reached yet. If it is dropped while the store is being asked, what the store
    /// then grants is spent: the limit holds, one turn is lost.
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
        let mut turn = self.turns.enter(queue_of(&plan));
        if !before(&mut deadline, &mut turn).await {
            return Ok(AcquireOutcome::TimedOut);
        }
        loop {
            // What comes after the deadline is of no use: a slot that nobody waits for must not be taken.
            let left = ends_at.since(timer.now());
            plan = plan.with_max_delay(left);
            let decision = self.check_plan(&plan).await?;
            if decision.is_allowed() {
                drop(turn); // the next one may queue behind the place just taken
                return Ok(self.hold(decision, &mut deadline, timer).await);
            }
            match decision.retry_after() {
                Some(retry) if decision.served_after() <= left => {
                    if !before(&mut deadline, timer.sleep(retry)).await {
                        return Ok(AcquireOutcome::TimedOut);
                    }
                }
                _ => return Ok(AcquireOutcome::Denied(decision)),
            }
        }
    }

    /// Waits for the slot of a leaky bucket, and gives it back if the caller does not stay for it.
    async fn hold(&self, decision: Decision, deadline: &mut Sleep, timer: &impl Timer) -> AcquireOutcome {
        if decision.delay().is_zero() {
            return AcquireOutcome::Granted(decision);
        }
        let held = Held { limiter: self, receipt: Some(decision.consumed()) };
        if before(deadline, timer.sleep(decision.delay())).await {
            held.keep();
            AcquireOutcome::Granted(decision)
        } else {
            AcquireOutcome::TimedOut
        }
    }
}

/// The queue of those who wait for the same keys: a number that depends on each of them and on their order.
fn queue_of(plan: &Plan<'_>) -> u128 {
    const FACTOR: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
    plan.checks().iter().fold(0, |queue: u128, check| queue.wrapping_mul(FACTOR) ^ check.key().id())
}

/// A place in a queue that is given back unless it is kept.
struct Held<'l, S: Store> {
    limiter: &'l Limiter<S>,
    receipt: Option<Receipt>,
}

impl<S: Store> Held<'_, S> {
    fn keep(mut self) {
        self.receipt = None;
    }
}

impl<S: Store> Drop for Held<'_, S> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.limiter.refund_soon(receipt);
        }
    }
}

/// Whether `event` comes before the deadline; if both are there, it does.
async fn before(deadline: &mut Sleep, event: impl Future<Output = ()>) -> bool {
    let mut event = pin!(event);
    poll_fn(|context| {
        if event.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        Pin::as_mut(deadline).poll(context).map(|()| false)
    })
    .await
}
