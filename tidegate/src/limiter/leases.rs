//! Leases: renewing and releasing the slots of concurrency limits, and holding them while a worker runs.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::lease::{Lease, LeaseError, Retake};
use crate::plan::{Check, LeaseOwner, Plan, ReservationTerms, Role};
use crate::store::{Adjustment, Store, StoreError};
use crate::{Limiter, Timer};

/// A lease is renewed after this part of its duration, so that a renewal may fail twice before it runs out.
pub(super) const RENEWALS_PER_LEASE: u32 = 3;

/// The largest number of slots in one call to the store.
const MAX_SLOTS_PER_CALL: usize = 256;

/// Leases
impl<S: Store> Limiter<S> {
    /// Holds the slots of `lease` for another [duration](Lease::duration), from now on.
    pub async fn renew(&self, lease: &Lease) -> Result<(), LeaseError> {
        self.renew_one(lease, Retake::No).await
    }

    /// [Renews](Self::renew) `lease`, and takes slots again that the store has lost, because it was emptied or failed over, if they fit
    /// within the limit now.
    ///
    /// For holders who know, by their own clock, that less than the [duration](Lease::duration) has passed since the slots were last
    /// taken or renewed, measured from before that call. Otherwise the slots may have run out, and others may have worked in their
    /// place: then the work must start over with a new decision. Not after a release either, or a slot is taken that nobody releases.
    pub async fn renew_or_retake(&self, lease: &Lease) -> Result<(), LeaseError> {
        self.renew_one(lease, Retake::IfLost).await
    }

    async fn renew_one(&self, lease: &Lease, retake: Retake) -> Result<(), LeaseError> {
        match self.renew_each(&[(lease, retake)]).await {
            Ok(held) if held.iter().all(|held| *held) => Ok(()),
            Ok(_) => Err(LeaseError::NotHeld),
            Err(error) => Err(LeaseError::Store(error)),
        }
    }

    /// Renews leases together. Returns for each whether all its slots are held, except for those of shadow rules.
    ///
    /// If the store fails for some of them, the others are renewed nevertheless, and the error is returned.
    pub(crate) async fn renew_each(&self, renewals: &[(&Lease, Retake)]) -> Result<Vec<bool>, StoreError> {
        let (mut held, mut updates, mut indexes) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (lease, retake)) in renewals.iter().enumerate() {
            let [stored, local] = lease.renewals(&self.rules, *retake);
            held.push(self.fallback.update_slots(&local, self.store.instances()));
            indexes.extend(stored.iter().map(|_| index));
            updates.extend(stored);
        }
        let mut failure = None;
        for (updates, indexes) in updates.chunks(MAX_SLOTS_PER_CALL).zip(indexes.chunks(MAX_SLOTS_PER_CALL)) {
            match self.observe_error(self.store.update_slots(updates).await) {
                Ok(results) => {
                    for ((index, update), is_held) in indexes.iter().zip(updates).zip(results) {
                        // A shadow rule affects no request.
                        held[*index] &= is_held || update.gate.role() == Role::Shadow;
                    }
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(held), Err)
    }

    /// Releases the slots of `lease`. If the store fails, they run out after their [duration](Lease::duration).
    #[allow(clippy::needless_pass_by_value, reason = "a lease is good for one release")]
    pub async fn release(&self, lease: Lease) -> Result<(), LeaseError> {
        let [stored, local] = lease.releases(&self.rules);
        let mut is_held = self.fallback.update_slots(&local, self.store.instances());
        let result = if stored.is_empty() { Ok(Vec::new()) } else { self.store.update_slots(&stored).await };
        for released in [&stored, &local] {
            self.waiting.slot_releases.notify(released);
        }
        is_held &= self.observe_error(result).map_err(LeaseError::Store)?.iter().all(|held| *held);
        if is_held { Ok(()) } else { Err(LeaseError::NotHeld) }
    }

    /// Starts to [release](Self::release) without waiting for it, for a future that is being dropped.
    #[allow(clippy::needless_pass_by_value, reason = "a lease is good for one release")]
    pub fn release_soon(&self, lease: Lease) {
        self.release_in_background(&lease);
    }

    /// Runs `work` while it holds `lease`: renews it as long as the work lasts, and releases it when the work ends, panics or is
    /// dropped.
    ///
    /// The error means that the slots are no longer held, and others may hold them: the work was dropped then. A store that fails ends
    /// nothing: it is asked again, and the work goes on until the store says that the slots are not held. A store that was emptied
    /// ends nothing either, as long as there is room: the slots are [taken again](Self::renew_or_retake). The time since they were last
    /// held is measured by `timer`, at first from this call, so call it as soon as the decision is made. Work that blocks the thread
    /// for longer than the lease prevents renewals.
    pub async fn hold<W: Future>(&self, lease: Lease, timer: &impl Timer, work: W) -> Result<W::Output, LeaseError> {
        let guard = ReleaseGuard { limiter: self, lease: &lease };
        let mut work = pin!(work);
        let mut renewals = pin!(self.renew_until_lost(&lease, timer));
        let result = poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            renewals.as_mut().poll(context).map(Err)
        })
        .await;
        drop(guard);
        result
    }

    /// Renews `lease`, which was taken just now, again and again. Returns when it is no longer held.
    pub(super) async fn renew_until_lost(&self, lease: &Lease, timer: &(impl Timer + ?Sized)) -> LeaseError {
        let mut confirmed_at = timer.now();
        loop {
            timer.sleep(lease.duration() / RENEWALS_PER_LEASE).await;
            let now = timer.now();
            // Backward steps of the clock count as no time, so it must be one that does not step back.
            let is_current = now.since(confirmed_at) < lease.duration();
            // Strict at first: a renewal that the store executes late, after the release at the end of the work, takes nothing again.
            let mut result = self.renew(lease).await;
            if is_current && matches!(result, Err(LeaseError::NotHeld)) {
                result = self.renew_or_retake(lease).await;
            }
            match result {
                Ok(()) => confirmed_at = now,
                Err(LeaseError::Store(_)) => {}
                Err(LeaseError::NotHeld) => return LeaseError::NotHeld,
            }
        }
    }

    pub(super) fn release_in_background(&self, lease: &Lease) {
        let [stored, local] = lease.releases(&self.rules);
        self.fallback.update_slots(&local, self.store.instances());
        self.waiting.slot_releases.notify(&local);
        if !stored.is_empty() {
            self.adjust_soon(&stored);
        }
    }
}

