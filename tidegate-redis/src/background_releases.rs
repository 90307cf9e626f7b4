//! `BackgroundReleases`: slots whose holders are gone, released together.
//!
//! Nobody waits for such a release. Those that come while a call is under way go together in the next one: a request that holds a slot
//! for a millisecond would otherwise cost the server a whole call for its release.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tidegate::spi::Adjustment;
use tokio::runtime::Handle;

use crate::adjust::{AdjustingTask, MAX_SLOT_UPDATES};
use crate::args::PackedAdjustment;
use crate::slot_map::slot_of;
use crate::store::RedisStore;

/// Releases that are sent together, to all slots of a cluster. The rest waits.
const MAX_RELEASES_UNDER_WAY: usize = 1024;

/// The releases that wait, and whether a task sends them.
#[derive(Default)]
pub(crate) struct BackgroundReleases(Mutex<WaitingReleases>);

#[derive(Default)]
struct WaitingReleases {
    /// With the slots of the cluster that their keys are in.
    waiting: Vec<(u16, PackedAdjustment)>,
    is_sending: bool,
}

impl RedisStore {
    /// Releases slots of concurrency limits, in a task. Without a tokio runtime they run out after their lease, and so they do if the
    /// call fails.
    pub(crate) fn release_soon(&self, releases: &[Adjustment<'_>]) {
        let Some(runtime) = Handle::try_current().ok().filter(|_| !releases.is_empty()) else { return };
        let is_cluster = self.router.is_cluster();
        let routes = self.cardinality.adjustment_routes(releases, self.instances());
        let packed = releases.iter().enumerate().map(|(index, release)| {
            let slot = if is_cluster { slot_of(release.key.partition()) } else { 0 };
            let route = routes.get(index).copied().unwrap_or_default();
            (slot, PackedAdjustment::new(&self.options.prefix, release, route))
        });
        if self.background_releases.add(packed) {
            runtime.spawn(send(self.clone(), AdjustingTask::new(&self.adjusting)));
        }
    }
}

/// Sends what waits, until nothing does.
async fn send(store: RedisStore, _adjusting: AdjustingTask) {
    let mut sender = Sender { releases: Arc::clone(&store.background_releases), is_done: false };
    while let Some(by_slot) = sender.take_next() {
        let slots = by_slot.iter().flat_map(|(slot, releases)| {
            let store = &store;
            releases.chunks(MAX_SLOT_UPDATES).map(move |releases| send_to_slot(store, *slot, releases))
        });
        join_all(slots).await;
    }
}

async fn send_to_slot(store: &RedisStore, slot: u16, releases: &[PackedAdjustment]) {
    let sent = store.router.send(slot, &store.packed_adjust_call(releases)).await;
    if sent.is_err_and(|failure| failure.mid_migration) {
        // The keys of a slot that is being migrated may be on two servers.
        for release in releases.chunks(1) {
            let _ = store.router.send(slot, &store.packed_adjust_call(release)).await;
        }
    }
}

impl BackgroundReleases {
    /// Adds releases. Whether the caller must start to send.
    fn add(&self, releases: impl Iterator<Item = (u16, PackedAdjustment)>) -> bool {
        let mut state = self.lock();
        state.waiting.extend(releases);
        !std::mem::replace(&mut state.is_sending, true)
    }

    fn lock(&self) -> MutexGuard<'_, WaitingReleases> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that sends.
struct Sender {
    releases: Arc<BackgroundReleases>,
    is_done: bool,
}

impl Sender {
    /// The next releases by slot of the cluster; if there are none, sending has ended.
    fn take_next(&mut self) -> Option<BTreeMap<u16, Vec<PackedAdjustment>>> {
        let mut state = self.releases.lock();
        if state.waiting.is_empty() {
            self.is_done = true;
            state.is_sending = false;
            return None;
        }
        let count = state.waiting.len().min(MAX_RELEASES_UNDER_WAY);
        let mut by_slot: BTreeMap<u16, Vec<PackedAdjustment>> = BTreeMap::new();
        for (slot, release) in state.waiting.drain(..count) {
            by_slot.entry(slot).or_default().push(release);
        }
        Some(by_slot)
    }
}

/// The runtime may be shut down during a call, and another one may use the store.
impl Drop for Sender {
    fn drop(&mut self) {
        if !self.is_done {
            self.releases.lock().is_sending = false;
        }
    }
}
