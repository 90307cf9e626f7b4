//! `BackgroundReleases`: slots and holds whose holders are gone, released or committed together.
//!
//! Nobody waits for such a release. Those that come while a call is under way go together in the next one: a request that holds a slot
//! for a millisecond would otherwise cost the server a whole call for its release. Those that fail are sent again; others do not wait for
//! them, since their servers may answer.
//!
//! A release is idempotent, since an owner takes a slot once. So a failed one can be sent until its lease is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::spi::Adjustment;
use tidegate::sync::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::adjust::{AdjustingTask, MAX_HOLD_ENDINGS, MAX_SLOT_UPDATES};
use crate::args::PackedAdjustment;
use crate::period_clock::MAX_STALE_ATTEMPTS;
use crate::reply::parse_adjust;
use crate::slot_map::slot_of;
use crate::store::RedisStore;
use crate::timer;

/// Releases that are sent together, to all slots of a cluster. The rest waits.
const MAX_RELEASES_UNDER_WAY: usize = 1024;

/// Releases that wait while the store fails. Slots and holds of further calls run out.
const MAX_WAITING_RELEASES: usize = 65_536;

/// How soon failed releases are sent again.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// The releases that wait, and whether a task sends them.
#[derive(Default)]
pub(crate) struct BackgroundReleases {
    state: Mutex<WaitingReleases>,
    /// Wakes the task while it waits to send the failed ones again.
    added: Notify,
}

#[derive(Default)]
struct WaitingReleases {
    waiting: Vec<WaitingRelease>,
    /// Those to send again later.
    failed: Vec<WaitingRelease>,
    is_sending: bool,
}

struct WaitingRelease {
    /// The slot of the cluster that the key is in.
    slot: u16,
    /// When the lease is over, and nothing is left to release.
    ends: Instant,
    /// Whether it ends a hold, else it releases a slot.
    is_hold: bool,
    release: PackedAdjustment,
}

impl RedisStore {
    /// Releases slots of concurrency limits, and ends holds, in a task. If the store fails, they are sent again until they would have run out: a decision
    /// may also be executed after the caller gave up. Without a tokio runtime, they run out.
    pub(crate) fn spawn_releases(&self, releases: &[Adjustment<'_>]) {
        let Some(runtime) = Handle::try_current().ok().filter(|_| !releases.is_empty()) else { return };
        let is_cluster = self.router.is_cluster();
        let routes = self.cardinality.adjustment_routes(releases, self.instances());
        let now = timer::now();
        let packed = releases.iter().enumerate().map(|(index, release)| WaitingRelease {
            slot: if is_cluster { slot_of(release.key.partition()) } else { 0 },
            ends: timer::after(now, release.hold_duration().unwrap_or_else(|| release.limit.max_window())),
            is_hold: release.is_hold_ending(),
            release: PackedAdjustment::new(
                self.options.namespace.as_str(),
                release,
                routes.get(index).copied().unwrap_or_default(),
                &self.pack_time(),
            ),
        });
        if self.background_releases.add(packed) {
            runtime.spawn(send(self.clone(), AdjustingTask::new(&self.adjusting)));
        }
    }
}

/// Sends what waits, until nothing does.
async fn send(store: RedisStore, _adjusting: AdjustingTask) {
    let mut sender = Sender { releases: Arc::clone(&store.background_releases), is_done: false };
    // Those of a task that ended with its runtime.
    sender.releases.retry_failed();
    let mut retry_at = None;
    loop {
        let now = timer::now();
        if retry_at.is_some_and(|retry_at| retry_at <= now) {
            sender.releases.retry_failed();
            retry_at = None;
        }
        if let Some(by_slot) = sender.releases.take_next(now) {
            let calls = by_slot.into_iter().map(|(slot, releases)| send_to_slot(&store, slot, releases));
            let failed: Vec<WaitingRelease> = join_all(calls).await.into_iter().flatten().collect();
            if !failed.is_empty() {
                sender.releases.add_failed(failed);
                retry_at = retry_at.or_else(|| Some(timer::after(timer::now(), RETRY_INTERVAL)));
            }
        } else if let Some(retry_at) = retry_at {
            let left = retry_at.saturating_duration_since(now);
            let _ = timer::timeout(left, sender.releases.added.notified()).await;
        } else if sender.end() {
            return;
        }
    }
}

/// Returns the releases to send again. They may have been executed, which does no harm.
async fn send_to_slot(store: &RedisStore, slot: u16, releases: Vec<WaitingRelease>) -> Vec<WaitingRelease> {
    let mut failed = Vec::new();
    let (holds, slots): (Vec<_>, Vec<_>) = releases.into_iter().partition(|release| release.is_hold);
    for mut batch in in_calls(slots, MAX_SLOT_UPDATES).into_iter().chain(in_calls(holds, MAX_HOLD_ENDINGS)) {
        match send_together(store, slot, &mut batch).await {
            SendResult::Done => {}
            SendResult::Retry => failed.extend(batch),
            // The keys of a slot that is being migrated may be on two servers, and one unreadable value fails the whole call.
            SendResult::Split => {
                for mut release in batch {
                    if send_together(store, slot, std::slice::from_mut(&mut release)).await == SendResult::Retry {
                        failed.push(release);
                    }
                }
            }
        }
    }
    failed
}

/// `releases` in groups of at most `most`.
fn in_calls(releases: Vec<WaitingRelease>, most: usize) -> Vec<Vec<WaitingRelease>> {
    let (mut groups, mut releases) = (Vec::new(), releases.into_iter());
    while releases.len() > 0 {
        groups.push(releases.by_ref().take(most).collect());
    }
    groups
}

/// What became of releases that were sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendResult {
    Done,
    /// They are to be sent again later.
    Retry,
    /// They can succeed one by one only, if at all.
    Split,
}

