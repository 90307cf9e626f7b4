//! Leases: renewing and releasing the slots of concurrency limits, and holding them while a worker runs.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::lease::{Lease, RenewError};
use crate::plan::{LeaseOwner, Plan};
use crate::store::{Adjustment, Store, StoreError};
use crate::{Limiter, Timer};

/// A lease is renewed after this part of its duration, so that a renewal may fail twice before it runs out.
const RENEWALS_PER_LEASE: u32 = 3;

/// Leases
impl<S: Store> Limiter<S> {
    /// Holds the slots of `lease` for another [duration](Lease::duration), from now on.
    pub async fn renew(&self, lease: &Lease) -> Result<(), RenewError> {
        let [stored, local] = lease.renewals(&self.rules);
        let mut is_held = local.is_empty() || self.fallback.renew(&local).iter().all(|held| *held);
        if !stored.is_empty() {
            let held = self.observe_error(self.store.renew(&stored).await).map_err(RenewError::Store)?;
            is_held &= held.iter().all(|held| *held);
        }
        if is_held { Ok(()) } else { Err(RenewError::Lost) }
    }

    /// Releases the slots of `lease`. Slots that are no longer held are ignored. If it fails, they run out after their
    /// [duration](Lease::duration).
    #[allow(clippy::needless_pass_by_value, reason = "a lease is good for one release")]
    pub async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        let [stored, local] = lease.releases(&self.rules);
        self.fallback.release(&local);
        self.adjust(&stored).await
    }

    /// Starts to [release](Self::release) without waiting for it, for a future that is being dropped.
    #[allow(clippy::needless_pass_by_value, reason = "a lease is good for one release")]
    pub fn release_soon(&self, lease: Lease) {
        self.release_in_background(&lease);
    }

    /// Runs `work` while it holds `lease`: renews it as long as the work lasts, and releases it when the work ends, panics or is
    /// dropped.
    ///
    /// The error means that the slots were lost, and others may hold them: the work was dropped then. A store that fails is asked again;
    /// the slots count as lost only when the store says so. Work that blocks the thread for longer than the lease prevents renewals.
    pub async fn hold<W: Future>(&self, lease: Lease, timer: &impl Timer, work: W) -> Result<W::Output, RenewError> {
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

    /// Renews `lease` again and again. Returns when it is lost.
    async fn renew_until_lost(&self, lease: &Lease, timer: &impl Timer) -> RenewError {
        loop {
            timer.sleep(lease.duration() / RENEWALS_PER_LEASE).await;
            if let Err(RenewError::Lost) = self.renew(lease).await {
                return RenewError::Lost;
            }
        }
    }

    fn release_in_background(&self, lease: &Lease) {
        let [stored, local] = lease.releases(&self.rules);
        self.fallback.release(&local);
        if !stored.is_empty() {
            self.store.adjust_soon(&stored);
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

/// Releases the slots of a plan on drop, unless its decision is known: nobody would renew or release slots whose caller has gone away
/// during the call, or after a failure in which the plan may have been applied.
pub(super) struct UndecidedSlots<'p, 'r, S: Store> {
    store: &'p S,
    slots: Option<(&'p Plan<'r>, LeaseOwner)>,
}

impl<'p, 'r, S: Store> UndecidedSlots<'p, 'r, S> {
    #[inline(always)]
    pub(super) fn new(store: &'p S, plan: &'p Plan<'r>) -> Self {
        let owner = plan.lease_owner().filter(|_| !plan.is_peek());
        Self { store, slots: owner.map(|owner| (plan, owner)) }
    }

    /// The result of the plan is known.
    #[inline(always)]
    pub(super) fn decided<T>(mut self, result: &Result<T, StoreError>) {
        if !matches!(result, Err(error) if error.is_possibly_applied()) {
            self.slots = None;
        }
    }
}

impl<S: Store> Drop for UndecidedSlots<'_, '_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some((plan, owner)) = self.slots.take() {
            let held = plan.checks().iter().filter(|check| check.gate().limit().is_held());
            let releases: Vec<Adjustment<'_>> = held.map(|check| Adjustment::release(check, owner)).collect();
            self.store.adjust_soon(&releases);
        }
    }
}
