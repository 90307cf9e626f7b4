//! `LeaseLoad`: workers on all instances that take a slot of one concurrency limit, hold it for a moment and release it, and the greatest
//! number of them that held one at the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{LeaseError, Limit, Limiter, OnFailure, Request, Rule};
use tidegate_redis::RedisStore;

use super::fault::{Fault, StateLoss};
use super::load::Instance;
use crate::traffic::Workers;
use conformance::suite::wait_until;

/// The slots. There are more workers than slots.
pub(super) const MAX_HELD: u64 = 3;
pub(super) const WORKERS: usize = 2;
/// Longer than any worker holds a slot on a busy machine, so that none runs out.
const LEASE: Duration = Duration::from_mins(5);
const ACTION: &str = "lease";

/// What the workers got.
#[derive(Clone, Debug, Default)]
pub struct LeaseCounts {
    /// Slots that were taken.
    pub taken: u64,
    /// Slots whose release is not confirmed, and decisions that may have taken a slot: they are held until their lease ends.
    pub unconfirmed: u64,
    /// Releases of slots that the store did not know.
    pub not_held: u64,
    /// The greatest number of workers that held a slot at the same time.
    pub peak: u64,
}

/// The result of one fault for holders of slots.
#[derive(Clone, Debug)]
pub struct LeaseOutcome {
    /// The fault.
    pub fault: Fault,
    /// The slots.
    pub counts: LeaseCounts,
    /// The slots that the store counts as held at the end, when nobody holds one.
    pub left: u64,
}

/// Running workers and their counts.
pub(super) struct LeaseLoad {
    counts: Arc<Mutex<LeaseCounts>>,
    workers: Workers,
    tenant: &'static str,
}

impl LeaseLoad {
    /// The rule. While the store fails, nobody gets a slot.
    pub(super) fn rule() -> Rule {
        let limit = Limit::concurrency(MAX_HELD, LEASE).unwrap();
        Rule::new(ACTION, limit).with_action(ACTION).with_per(["tenant"]).with_on_failure(OnFailure::Closed)
    }

    /// Starts the workers; they run until [`stop`](Self::stop).
    pub(super) fn start(instances: &[Arc<Instance>], tenant: &'static str, pace: Duration) -> Self {
        let (counts, working) = (Arc::new(Mutex::new(LeaseCounts::default())), Arc::new(AtomicU64::new(0)));
        let mut workers = Workers::default();
        for instance in instances.iter().flat_map(|instance| [instance; WORKERS]) {
            let (instance, working, counts) = (Arc::clone(instance), Arc::clone(&working), Arc::clone(&counts));
            workers.spawn(pace, |mut pace| async move {
                while !pace.is_stopped() {
                    let limiter = instance.now();
                    match limiter.check(&request(tenant)).await.map(|decision| decision.lease()) {
                        Ok(Some(lease)) => {
                            let held = working.fetch_add(1, Ordering::SeqCst) + 1;
                            count(&counts, |counts| counts.taken += 1);
                            count(&counts, |counts| counts.peak = counts.peak.max(held));
                            pace.pause().await;
                            working.fetch_sub(1, Ordering::SeqCst);
                            match limiter.release(lease).await {
                                Ok(()) => {}
                                Err(LeaseError::NotHeld) => count(&counts, |counts| counts.not_held += 1),
                                Err(_) => count(&counts, |counts| counts.unconfirmed += 1),
                            }
                        }
                        Ok(None) => pace.pause().await,
                        Err(error) => {
                            count(&counts, |counts| counts.unconfirmed += u64::from(error.is_possibly_applied()));
                            pace.pause().await;
                        }
                    }
                }
            });
        }
        Self { counts, workers, tenant }
    }

    /// Waits until slots are taken again, if there are any that the fault did not leave taken.
    pub(super) async fn continue_for(&self, slots: u64) {
        let counts = || self.counts.lock().unwrap().clone();
        let start = counts().taken;
        let is_done = || counts().taken >= start + slots || counts().unconfirmed >= MAX_HELD;
        wait_until("nobody gets a slot", is_done, || format!("{:?}", counts())).await;
    }

    /// Stops the workers, and asks `heir` what is held.
    pub(super) async fn stop(self, fault: Fault, heir: &Limiter<RedisStore>) -> LeaseOutcome {
        self.workers.stop().await;
        let remaining = heir.peek(&request(self.tenant)).await.unwrap().remaining().unwrap();
        let counts = self.counts.lock().unwrap().clone();
        LeaseOutcome { fault, counts, left: MAX_HELD - remaining }
    }
}

impl LeaseOutcome {
    /// Describes every broken promise.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut promise = |kept: bool, what: &str| {
            if !kept {
                problems.push(format!("{}, leases: {what}: {self:?}", self.fault.name()));
            }
        };
        let LeaseCounts { taken, unconfirmed, not_held, peak } = self.counts;
        // A clock that jumps over the lease ends it.
        let forgets = self.fault.loss() != StateLoss::Nothing || self.fault == Fault::ClockJumps;
        let bound = if forgets { 2 * MAX_HELD } else { MAX_HELD };
        promise(taken > 0, "nobody got a slot");
        promise(peak <= bound, "more slots were held than there are");
        promise(forgets || not_held == 0, "the store lost a slot that was held");
        promise(self.left <= unconfirmed, "a released slot is still held");
        problems
    }
}

fn count(counts: &Mutex<LeaseCounts>, add: impl FnOnce(&mut LeaseCounts)) {
    add(&mut counts.lock().unwrap());
}

fn request(tenant: &'static str) -> Request<'static> {
    Request::new(ACTION).with_attribute("tenant", tenant)
}
