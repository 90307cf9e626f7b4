//! Callers whose entries were not in the outbox: either another instance has posted them, or the store has lost them.

use tidegate::spi::{EntryId, Outbox};

use super::error::{lost, unconfirmed};
use super::flush_queue::FlushWaiter;
use super::state::ServiceState;

impl<O: Outbox> ServiceState<O> {
    /// Wakes who waited for entries that the ledger has, and fails the others.
    pub(super) async fn look_up(&self, waiters: Vec<FlushWaiter>) {
        if waiters.is_empty() {
            return;
        }
        let ids: Vec<EntryId> = waiters.iter().filter_map(FlushWaiter::id).collect();
        match self.call(self.ledger.contains(&ids)).await {
            Ok(found) => {
                for (waiter, (id, is_found)) in waiters.into_iter().zip(ids.into_iter().zip(found)) {
                    if is_found {
                        waiter.succeed();
                        continue;
                    }
                    // Whatever lost the entry may have lost others.
                    self.positions.distrust(id.partition);
                    self.queue.want([id.partition]);
                    waiter.fail(&lost());
                }
            }
            Err(error) => FlushWaiter::fail_all(waiters, &unconfirmed(&error)),
        }
    }
}