/// Sends releases by one call, again with other periods of quotas if theirs are over.
async fn send_together(store: &RedisStore, slot: u16, releases: &mut [WaitingRelease]) -> SendResult {
    for _ in 0..MAX_STALE_ATTEMPTS {
        let call = store.packed_adjust_call(releases.iter().map(|one| &one.release));
        let reply = match store.router.send(slot, &call).await {
            Ok(reply) => parse_adjust(&reply),
            Err(failure) if failure.error.is_transient() && !failure.mid_migration => return SendResult::Retry,
            Err(_) => return SendResult::Split,
        };
        let partitions = releases.iter().filter_map(|one| one.release.ledger_partition()).collect();
        drop(store.ledger.mark_after(partitions));
        let Some(reply) = reply.ok().filter(|reply| !reply.is_applied()) else { return SendResult::Done };
        if reply.is_stale {
            store.period_clock.set(reply.now);
            for one in releases.iter_mut() {
                one.release.repack(reply.now);
            }
            continue;
        }
        let found = reply.generations.iter();
        let found = found
            .filter_map(|(index, generation)| Some((releases.get(*index)?.release.ledger_partition()?, *generation)));
        if !store.ledger.learn(found) {
            // Those of other partitions do not wait until this one is rebuilt.
            return if releases.len() > 1 { SendResult::Split } else { SendResult::Retry };
        }
    }
    SendResult::Retry
}

impl BackgroundReleases {
    /// Adds the releases of one call. If there is no room for all of them, it adds none: a reservation is not committed under one limit
    /// and lost under another. Whether the caller must start to send.
    fn add(&self, releases: impl ExactSizeIterator<Item = WaitingRelease>) -> bool {
        let mut state = self.state.lock();
        let room = MAX_WAITING_RELEASES.saturating_sub(state.waiting.len() + state.failed.len());
        if releases.len() <= room {
            state.waiting.extend(releases);
        }
        let must_start = !std::mem::replace(&mut state.is_sending, true);
        drop(state);
        self.added.notify_one();
        must_start
    }

    fn add_failed(&self, releases: Vec<WaitingRelease>) {
        self.state.lock().failed.extend(releases);
    }

    /// Lets the failed ones wait with the others.
    fn retry_failed(&self) {
        let mut state = self.state.lock();
        let mut failed = std::mem::take(&mut state.failed);
        state.waiting.append(&mut failed);
    }

    /// The next releases by slot of the cluster, if any wait. Without those whose lease is over.
    fn take_next(&self, now: Instant) -> Option<BTreeMap<u16, Vec<WaitingRelease>>> {
        let mut state = self.state.lock();
        state.waiting.retain(|waiting| waiting.ends > now);
        let count = state.waiting.len().min(MAX_RELEASES_UNDER_WAY);
        let mut by_slot: BTreeMap<u16, Vec<WaitingRelease>> = BTreeMap::new();
        for release in state.waiting.drain(..count) {
            by_slot.entry(release.slot).or_default().push(release);
        }
        (count > 0).then_some(by_slot)
    }
}

/// The task that sends.
struct Sender {
    releases: Arc<BackgroundReleases>,
    is_done: bool,
}

impl Sender {
    /// Ends sending, unless there is something to send.
    fn end(&mut self) -> bool {
        let mut state = self.releases.state.lock();
        self.is_done = state.waiting.is_empty();
        state.is_sending = !self.is_done;
        self.is_done
    }
}

/// The runtime may be shut down during a call, and another one may use the store.
impl Drop for Sender {
    fn drop(&mut self) {
        if !self.is_done {
            self.releases.state.lock().is_sending = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting_in(slot: u16) -> WaitingRelease {
        let ends = timer::after(timer::now(), Duration::from_secs(3600));
        WaitingRelease { slot, ends, is_hold: false, release: PackedAdjustment::default() }
    }

    fn next_slots(releases: &BackgroundReleases) -> Vec<u16> {
        releases.take_next(timer::now()).unwrap_or_default().into_keys().collect()
    }

    /// One server of a cluster is down.
    #[test]
    fn others_are_sent_before_failed_releases_are_sent_again() {
        let releases = BackgroundReleases::default();
        releases.add_failed(vec![waiting_in(1)]);
        assert!(releases.add([waiting_in(2), waiting_in(3)].into_iter()));
        assert_eq!(next_slots(&releases), [2, 3]);
        assert!(next_slots(&releases).is_empty());
        releases.retry_failed();
        assert_eq!(next_slots(&releases), [1]);
    }

    #[test]
    fn failed_releases_count_towards_the_bound() {
        let releases = BackgroundReleases::default();
        releases.add_failed((0..MAX_WAITING_RELEASES).map(|_| waiting_in(1)).collect());
        releases.add([waiting_in(2)].into_iter());
        assert!(next_slots(&releases).is_empty());
    }

    #[test]
    fn the_releases_of_a_call_wait_together_or_not_at_all() {
        let releases = BackgroundReleases::default();
        releases.add_failed((2..=MAX_WAITING_RELEASES).map(|_| waiting_in(1)).collect());
        releases.add([waiting_in(2), waiting_in(3)].into_iter());
        assert!(next_slots(&releases).is_empty(), "there is room for one");
        releases.add([waiting_in(4)].into_iter());
        assert_eq!(next_slots(&releases), [4]);
    }
}
