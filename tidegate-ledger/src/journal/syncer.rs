//! `Syncer`: a thread that makes a changed segment durable at intervals.

use std::fs::File;
use std::sync::{Arc, Condvar, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use tidegate::sync::{Mutex, MutexGuard};

/// A thread that makes a changed segment durable at intervals. It ends when this is dropped, after a last time.
#[derive(Debug)]
pub(super) struct Syncer {
    shared: Arc<(Mutex<SyncState>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SyncState {
    /// The file that was written to since the last time.
    changed: Option<Arc<File>>,
    is_stopped: bool,
    /// Whether the last time failed: then what is written may be lost with the machine.
    has_failed: bool,
}

impl Syncer {
    pub(super) fn start(interval: Duration) -> io::Result<Self> {
        let shared = Arc::new((Mutex::new(SyncState::default()), Condvar::new()));
        let of_thread = shared.clone();
        let builder = thread::Builder::new().name("tidegate-journal".to_owned());
        let thread = builder.spawn(move || run(&of_thread.0, &of_thread.1, interval))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Records that `file` was written to.
    pub(super) fn record_change(&self, file: Arc<File>) {
        let (state, condition) = &*self.shared;
        if lock(state).changed.replace(file).is_none() {
            condition.notify_one();
        }
    }

    /// Whether the last attempt failed.
    pub(super) fn has_failed(&self) -> bool {
        lock(&self.shared.0).has_failed
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        lock(&self.shared.0).is_stopped = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(state: &Mutex<SyncState>, condition: &Condvar, interval: Duration) {
    let mut current = lock(state);
    loop {
        while current.changed.is_none() && !current.is_stopped {
            current = condition.wait(current).unwrap_or_else(PoisonError::into_inner);
        }
        if !current.is_stopped {
            // A stop ends the wait early, and so may a spurious wake-up, which does no harm.
            current = condition.wait_timeout(current, interval).unwrap_or_else(PoisonError::into_inner).0;
        }
        let is_last = current.is_stopped;
        let Some(file) = current.changed.take() else { return };
        drop(current);
        let result = file.sync_data();
        current = lock(state);
        if let Err(error) = &result
            && !current.has_failed
        {
            tracing::error!(target: "tidegate::ledger", "the journal cannot be made durable: {error}");
        }
        current.has_failed = result.is_err();
        if current.has_failed {
            current.changed.get_or_insert(file);
        }
        if is_last {
            return;
        }
    }
}

fn lock(state: &Mutex<SyncState>) -> MutexGuard<'_, SyncState> {
    state.lock()
}
