//! `Load`: the clients of one round, and their notes.

use std::sync::{Arc, Mutex};

use fastrand::Rng;

use super::call::{Answer, CallRecord};
use super::client::{LoadClient, PACE};
use super::instance::Instance;
use super::rules::Quota;
use crate::traffic::Workers;

pub(super) const CLIENTS: usize = 6;

/// What the clients of one round share.
pub(super) struct Load {
    pub(super) round: u32,
    pub(super) tenants: Vec<String>,
    pub(super) instances: Vec<Arc<Instance>>,
    /// Whether a key may be reserved again. One that has run out would be a new reservation.
    pub(super) may_repeat_reservations: bool,
    /// The finished calls.
    pub(super) notes: Mutex<Vec<CallRecord>>,
}

impl Load {
    pub(super) fn start(self: &Arc<Self>, rng: &mut Rng) -> Workers {
        let mut clients = Workers::default();
        for number in 0..CLIENTS {
            let client = LoadClient::new(self, number, rng.u64(..));
            clients.spawn(PACE, |pace| client.run(pace));
        }
        clients
    }

    pub(super) fn calls(&self) -> u64 {
        self.notes.lock().unwrap().len() as u64
    }

    /// The number of calls under this quota that were answered by a decision.
    pub(super) fn decided(&self, quota: Quota) -> u64 {
        let is_decided =
            |call: &&CallRecord| call.account.quota == quota && matches!(call.answer, Answer::Done | Answer::Denied);
        self.notes.lock().unwrap().iter().filter(is_decided).count() as u64
    }

    pub(super) fn latest_notes(&self, count: usize) -> String {
        let notes = self.notes.lock().unwrap();
        let latest: Vec<_> = notes[notes.len().saturating_sub(count)..].iter().map(ToString::to_string).collect();
        latest.join("\n")
    }
}
