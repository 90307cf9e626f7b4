//! Workers on all instances that take a slot of one concurrency limit, hold it for a moment and release it, and the greatest number of
//! them that held one at the same time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::grants::GrantError;
use tidegate::{Ending, Limit, Limiter, OnFailure, Request, Rule};
use tidegate_redis::RedisStore;

use super::fault::{Fault, StateLoss};
use super::load::Instance;
use crate::suite::{CountingLoad, broken_promises};

/// The slots. There are more workers than slots.
pub(super) const MAX_HELD: u64 = 3;
pub(super) const WORKERS: usize = 2;
/// Longer than any worker holds a slot on a busy machine, so that none runs out.
const LEASE: Duration = Duration::from_mins(5);
const ACTION: &str = "lease";

#[derive(Clone, Debug, Default)]
pub(super) struct LeaseCounts {
    pub(super) taken: u64,
    /// Slots whose release is not confirmed, and decisions that may have taken a slot: they are held until their lease ends.
    pub(super) unconfirmed: u64,
    /// Releases of slots that the store did not know.
    pub(super) not_held: u64,
    /// The workers that hold a slot, and the greatest number of them.
    working: u64,
    pub(super) peak: u64,
}

/// The result of one fault for holders of slots.
#[derive(Clone, Debug)]
pub struct LeaseOutcome {
    pub(super) fault: Fault,
    pub(super) counts: LeaseCounts,
    /// The slots that the store counts as held at the end, when nobody holds one.
    pub(super) left: u64,
}

pub(super) struct LeaseLoad {
    load: CountingLoad<LeaseCounts>,
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
        let mut load = CountingLoad::new(LeaseCounts::default());
        for instance in instances.iter().flat_map(|instance| [instance; WORKERS]) {
            let instance = Arc::clone(instance);
            load.spawn(pace, |mut pace, counts| async move {
                while !pace.is_stopped() {
                    let limiter = instance.now();
                    match limiter.check(&request(tenant)).await.map(|mut decision| decision.take_grant()) {
                        Ok(mut lease) if !lease.is_empty() => {
                            count(&counts, |counts| {
                                counts.taken += 1;
                                counts.working += 1;
                                counts.peak = counts.peak.max(counts.working);
                            });
                            pace.pause().await;
                            count(&counts, |counts| counts.working -= 1);
                            match limiter.end(&mut lease, &Ending::Release).await {
                                Ok(()) => {}
                                Err(GrantError::NotHeld) => count(&counts, |counts| counts.not_held += 1),
                                Err(_) => count(&counts, |counts| counts.unconfirmed += 1),
                            }
                            continue;
                        }
                        Ok(_) => {}
                        Err(error) => {
                            count(&counts, |counts| counts.unconfirmed += u64::from(error.is_possibly_applied()));
                        }
                    }
                    pace.pause().await;
                }
            });
        }
        Self { load, tenant }
    }

    /// Waits until slots are taken again, if there are any that the fault did not leave taken.
    pub(super) async fn continue_for(&self, slots: u64) {
        let enough = self.load.counts().taken + slots;
        let is_done = |counts: &LeaseCounts| counts.taken >= enough || counts.unconfirmed >= MAX_HELD;
        self.load.until("nobody gets a slot", is_done).await;
    }

    /// Stops the workers, and asks `heir` what is held.
    pub(super) async fn stop(self, fault: Fault, heir: &Limiter<RedisStore>) -> LeaseOutcome {
        let counts = self.load.stop().await;
        let remaining = heir.peek(&request(self.tenant)).await.unwrap().remaining().unwrap();
        LeaseOutcome { fault, counts, left: MAX_HELD - remaining }
    }
}

impl LeaseOutcome {
    /// Describes every broken promise.
    pub fn problems(&self) -> Vec<String> {
        let LeaseCounts { taken, unconfirmed, not_held, peak, .. } = self.counts;
        // A clock that jumps over the lease ends it.
        let forgets = self.fault.loss() != StateLoss::Nothing || self.fault == Fault::ClockJumps;
        let bound = if forgets { 2 * MAX_HELD } else { MAX_HELD };
        let promises = [
            (taken > 0, "nobody got a slot"),
            (peak <= bound, "more slots were held than there are"),
            (forgets || not_held == 0, "the store lost a slot that was held"),
            (self.left <= unconfirmed, "a released slot is still held"),
        ];
        broken_promises(&format!("{}, leases", self.fault.name()), self, promises)
    }
}

fn count(counts: &Mutex<LeaseCounts>, add: impl FnOnce(&mut LeaseCounts)) {
    add(&mut counts.lock().unwrap());
}

fn request(tenant: &'static str) -> Request<'static> {
    Request::new(ACTION).with_attribute("tenant", tenant)
}
