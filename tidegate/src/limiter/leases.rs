//! Leases: renewing the slots of concurrency limits, and holding them while a worker runs.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;

use super::drop_guard::DropGuard;
use crate::algorithm::AdjustmentOutcome;
use crate::grant::{Ending, Grant, GrantError, Retake};
use crate::plan::Role;
use crate::store::{Store, StoreError};
use crate::{Limiter, Timer};

/// A lease is renewed after this part of its duration, so that a renewal may fail twice before it runs out.
pub(super) const RENEWALS_PER_LEASE: u32 = 3;

/// The largest number of slots in one call to the store.
const MAX_SLOTS_PER_CALL: usize = 256;

/// Leases
impl<S: Store> Limiter<S> {
    /// Holds the slots of `grant` for another [duration](Grant::duration), from now on.
    ///
    /// With [`Retake::IfLost`], slots that the store has lost, because it was emptied or failed over, are taken again if they fit within the
    /// limit now. That is for holders who know, by their own clock, that less than the duration has passed since the slots were last
    /// taken or renewed, measured from before that call. Otherwise the slots may have run out, and others may have worked in their
    /// place: then the work must start over with a new decision. Not after a release either, or a slot is taken that nobody releases.
    ///
    /// ```
    /// # use tidegate::grants::Retake;
    /// # use tidegate::spi::Store;
    /// # use tidegate::{Grant, Limiter};
    /// # async fn example(limiter: &Limiter<impl Store>, grant: Grant) -> Result<(), Box<dyn std::error::Error>> {
    /// limiter.renew(&grant, Retake::No).await?; // again before grant.duration() has passed
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renew(&self, grant: &Grant, retake: Retake) -> Result<(), GrantError> {
        match self.renew_each(&[(grant, retake)]).await {
            Ok(held) if held.iter().all(|held| *held) => Ok(()),
            Ok(_) => Err(GrantError::NotHeld),
            Err(error) => Err(GrantError::Store(error)),
        }
    }

    /// Renews leases together. Returns for each whether all its slots are held, except for those of shadow rules.
    ///
    /// If the store fails for some of them, the others are renewed nevertheless, and the error is returned.
    pub(crate) async fn renew_each(&self, renewals: &[(&Grant, Retake)]) -> Result<Vec<bool>, StoreError> {
        let (mut held, mut updates, mut indexes) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (grant, retake)) in renewals.iter().enumerate() {
            let [stored, local] = grant.renewals(&self.rules, *retake);
            let local = self.fallback.apply(&local.adjustments, self.store.instances());
            held.push(local.iter().flatten().all(|result| result.outcome == AdjustmentOutcome::Applied));
            indexes.extend(stored.adjustments.iter().map(|_| index));
            updates.extend(stored.adjustments);
        }
        let mut failure = None;
        for (updates, indexes) in updates.chunks(MAX_SLOTS_PER_CALL).zip(indexes.chunks(MAX_SLOTS_PER_CALL)) {
            let results = self.apply(updates).await;
            failure = failure.or_else(|| results.first_error().cloned());
            for ((index, update), result) in indexes.iter().zip(updates).zip(results.iter()) {
                let is_held = matches!(result, Ok(result) if result.outcome == AdjustmentOutcome::Applied);
                // A shadow rule affects no request.
                held[*index] &= is_held || update.gate.role() == Role::Shadow;
            }
        }
        failure.map_or(Ok(held), Err)
    }

    /// Runs `work` while it holds the slots of `grant`: renews them as long as the work lasts, and [releases](Ending::Release) the grant when the
    /// work ends, panics or is dropped.
    ///
    /// The error means that the slots are no longer held, and others may hold them: the work was dropped then. A store that fails ends
    /// nothing: it is asked again, and the work goes on until the store says that the slots are not held. A store that was emptied
    /// ends nothing either, as long as there is room: the slots are [taken again](Retake::IfLost). The time since they were last
    /// held is measured by `timer`, at first from this call, so call it as soon as the decision is made. Work that blocks the thread
    /// for longer than the lease prevents renewals.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tidegate::{Limit, Limiter, MemoryStore, Request, Rule, RuleSet, Timer};
    ///
    /// # async fn export(timer: &impl Timer) -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = Limit::concurrency(3, Duration::from_secs(30))?;
    /// let limiter = Limiter::new(RuleSet::new([Rule::new("exports", limit)])?, MemoryStore::new());
    ///
    /// let mut decision = limiter.check(&Request::new("export")).await?;
    /// if decision.is_allowed() {
    ///     limiter.hold(decision.take_grant(), timer, async { /* … the work, for as long as it takes */ }).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hold<W: Future>(&self, grant: Grant, timer: &impl Timer, work: W) -> Result<W::Output, GrantError> {
        let release = DropGuard::new(|| self.spawn_end_of(&grant, &Ending::Release));
        let mut work = pin!(work);
        let mut renewals = pin!(self.renew_until_lost(&grant, timer));
        let result = poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            renewals.as_mut().poll(context).map(Err)
        })
        .await;
        drop(release);
        result
    }

    /// Renews the slots of `grant`, which were taken just now, again and again. Returns when they are no longer held.
    pub(super) async fn renew_until_lost(&self, grant: &Grant, timer: &(impl Timer + ?Sized)) -> GrantError {
        let Some(lease) = grant.lease() else { return pending().await };
        let mut confirmed_at = timer.now();
        loop {
            timer.sleep(lease / RENEWALS_PER_LEASE).await;
            let now = timer.now();
            // Backward steps of the clock count as no time, so it must be one that does not step back.
            let is_current = now.since(confirmed_at) < lease;
            // Strict at first: a renewal that the store executes late, after the release at the end of the work, takes nothing again.
            let mut result = self.renew(grant, Retake::No).await;
            if is_current && matches!(result, Err(GrantError::NotHeld)) {
                result = self.renew(grant, Retake::IfLost).await;
            }
            match result {
                Ok(()) => confirmed_at = now,
                Err(GrantError::Store(_)) => {}
                Err(error) => return error,
            }
        }
    }
}
