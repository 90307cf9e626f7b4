//! `Heartbeat`: registers this instance and its rule set in the store every few seconds, and counts the live ones of the namespace. No
//! decision waits for it.
//!
//! All instances are in one list under the key `NAMESPACE 1{00}@instances`, and all rule sets in one under `…@rules`, which instances of
//! earlier versions leave alone. They cannot collide with the key of a rule, in which `@` is escaped. Which entries are live is decided by
//! the server's clock.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tidegate::spi::KEY_VERSION;
use tidegate::sync::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::call::Call;
use crate::namespace_check::check_namespace;
use crate::options::RedisOptions;
use crate::router::Router;
use crate::scripts::SCRIPTS;
use crate::slot_map::slot_of;
use crate::store::RedisStore;
use crate::timeouts::Timeouts;
use crate::timer;

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Time until the next heartbeat after one that failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// An instance counts as live for this long after its last heartbeat.
const INSTANCE_TTL: Duration = Duration::from_secs(15);

/// Size limit of the lists, which every heartbeat reads and writes as a whole.
const MAX_ENTRIES: u32 = 4096;

/// The partition of the lists' keys.
pub(crate) const LIST_PARTITION: u16 = 0;

/// The heartbeat of one store. Clones share it; it stops when the last one is dropped.
#[derive(Clone, Default)]
pub(crate) struct Heartbeat(Arc<HeartbeatInner>);

#[derive(Default)]
struct HeartbeatInner {
    state: Arc<HeartbeatState>,
    task: Mutex<Option<AbortHandle>>,
}

/// What heartbeats announce, and what they have found. 0 is unknown.
#[derive(Default)]
struct HeartbeatState {
    /// The fingerprint of the rules of this instance.
    rules: AtomicU64,
    /// Notified when it becomes known.
    rules_known: Notify,
    instances: AtomicU32,
    rule_sets: AtomicU32,
    /// For how many microseconds there have been several rule sets.
    several_micros: AtomicU64,
}

/// The counts of the last three heartbeats. The largest one is used: after an outage or a flush the other instances reappear
/// one by one, and meanwhile no instance may take their share.
#[derive(Default)]
struct RecentCounts([u32; 3]);

/// Counting instances
impl RedisStore {
    /// The number of instances that share the store: those of its namespace with a heartbeat within 15 seconds. While the store cannot
    /// be reached, the last known number. `None` before the first heartbeat.
    pub fn instances(&self) -> Option<u32> {
        self.heartbeat.instances()
    }

    /// Announces the rules that this instance decides by: the first ones at once, others with the next heartbeat. Equal rules must have equal fingerprints at all
    /// instances, and the fingerprint must not reveal a secret.
    pub fn announce_rules(&self, fingerprint: u64) {
        let state = &self.heartbeat.0.state;
        if state.rules.swap(fingerprint.max(1), Ordering::Relaxed) == 0 {
            state.rules_known.notify_one();
        }
    }

    /// The number of different rule sets that instances of the namespace have announced within 15 seconds. More than one for a moment is
    /// a reload. `None` before the first heartbeat after [`announce_rules`](Self::announce_rules).
    pub fn rule_sets(&self) -> Option<u32> {
        Some(self.heartbeat.0.state.rule_sets.load(Ordering::Relaxed)).filter(|count| *count > 0)
    }

    /// How long there have been several [rule sets](Self::rule_sets) without a break, by the store's clock at the last heartbeat. `None`
    /// while all instances have the same rules.
    pub fn rules_differ_for(&self) -> Option<Duration> {
        let micros = self.heartbeat.0.state.several_micros.load(Ordering::Relaxed);
        self.rule_sets().filter(|count| *count > 1).map(|_| Duration::from_micros(micros))
    }
}

/// The name of the list of the instances of a namespace.
pub(crate) fn instances_key(namespace: &str) -> String {
    format!("{namespace}{KEY_VERSION}{{00}}@instances")
}

impl Heartbeat {
    /// Starts the task, unless it runs already, heartbeats are turned off, or there is no tokio runtime.
    pub(crate) fn start(&self, router: &Router, options: &RedisOptions) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut task = self.0.task.lock();
        if options.heartbeats && task.as_ref().is_none_or(AbortHandle::is_finished) {
            let run = run(router.clone(), options.clone(), Arc::clone(&self.0.state));
            *task = Some(runtime.spawn(run).abort_handle());
        }
    }

    fn instances(&self) -> Option<u32> {
        Some(self.0.state.instances.load(Ordering::Relaxed)).filter(|count| *count > 0)
    }
}

impl Drop for HeartbeatInner {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

impl RecentCounts {
    /// Adds the newest count and returns the largest.
    fn add(&mut self, count: u32) -> u32 {
        self.0.rotate_right(1);
        self.0[0] = count;
        self.0.into_iter().max().unwrap_or(count)
    }
}

async fn run(router: Router, options: RedisOptions, state: Arc<HeartbeatState>) {
    // Each `RandomState` has a random seed, so the id is unique.
    let instance_id = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    // An instance under a refused name must not make it one that is in use.
    while check_namespace(&router, &options).await.is_err() {
        timer::sleep(RETRY_DELAY).await;
    }
    let mut recent = RecentCounts::default();
    loop {
        let reply = send_heartbeat(&router, &options, instance_id, state.rules.load(Ordering::Relaxed)).await;
        if let Some((instances, rule_sets, several_micros)) = reply {
            state.instances.store(recent.add(instances), Ordering::Relaxed);
            state.rule_sets.store(rule_sets, Ordering::Relaxed);
            state.several_micros.store(several_micros, Ordering::Relaxed);
        }
        tokio::select! {
            () = timer::sleep(if reply.is_some() { HEARTBEAT_INTERVAL } else { RETRY_DELAY }) => {}
            () = state.rules_known.notified() => {}
        }
    }
}

/// The numbers of the reply, if there is one.
async fn send_heartbeat(
    router: &Router,
    options: &RedisOptions,
    instance_id: [u8; 8],
    rules: u64,
) -> Option<(u32, u32, u64)> {
    let numbers = [INSTANCE_TTL.as_micros() as f64, f64::from(MAX_ENTRIES)].map(f64::to_le_bytes).concat();
    let rules = rules.to_le_bytes();
    let mut call = Call::script("EVALSHA", SCRIPTS.heartbeat(), Timeouts::for_background(options));
    call.command.arg(2).arg(instances_key(options.namespace.as_str()));
    call.command.arg(format!("{}{KEY_VERSION}{{00}}@rules", options.namespace));
    call.command.arg(&instance_id).arg(if rules == [0; 8] { &[][..] } else { &rules }).arg(numbers);
    if let Some(clock) = &options.clock {
        call.command.arg(clock.now().as_micros());
    }
    let Ok(Value::Array(fields)) = router.send(slot_of(LIST_PARTITION), &call).await else { return None };
    match fields.as_slice() {
        [Value::Int(instances), Value::Int(rule_sets), Value::Int(several)] => {
            Some((u32::try_from(*instances).ok()?, u32::try_from(*rule_sets).ok()?, u64::try_from(*several).ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_instance_count_is_used_after_three_heartbeats() {
        let mut recent = RecentCounts::default();
        let used = [3, 4, 1, 2, 4, 4, 2, 2, 2, 5].map(|count| recent.add(count));
        assert_eq!(used, [3, 4, 4, 4, 4, 4, 4, 4, 2, 5]);
    }
}
