//! `Limiter::acquire`: waits until a request passes, for workers that prefer a delay to a denial.

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use super::drop_guard::DropGuard;
use crate::algorithm::concurrency::RETRY;
use crate::clock::Sleep;
use crate::plan::Plan;
use crate::store::{Store, StoreError};
use crate::{Decision, Ending, Limiter, Request, Timer};

/// How soon a caller that waits for a slot asks the store again. Doubled each time.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The result of [`Limiter::acquire`].
#[derive(Debug)]
#[must_use = "only a granted request may proceed"]
pub enum AcquireOutcome {
    /// The request passes now. Its delay, if any, is over.
    Granted(Decision),
    /// The request does not pass within `max_wait`, or never.
    Denied(Decision),
    /// `max_wait` is over, or slots of concurrency limits were lost while the request waited for its place in another queue.
    TimedOut,
}

impl<S: Store> Limiter<S> {
    /// Waits until `request` passes, at most `max_wait`.
    ///
    /// Callers of this limiter that wait for the same limits are served in the order of arrival, whatever their cost. There is no
    /// order between processes, nor towards callers of [`check`](Self::check). Dropping the future leaves the queue and
    /// [refunds](Ending::Refund) a request whose slot in a leaky bucket is still in the future; with others behind that slot, everything
    /// stays consumed. If it is dropped during a call to the store, units that the store grants then stay consumed, and slots of
    /// concurrency limits are released.
    ///
    /// A caller that waits for a slot of a concurrency limit is woken when one is released by this limiter. For slots that are released
    /// elsewhere or run out, it asks again after 50 ms, and after twice as long each time, up to a second.
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
        let arrival = self.plans().arrive();
        let outcome = self.acquire_plan(self.plan(request), arrival, max_wait, timer, pending()).await?;
        Ok(outcome.unwrap_or(AcquireOutcome::TimedOut))
    }

    pub(super) async fn acquire_plan(
        &self,
        plan: Plan<'_>,
        arrival: u64,
        max_wait: Duration,
        timer: &(impl Timer + ?Sized),
        changed: impl Future<Output = ()>,
    ) -> Result<Option<AcquireOutcome>, StoreError> {
        if plan.checks().is_empty() {
            let decision = self.check_plan(&plan).await?;
            let is_granted = decision.is_allowed();
            let outcome = if is_granted { AcquireOutcome::Granted(decision) } else { AcquireOutcome::Denied(decision) };
            return Ok(Some(outcome));
        }
        let mut changed = pin!(changed);
        let is_observed = plan.is_observed();
        let mut plan = plan.with_observed(false);
        let (mut deadline, ends_at) = (timer.sleep(max_wait), timer.now().plus(max_wait));
        let mut ticket = self.waiting.queue.enter(plan.queue_id(), arrival);
        match unless(changed.as_mut(), first_of(&mut ticket, &mut deadline)).await {
            None => return Ok(None),
            Some(None) => return Ok(Some(AcquireOutcome::TimedOut)),
            Some(Some(())) => {}
        }
        let mut slots = self.waiting.slot_releases.enter(&plan);
        let mut poll_interval = MIN_POLL_INTERVAL;
        loop {
            // A slot after the deadline must not be taken.
            let left = ends_at.since(timer.now());
            plan = plan.with_max_delay(left).with_new_lease_owner();
            let decision = match self.attempt(&plan).await {
                Ok(decision) => decision,
                Err(error) => {
                    self.observe_undecided(&plan.with_observed(is_observed), &error);
                    return Err(error);
                }
            };
            if decision.is_allowed() {
                drop((ticket, slots)); // the next caller may take the slot after this one
                let decision = self.observe_last(&plan.with_observed(is_observed), decision);
                return Ok(Some(self.wait_for_slot(decision, &mut deadline, timer).await));
            }
            let is_denied_by_slots = decision.is_denied_by_slots();
            if let Some(slots) = &mut slots {
                slots.record_denial(is_denied_by_slots);
            }
            match (decision.retry_after(), &mut slots) {
                (Some(_), Some(slots)) if is_denied_by_slots && decision.proceeds_after() <= left.max(RETRY) => {
                    if left.is_zero() {
                        if !max_wait.is_zero() {
                            return Ok(Some(AcquireOutcome::TimedOut));
                        }
                        let decision = self.observe_last(&plan.with_observed(is_observed), decision);
                        return Ok(Some(AcquireOutcome::Denied(decision)));
                    }
                    let mut next_poll = timer.sleep(poll_interval.min(left));
                    let released = first_of(poll_fn(|context| slots.poll_released(context)), &mut next_poll);
                    poll_interval = match unless(changed.as_mut(), released).await {
                        None => return Ok(None),
                        Some(Some(())) => MIN_POLL_INTERVAL,
                        Some(None) => (poll_interval * 2).min(MAX_POLL_INTERVAL),
                    };
                }
                (Some(retry), _) if decision.proceeds_after() <= left => {
                    match unless(changed.as_mut(), first_of(timer.sleep(retry), &mut deadline)).await {
                        None => return Ok(None),
                        Some(None) => return Ok(Some(AcquireOutcome::TimedOut)),
                        Some(Some(())) => {}
                    }
                }
                _ => {
                    let decision = self.observe_last(&plan.with_observed(is_observed), decision);
                    return Ok(Some(AcquireOutcome::Denied(decision)));
                }
            }
        }
    }

    /// Shows observers the last decision on a plan, and that the store could not make it, if so.
    fn observe_last(&self, plan: &Plan<'_>, decision: Decision) -> Decision {
        if let Some(kind) = decision.degraded() {
            self.observe_undecided(plan, &StoreError::new(kind, "the store failed"));
        }
        self.observe(plan, decision)
    }

    /// Decides `plan`. With a penalty, it looks first: a caller that waits as long as it must is not to be struck for asking.
    async fn attempt(&self, plan: &Plan<'_>) -> Result<Decision, StoreError> {
        if plan.has_penalty() {
            let decision = self.check_plan(&plan.clone().with_peek()).await?;
            if !decision.is_allowed() {
                return Ok(decision);
            }
        }
        self.check_plan(plan).await
    }

    /// Waits for the place in the queue of a leaky bucket, and refunds it if the future is dropped or the deadline passes. Slots of
    /// concurrency limits are renewed in the meantime; if they are lost, the request is refunded, too.
    async fn wait_for_slot(
        &self,
        decision: Decision,
        deadline: &mut Sleep,
        timer: &(impl Timer + ?Sized),
    ) -> AcquireOutcome {
        if decision.delay().is_zero() {
            return AcquireOutcome::Granted(decision);
        }
        let grant = decision.grant();
        let refund = DropGuard::new(|| self.spawn_end_of(&grant, &Ending::Refund));
        let mut renewals = pin!(async { drop(self.renew_until_lost(&grant, timer).await) });
        let lost = poll_fn(|context| match Pin::as_mut(deadline).poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => renewals.as_mut().poll(context),
        });
        if first_of(timer.sleep(decision.delay()), lost).await.is_some() {
            refund.disarm();
            AcquireOutcome::Granted(decision)
        } else {
            AcquireOutcome::TimedOut
        }
    }
}

impl Plan<'_> {
    /// Identifies the callers of [`acquire`](Limiter::acquire) that wait for the same limits, in order of arrival.
    pub fn queue_id(&self) -> u128 {
        /// The multiplier of the 128-bit PCG generator, which spreads the ids.
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.checks().iter().fold(0, |queue: u128, check| queue.wrapping_mul(MULTIPLIER) ^ check.key().id())
    }
}

/// The result of `event`, unless `changed` completes before it, or at the same time.
async fn unless<T>(mut changed: Pin<&mut impl Future<Output = ()>>, event: impl Future<Output = T>) -> Option<T> {
    let mut event = pin!(event);
    poll_fn(|context| match changed.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => event.as_mut().poll(context).map(Some),
    })
    .await
}

/// The result of `event`, if it completes before `end`, or at the same time.
async fn first_of<T>(event: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    let (mut event, mut end) = (pin!(event), pin!(end));
    poll_fn(|context| match event.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}
