//! `Heart`: says every few seconds that this instance lives, and knows how many do. Nothing waits for it.
//!
//! All instances are in one list under one key, `PREFIX 1{00}@instances`: no rule has such a name, since `@` is written as
//! `%40` in theirs. The server's time decides who lives.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use tidegate::spi::KEY_VERSION;
use tokio::task::AbortHandle;

use crate::error::Failed;
use crate::link::Link;
use crate::node::Call;
use crate::options::RedisOptions;
use crate::patience::{self, Patience};
use crate::scripts::SCRIPTS;
use crate::slots::slot_of;
use crate::store::RedisStore;

/// How often an instance is heard.
const EVERY: Duration = Duration::from_secs(5);

/// How soon it tries again if the store did not listen.
const AGAIN: Duration = Duration::from_secs(1);

/// For how long one counts that is not heard.
const LIVE: Duration = Duration::from_secs(15);

/// How many are remembered. Each call goes through the whole list.
const MOST: u32 = 4096;

/// The partition of the list.
const PARTITION: u16 = 0;

/// The heart of one store. Clones share it, and it stops with the last of them.
#[derive(Clone, Default)]
pub(crate) struct Heart(Arc<Inner>);

#[derive(Default)]
struct Inner {
    instances: Arc<AtomicU32>,
    task: Mutex<Option<AbortHandle>>,
}

/// The counts of the last few beats. The largest is believed: after an outage, or when the server has forgotten everything, the
/// others are heard again one by one, and meanwhile nobody must take their share.
#[derive(Default)]
struct Recent([u32; 3]);

/// Counting instances
impl RedisStore {
    /// How many instances share the store, by their heartbeats: those heard within the last 15 seconds, when this one heard of
    /// them last. While the store cannot be reached, that is what was known before.
    pub fn instances(&self) -> Option<u32> {
        self.heart.instances()
    }
}

impl Heart {
    /// Begins to beat, unless it does already or there is no runtime to do it in.
    pub(crate) fn start(&self, link: &Link, options: &RedisOptions) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner);
        if options.heartbeats && task.as_ref().is_none_or(AbortHandle::is_finished) {
            let beating = beat(link.clone(), options.clone(), Arc::clone(&self.0.instances));
            *task = Some(runtime.spawn(beating).abort_handle());
        }
    }

    fn instances(&self) -> Option<u32> {
        Some(self.0.instances.load(Ordering::Relaxed)).filter(|count| *count > 0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl Recent {
    /// Adds the count of one beat, and says what to believe.
    fn add(&mut self, count: u32) -> u32 {
        self.0.rotate_right(1);
        self.0[0] = count;
        self.0.into_iter().max().unwrap_or(count)
    }
}

async fn beat(link: Link, options: RedisOptions, instances: Arc<AtomicU32>) {
    // The standard library seeds each of these at random.
    let name = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let mut recent = Recent::default();
    loop {
        let heard = patience::within(options.budget, once(&link, &options, name)).await;
        let count = match heard {
            Some(Ok(Value::Array(reply))) => match reply.as_slice() {
                [Value::Int(count)] => u32::try_from(*count).ok(),
                _ => None,
            },
            _ => None,
        };
        if let Some(count) = count {
            instances.store(recent.add(count), Ordering::Relaxed);
        }
        patience::rest(if count.is_some() { EVERY } else { AGAIN }).await;
    }
}

async fn once(link: &Link, options: &RedisOptions, name: [u8; 8]) -> Result<Value, Failed> {
    let numbers = [LIVE.as_micros() as f64, f64::from(MOST)].map(f64::to_le_bytes).concat();
    let mut call = Call::of("EVALSHA", SCRIPTS.beat(), Patience::within(options.budget));
    call.command.arg(1).arg(format!("{}{KEY_VERSION}{{00}}@instances", options.prefix)).arg(&name).arg(numbers);
    if let Some(clock) = &options.clock {
        call.command.arg(clock.now().as_micros());
    }
    link.send(slot_of(PARTITION), &call).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_count_is_believed_once_it_lasts() {
        let mut recent = Recent::default();
        let believed = [3, 4, 1, 2, 4, 4, 2, 2, 2, 5].map(|count| recent.add(count));
        assert_eq!(believed, [3, 4, 4, 4, 4, 4, 4, 4, 2, 5]);
    }
}
