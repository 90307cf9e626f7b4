//! `HeldLeases`: the leases of many requests of one process, renewed together.
//!
//! ```text
//! hold ──▶ LeaseTable ◀── HeldLease (drop: release in the background)
//!              │  due next
//!              ▼
//!             run ──▶ renew_each, in batches ──▶ held: due again │ not held: taken again, or lost
//! ```
//!
//! A renewal is strict first: one that the store executes after the release of the same slot has no effect. Only slots that the store
//! does not have are taken again by a second call, and released again if their holder went away during that call.

mod held_lease;
mod lease_table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

pub use held_lease::HeldLease;
use lease_table::{DueLease, LeaseTable};

use super::leases::RENEWALS_PER_LEASE;
use crate::grant::{Ending, Grant, Retake};
use crate::limit::MAX_WINDOW;
use crate::store::{Store, StoreError};
use crate::{Limiter, Timer};

/// The most leases that one call renews: neither the store nor the other leases wait long for it.
const MAX_LEASES_PER_CALL: usize = 256;

/// A lease goes along with those that are due if it would be due within this part of its own interval, and is asked for again after it
/// if the store fails.
const INTERVAL_PARTS: u32 = 4;

/// The leases of the requests that a process serves. It renews them in batches as long as they are held: after a third of their
/// duration, together with those that are due within the next twelfth of theirs.
///
/// [`run`](Self::run) makes the renewals. The host of the leases spawns it once, on the runtime of its choice.
///
/// ```
/// # use std::sync::Arc;
/// use tidegate::grants::HeldLeases;
/// use tidegate::{Limiter, MemoryStore, Request, Timer};
///
/// # struct Runtime;
/// # impl Runtime { fn spawn(&self, _: impl Future) {} }
/// # async fn serve(
/// #     limiter: Arc<Limiter<MemoryStore>>, timer: Arc<dyn Timer>, runtime: Runtime,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let leases = HeldLeases::new(timer);
/// let current = Arc::clone(&limiter);
/// runtime.spawn(leases.run(move || Arc::clone(&current)));
///
/// let mut decision = limiter.check(&Request::new("export")).await?;
/// let held = leases.hold(&limiter, decision.take_grant());
/// // … serve the request, for as long as it takes
/// drop(held);
/// # Ok(())
/// # }
/// ```
pub struct HeldLeases<S> {
    table: Arc<LeaseTable<S>>,
    timer: Arc<dyn Timer>,
}

impl<S: Store + 'static> HeldLeases<S> {
    /// No leases yet. They are due by `timer`.
    pub fn new(timer: Arc<dyn Timer>) -> Self {
        Self { table: Arc::new(LeaseTable::new()), timer }
    }

    /// Holds `lease`, which `limiter` has just granted: it is renewed from now on, and released when the last clone of the result is
    /// dropped.
    pub fn hold(&self, limiter: &Arc<Limiter<S>>, lease: Grant) -> HeldLease {
        let interval = interval(lease.lease().unwrap_or(MAX_WINDOW));
        let due = self.timer.now().plus(interval);
        LeaseTable::insert(&self.table, Arc::clone(limiter), lease, interval, due)
    }

    /// Renews what is due, under the rules of the limiter that `current_limiter` returns then. It ends when this value is dropped and
    /// nothing is held any more.
    ///
    /// A slot that the store does not have is taken again if there is room, and lost otherwise. If the store fails, nothing is lost;
    /// it is asked again. Only one such future may run at a time; without one, the slots run out after their duration. After one that was
    /// dropped, another one goes on.
    pub fn run(
        &self,
        mut current_limiter: impl FnMut() -> Arc<Limiter<S>> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let renewals = Renewals { table: Arc::clone(&self.table), timer: Arc::clone(&self.timer) };
        async move {
            renewals.table.resume(renewals.timer.now());
            while renewals.wait().await {
                renewals.renew_due(&current_limiter()).await;
            }
        }
    }
}

impl<S> HeldLeases<S> {
    /// The number of leases that are held.
    pub fn held(&self) -> usize {
        self.table.held()
    }

    /// How many leases were lost while they were held.
    pub fn lost(&self) -> u64 {
        self.table.lost()
    }
}

/// The time from a renewal to the next.
fn interval(lease: Duration) -> Duration {
    lease / RENEWALS_PER_LEASE
}

impl<S> Drop for HeldLeases<S> {
    fn drop(&mut self) {
        self.table.close();
    }
}

impl<S> fmt::Debug for HeldLeases<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLeases").field("held", &self.table.held()).finish_non_exhaustive()
    }
}

/// What [`HeldLeases::run`] needs.
struct Renewals<S> {
    table: Arc<LeaseTable<S>>,
    timer: Arc<dyn Timer>,
}

impl<S: Store + 'static> Renewals<S> {
    /// Waits until a lease is due. False if there will be none.
    async fn wait(&self) -> bool {
        loop {
            if self.table.is_finished() {
                return false;
            }
            let (next, now) = (self.table.next_due(), self.timer.now());
            if next.is_some_and(|next| next <= now) {
                return true;
            }
            let mut sleep = next.map(|next| self.timer.sleep(next.since(now)));
            poll_fn(|context| {
                if sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(context).is_ready()) {
                    return Poll::Ready(());
                }
                self.table.poll_changed(next, context)
            })
            .await;
        }
    }

    /// Renews what is due, also after a failure: in a cluster, the slots of the next batch may be on a server that answers.
    async fn renew_due(&self, limiter: &Arc<Limiter<S>>) {
        let due = self.table.take_due(self.timer.now());
        for batch in due.chunks(MAX_LEASES_PER_CALL) {
            match self.renew(limiter, batch).await {
                Ok(()) => {}
                Err(error) if error.is_transient() || batch.len() == 1 => self.postpone(batch),
                // One that the store cannot read must not keep the others from being renewed.
                Err(_) => {
                    for lease in batch.chunks(1) {
                        if self.renew(limiter, lease).await.is_err() {
                            self.postpone(lease);
                        }
                    }
                }
            }
        }
    }

    async fn renew(&self, limiter: &Arc<Limiter<S>>, due: &[DueLease]) -> Result<(), StoreError> {
        let started = self.timer.now();
        let is_held = renew_each(limiter, due, Retake::No).await?;
        let mut missing = Vec::new();
        for (lease, is_held) in due.iter().zip(is_held) {
            if is_held {
                self.table.renewed(lease, limiter, started);
            } else if self.table.contains(lease) {
                missing.push(lease.clone());
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let retaken = renew_each(limiter, &missing, Retake::IfLost).await;
        for lease in missing.iter().filter(|lease| !self.table.contains(lease)) {
            // The holder went away, and the store may have executed its release before this call.
            limiter.spawn_end_of(lease.lease(), &Ending::Release);
        }
        for (lease, is_held) in missing.iter().zip(retaken?) {
            if is_held {
                self.table.renewed(lease, limiter, started);
            } else {
                self.table.lose(lease);
            }
        }
        Ok(())
    }

    fn postpone(&self, due: &[DueLease]) {
        let now = self.timer.now();
        for lease in due {
            self.table.postpone(lease, now);
        }
    }
}

/// Whether each lease is held now.
async fn renew_each<S: Store>(limiter: &Limiter<S>, due: &[DueLease], retake: Retake) -> Result<Vec<bool>, StoreError> {
    let renewals: Vec<(&Grant, Retake)> = due.iter().map(|due| (due.lease(), retake)).collect();
    limiter.renew_each(&renewals).await
}
