//! `LedgerService`: moves entries from the outboxes of a store into the ledger, confirms them, rebuilds partitions and repairs accounts of the store.
//!
//! ```text
//! flush_queue ──▶ flusher          outboxes ──▶ ledger ──▶ who waits
//! journal_queue                    what was admitted without the store ──▶ ledger ──▶ store
//! repair_queue ──▶ repair          ledger ──▶ partitions and accounts of the store
//! store_positions ──▶ older_copy   stores that have gone back ──▶ repair
//! reconcile                        differences between both
//! ```
//!
//! These hold whatever fails, and whenever:
//!
//! - An entry leaves an outbox or the journal only after it is durable in the ledger, and it counts once, by its id. So several services may read
//!   one outbox, and a service may die at any point.
//! - A caller is confirmed only by a flush that began after its decision, and only if each entry of its decision was in a committed post of
//!   that flush or is in the ledger. A caller that does not know its entries is confirmed if the flush has read the generation of its decision
//!   and has posted everything that was in the outbox at that time. Otherwise the caller gets an error.
//! - A store may go back to an older copy of itself, such as a replica that is promoted without the last writes. It is found at the first read
//!   after that, before anything of the new server is acknowledged, and its partitions are rebuilt.
//! - A failed read fails those who wait for that partition. A failed post fails those it was for, and those who would have to wait for the
//!   next attempt, which is made later. Whoever comes while the ledger is unavailable gets the error at once. The next flush starts afresh.
//! - Nobody is woken twice, and a caller that goes away changes nothing.
//! - Entries of a generation that was replaced before they were posted are missing in the rebuilt state: their accounts are repaired.
//! - Memory is bounded by the callers that wait, the batches of one round, and the accounts that were posted since their partition was
//!   read last or wait for a repair.
//!
//! Accounts that wait for a repair after a change of generation or a correction are forgotten when the process ends; a reconciliation finds
//! them. Those of journaled entries are not forgotten.

mod account_names;
mod breaker;
mod confirmation;
mod error;
mod flush_queue;
mod flusher;
mod journal_queue;
mod maintenance;
mod older_copy;
mod options;
mod reconcile;
mod repair;
mod repair_queue;
mod state;
mod stats;
mod store_positions;
mod timer;
mod unverified_posts;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use error::ServiceError;
use flusher::Flusher;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
pub use options::ServiceOptions;
pub use reconcile::{AccountUnits, Difference, ReconcileReport};
pub use repair::{PendingRepair, RepairReport};
use state::ServiceState;
pub use stats::ServiceStats;
use tidegate::spi::{AccountKey, BoxFuture, LedgerStage, Outbox, OutboxEntry, PARTITIONS, UnconfirmedEntry};
use tidegate::sync::Mutex;
use tidegate::{StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::{Ledger, LedgerError, LedgerErrorKind};

/// Moves entries from the outboxes of a store into the ledger, and rebuilds and repairs the store from it. Clones share the tasks, which end with
/// [`shutdown`](Self::shutdown) or with the last clone.
pub struct LedgerService<O> {
    state: Arc<ServiceState<O>>,
    tasks: Arc<ServiceTasks>,
}

/// The tasks of a service. They are aborted when this is dropped: whatever is not done then is done by another instance, or after a restart.
#[derive(Debug)]
struct ServiceTasks(Mutex<Vec<JoinHandle<()>>>);

/// What [`LedgerService::prepare`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrepareReport {
    /// Entries of the journal that were posted.
    pub replayed: u64,
    /// Partitions that were rebuilt.
    pub rebuilt: u64,
}