/// Releases a lease on drop.
struct ReleaseGuard<'l, S: Store> {
    limiter: &'l Limiter<S>,
    lease: &'l Lease,
}

impl<S: Store> Drop for ReleaseGuard<'_, S> {
    fn drop(&mut self) {
        self.limiter.release_in_background(self.lease);
    }
}

/// Releases the slots and holds of a plan on drop, unless its decision is known: nobody would renew or release them if their caller has
/// gone away during the call, or after a failure in which the plan may have been applied. A reservation with an idempotency key keeps
/// them: its caller may repeat it, and a late release would end the repeated one.
pub(super) struct UndecidedSlots<'p, 'r, S: Store> {
    limiter: &'p Limiter<S>,
    slots: Option<(&'p Plan<'r>, LeaseOwner)>,
}

impl<'p, 'r, S: Store> UndecidedSlots<'p, 'r, S> {
    #[inline(always)]
    pub(super) fn new(limiter: &'p Limiter<S>, plan: &'p Plan<'r>) -> Self {
        let is_repeatable = plan.reservation().is_some_and(ReservationTerms::is_keyed);
        let owner = plan.lease_owner().filter(|_| !plan.is_peek() && !is_repeatable);
        Self { limiter, slots: owner.map(|owner| (plan, owner)) }
    }

    /// The result of the plan is known.
    #[inline(always)]
    pub(super) fn decided<T>(mut self, result: &Result<T, StoreError>) {
        if !matches!(result, Err(error) if error.is_possibly_applied()) {
            self.slots = None;
        }
    }
}

impl<'r, S: Store> Drop for UndecidedSlots<'_, 'r, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some((plan, owner)) = self.slots.take() {
            let release = |check: &Check<'r>| match plan.reservation() {
                _ if check.gate().limit().has_slots() => Some(Adjustment::release(check, owner)),
                Some(terms) if plan.is_hold(check) => Some(Adjustment::hold_release(check, terms.position())),
                _ => None,
            };
            let releases: Vec<Adjustment<'_>> = plan.checks().iter().filter_map(release).collect();
            self.limiter.adjust_soon(&releases);
        }
    }
}
