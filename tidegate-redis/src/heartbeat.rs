//! `Heartbeat`: registers this instance in the store every few seconds and counts the live instances. No decision waits for
//! it.
//!
//! All instances are in one list under the key `PREFIX 1{00}@instances`. It cannot collide with the key of a rule, in which
//! `@` is escaped. Which instances are live is decided by the server's clock.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use tidegate::spi::KEY_VERSION;
use tokio::task::AbortHandle;

use crate::call::{Call, CallError};
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

/// Size limit of the list, which every heartbeat reads and writes as a whole.
const MAX_INSTANCES: u32 = 4096;

/// The partition of the list's key.
const LIST_PARTITION: u16 = 0;

/// The heartbeat of one store. Clones share it; it stops when the last one is dropped.
#[derive(Clone, Default)]
pub(crate) struct Heartbeat(Arc<HeartbeatInner>);

#[derive(Default)]
struct HeartbeatInner {
    instances: Arc<AtomicU32>,
    task: Mutex<Option<AbortHandle>>,
}

/// The counts of the last three heartbeats. The largest one is used: after an outage or a flush the other instances reappear
/// one by one, and meanwhile no instance may take their share.
#[derive(Default)]
struct RecentCounts([u32; 3]);

/// Counting instances
impl RedisStore {
    /// The number of instances that share the store: those with a heartbeat within 15 seconds. While the store cannot be
    /// reached, the last known number. `None` before the first heartbeat.
    pub fn instances(&self) -> Option<u32> {
        self.heartbeat.instances()
    }
}

impl Heartbeat {
    /// Starts the task, unless it runs already, heartbeats are turned off, or there is no tokio runtime.
    pub(crate) fn start(&self, router: &Router, options: &RedisOptions) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner);
        if options.heartbeats && task.as_ref().is_none_or(AbortHandle::is_finished) {
            let run = run(router.clone(), options.clone(), Arc::clone(&self.0.instances));
            *task = Some(runtime.spawn(run).abort_handle());
        }
    }

    fn instances(&self) -> Option<u32> {
        Some(self.0.instances.load(Ordering::Relaxed)).filter(|count| *count > 0)
    }
}

impl Drop for HeartbeatInner {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
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

async fn run(router: Router, options: RedisOptions, instances: Arc<AtomicU32>) {
    // Each `RandomState` has a random seed, so the id is unique.
    let instance_id = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let mut recent = RecentCounts::default();
    loop {
        let reply = send_heartbeat(&router, &options, instance_id).await;
        let count = match reply {
            Ok(Value::Array(fields)) => match fields.as_slice() {
                [Value::Int(count)] => u32::try_from(*count).ok(),
                _ => None,
            },
            _ => None,
        };
        if let Some(count) = count {
            instances.store(recent.add(count), Ordering::Relaxed);
        }
        timer::sleep(if count.is_some() { HEARTBEAT_INTERVAL } else { RETRY_DELAY }).await;
    }
}

async fn send_heartbeat(router: &Router, options: &RedisOptions, instance_id: [u8; 8]) -> Result<Value, CallError> {
    let numbers = [INSTANCE_TTL.as_micros() as f64, f64::from(MAX_INSTANCES)].map(f64::to_le_bytes).concat();
    let mut call = Call::script("EVALSHA", SCRIPTS.heartbeat(), Timeouts::for_background(options));
    call.command.arg(1).arg(format!("{}{KEY_VERSION}{{00}}@instances", options.prefix)).arg(&instance_id).arg(numbers);
    if let Some(clock) = &options.clock {
        call.command.arg(clock.now().as_micros());
    }
    router.send(slot_of(LIST_PARTITION), &call).await
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