/// Start and end
impl<O: Outbox + 'static> LedgerService<O> {
    /// Starts the tasks. Fails if a setting is invalid, or if there is no tokio runtime.
    pub fn start(ledger: Ledger, store: O, options: ServiceOptions) -> Result<Self, LedgerError> {
        options.validate()?;
        let no_runtime = |_| LedgerError::new(LedgerErrorKind::Unexpected, "the ledger service needs a tokio runtime");
        let runtime = Handle::try_current().map_err(no_runtime)?;
        let state = Arc::new(ServiceState::new(ledger, store, options));
        let [journal, repairs, expiry, names] = [(); 4].map(|()| state.clone());
        let tasks = vec![
            runtime.spawn(Flusher::new(state.clone()).run()),
            runtime.spawn(async move { journal.run_journal().await }),
            runtime.spawn(async move { repairs.run_repairs().await }),
            runtime.spawn(async move { expiry.run_expiry().await }),
            runtime.spawn(async move { names.run_names().await }),
        ];
        Ok(Self { state, tasks: Arc::new(ServiceTasks(Mutex::new(tasks))) })
    }

    /// Brings the store up to the ledger, before the first request: posts what is left in the journal and in the outboxes, and rebuilds
    /// partitions that the store has lost. With a ledger that was [not open](Ledger::unopened) at the start, no request under a rule with a ledger
    /// is decided by the store before this has succeeded.
    pub async fn prepare(&self) -> Result<PrepareReport, ServiceError> {
        let state = &*self.state;
        if let Some(error) = state.ledger.unopened_error() {
            return Err(error.into());
        }
        let mut report = PrepareReport { replayed: state.post_journaled().await?, rebuilt: 0 };
        let rebuilds = futures_util::stream::iter(0..PARTITIONS).map(|partition| async move {
            match state.drain(partition).await? {
                Some(drained) if drained.generation.is_none() => state.rebuild(partition).await,
                _ => Ok::<bool, ServiceError>(false),
            }
        });
        let mut rebuilds = rebuilds.buffer_unordered(state.options.concurrency).enumerate();
        while let Some((index, rebuilt)) = rebuilds.next().await {
            report.rebuilt += u64::from(rebuilt?);
            let ready = index + 1;
            if report.rebuilt > 0 && ready % 256 == 0 {
                tracing::info!(target: "tidegate::ledger", ready, rebuilt = report.rebuilt, "partitions are rebuilt from the ledger");
            }
        }
        state.is_verified.store(true, Ordering::Release);
        Ok(report)
    }

    /// Waits until everything that is in the outboxes and in the journal now is in the ledger.
    pub async fn flush_all(&self) -> Result<(), ServiceError> {
        self.state.post_journaled().await?;
        let results = self.state.queue.join_partitions(0..PARTITIONS);
        for result in try_join_all(results).await.map_err(|_| error::stopped())? {
            result?;
        }
        self.state.send_names().await;
        Ok(())
    }

    /// Flushes everything once more and ends the tasks, each for at most `limit`. What is not flushed stays in the outboxes and in the journal.
    pub async fn shutdown(&self, limit: Duration) -> Result<(), ServiceError> {
        let flushed = timer::timeout(limit, self.flush_all()).await.unwrap_or(Err(ServiceError::TimedOut));
        self.state.stop.send_replace(true);
        self.state.queue.close();
        let tasks = std::mem::take(&mut *self.tasks.0.lock());
        let aborts: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();
        if timer::timeout(limit, futures_util::future::join_all(tasks)).await.is_none() {
            aborts.iter().for_each(tokio::task::AbortHandle::abort);
        }
        self.state.journal.sync()?;
        flushed
    }
}

