//! `Load`: the clients of one round, and their notes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;

use super::call::{Answer, CallRecord};
use super::client::{LoadClient, PACE};
use super::instance::Instance;
use super::rules::Quota;
use crate::traffic::Workers;

/// Clients at the same time.
pub const CLIENTS: usize = 6;

/// The clients of one round.
pub(super) struct Load {
    round: u32,
    tenants: Vec<String>,
    instances: Vec<Arc<Instance>>,
    may_repeat_reservations: bool,
    /// Finished calls.
    calls: AtomicU64,
    /// Acknowledged calls under each quota.
    acknowledged: [AtomicU64; 4],
    notes: Mutex<Vec<CallRecord>>,
}

impl Load {
    pub(super) fn new(
        round: u32,
        tenants: Vec<String>,
        instances: &[Arc<Instance>],
        may_repeat_reservations: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            round,
            may_repeat_reservations,
            tenants,
            instances: instances.to_vec(),
            calls: AtomicU64::new(0),
            acknowledged: Default::default(),
            notes: Mutex::default(),
        })
    }

    /// Starts all clients.
    pub(super) fn start(self: &Arc<Self>, rng: &mut Rng) -> Workers {
        let mut clients = Workers::default();
        for number in 0..CLIENTS {
            let client = LoadClient::new(self, number, rng.u64(..));
            clients.spawn(PACE, |pace| client.run(pace));
        }
        clients
    }

    pub(super) const fn round(&self) -> u32 {
        self.round
    }

    /// Whether a key may be reserved again. One that has run out would be a new reservation.
    pub(super) const fn may_repeat_reservations(&self) -> bool {
        self.may_repeat_reservations
    }

    pub(super) fn tenants(&self) -> &[String] {
        &self.tenants
    }

    /// The number of finished calls.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The number of calls under this quota that were answered by a decision.
    pub(super) fn decided(&self, quota: Quota) -> u64 {
        self.acknowledged[quota as usize].load(Ordering::Relaxed)
    }

    pub(super) fn pick_instance(&self, rng: &mut Rng) -> (usize, Arc<Instance>) {
        let index = rng.usize(..self.instances.len());
        (index, Arc::clone(&self.instances[index]))
    }

    pub(super) fn note(&self, call: CallRecord) {
        if matches!(call.answer, Answer::Done | Answer::Denied) {
            self.acknowledged[call.account.quota as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.notes.lock().unwrap().push(call);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The last notes, as text.
    pub(super) fn latest_notes(&self, count: usize) -> Vec<String> {
        let notes = self.notes.lock().unwrap();
        notes[notes.len().saturating_sub(count)..].iter().map(ToString::to_string).collect()
    }

    /// The notes so far.
    pub(super) fn take_notes(&self) -> Vec<CallRecord> {
        std::mem::take(&mut self.notes.lock().unwrap())
    }
}