/// Repairing and reconciling
impl<O: Outbox + 'static> LedgerService<O> {
    /// Sets the states of these accounts in the store to those of the ledger. What fails or is busy is tried again by a task, until the
    /// process ends; [`repairs_waiting`](ServiceStats::repairs_waiting) counts it.
    pub async fn repair(&self, keys: &[AccountKey]) -> Result<RepairReport, ServiceError> {
        self.pending_repair(keys.to_vec()).finish().await
    }

    /// A repair that begins with [`finish`](PendingRepair::finish), and is left to a task if this is dropped. To be made before accounts are
    /// changed in the ledger: whoever does that may go away, or lose the answer.
    pub fn pending_repair(&self, keys: Vec<AccountKey>) -> PendingRepair<O> {
        PendingRepair::new(self.state.clone(), keys)
    }

    /// Compares all accounts of the ledger with the store, and with `apply` sets those that differ to what the ledger says. Fails with
    /// [`LedgerErrorKind::Busy`] while another reconciliation of the ledger runs. Accounts that only the store has are not found, and
    /// reservations are not compared.
    pub async fn reconcile(&self, apply: bool) -> Result<ReconcileReport, ServiceError> {
        self.state.reconcile(apply).await
    }

    /// Records reservations that ran out. A task does this at intervals.
    pub async fn expire_reservations(&self) -> Result<u64, LedgerError> {
        self.state.expire_reservations().await
    }

    /// What was done and what waits.
    pub fn stats(&self) -> ServiceStats {
        let (state, counters) = (&*self.state, &self.state.counters);
        let oldest_at = [counters.oldest_at(), state.journal.oldest_at()].into_iter().flatten().min();
        ServiceStats {
            entries_posted: counters.posted.load(Ordering::Relaxed),
            entries_repeated: counters.repeated.load(Ordering::Relaxed),
            posts: counters.posts.load(Ordering::Relaxed),
            lag: oldest_at.map_or(Duration::ZERO, |oldest_at| state.options.clock.now().since(oldest_at)),
            waiting: counters.waiting(),
            journal_waiting: state.journal.entries(),
            rebuilds: counters.rebuilds.load(Ordering::Relaxed),
            older_copies: counters.older_copies.load(Ordering::Relaxed),
            repairs: counters.repairs.load(Ordering::Relaxed),
            repairs_waiting: state.repairs.repairs_waiting(),
            differences: counters.differences.load(Ordering::Relaxed),
            reconciled_partitions: counters.reconciled_partitions.load(Ordering::Relaxed),
            ledger_error: state.ledger_error().map(|error| error.kind()),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.state.ledger
    }
}

impl<O: Outbox + 'static> LedgerStage for LedgerService<O> {
    fn verified(&self) -> Result<(), StoreError> {
        if self.state.is_verified.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.state.ledger.unopened_error().map_or_else(error::unprepared, |error| error::unavailable(&error)))
    }

    fn ready(&self) -> Result<(), StoreError> {
        if let Some(error) = self.state.ledger_error() {
            return Err(error::unavailable(&error));
        }
        if self.state.queue.is_slower_than(self.state.options.budget, timer::now()) {
            return Err(error::overdue());
        }
        Ok(())
    }

    fn confirm(&self, entries: Vec<UnconfirmedEntry>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if entries.is_empty() {
                return Ok(());
            }
            self.ready().map_err(StoreError::with_possibly_applied)?;
            let (results, budget) = (self.state.queue.join(entries), self.state.options.budget);
            let results = timer::timeout(budget, try_join_all(results)).await.ok_or_else(error::too_slow)?;
            results.map_err(|_| error::stopped())?.into_iter().collect()
        })
    }

    fn journal(&self, entries: Vec<OutboxEntry>) -> Result<(), StoreError> {
        if entries.iter().any(|entry| entry.id.partition >= PARTITIONS) {
            return Err(StoreError::new(StoreErrorKind::Unexpected, "an entry has no partition"));
        }
        self.state.journal.append(entries)
    }

    fn name_account(&self, account: AccountKey, name: &str) {
        self.state.names.learn(account, name);
    }
}

impl Drop for ServiceTasks {
    fn drop(&mut self) {
        self.0.get_mut().iter().for_each(JoinHandle::abort);
    }
}

impl<O> Clone for LedgerService<O> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), tasks: self.tasks.clone() }
    }
}

impl<O> fmt::Debug for LedgerService<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerService").field("options", &self.state.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
