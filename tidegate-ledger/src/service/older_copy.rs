//! Stores that have gone back to an older copy of themselves, such as a replica that was promoted without the last writes.
//!
//! Such a store admits what was consumed before. Its generation is discarded, so it admits nothing until it is rebuilt from the ledger. Entries
//! that were written to it since are posted like others.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::spi::{Outbox, OutboxBatch};
use tokio::time::Instant;

use super::error::ServiceError;
use super::state::ServiceState;
use super::store_positions::lacks;
use super::timer;

/// All partitions of a server go back together, so the log says it once in this time.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

impl<O: Outbox> ServiceState<O> {
    /// Reads an outbox. It has no generation if the store has gone back, since that is discarded then.
    pub(super) async fn read_present(&self, partition: u16) -> Result<OutboxBatch, ServiceError> {
        let (seen, max) = (self.positions.get(partition), self.options.batch);
        let mut batch = self.store.read_outbox(partition, max).await?;
        let Some(generation) = batch.generation else { return Ok(batch) };
        let mut has_gone_back = seen.is_ahead_of(&batch);
        if !has_gone_back && !seen.is_compared(&batch) {
            // What was in the ledger before a read must be found by it.
            if let Some(last) = self.call(self.ledger.last_entry(partition, generation)).await? {
                batch = self.store.read_outbox(partition, max).await?;
                if batch.generation != Some(generation) {
                    return Ok(batch);
                }
                match lacks(&batch, last) {
                    Some(is_lacking) => has_gone_back = is_lacking,
                    None => return Ok(batch),
                }
            }
        }
        if has_gone_back {
            self.discard(partition, generation).await?;
            return Ok(OutboxBatch { generation: None, ..batch });
        }
        self.positions.record_compared(partition, batch.server);
        self.positions.record_read(partition, &batch);
        Ok(batch)
    }

    async fn discard(&self, partition: u16, generation: u64) -> Result<(), ServiceError> {
        self.store.discard_generation(partition, generation).await?;
        self.counters.older_copies.fetch_add(1, Ordering::Relaxed);
        // Whoever reads it empties it first, and rebuilds it then.
        self.queue.want([partition]);
        if self.is_time_to_log(timer::now()) {
            tracing::warn!(
                target: "tidegate::ledger",
                partition,
                "the store has gone back to an older copy of itself, as after a failover that lost writes; \
                 its partitions are rebuilt from the ledger"
            );
        }
        Ok(())
    }

    fn is_time_to_log(&self, now: Instant) -> bool {
        let mut logged_at = self.older_copy_logged_at();
        let is_time = logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        if is_time {
            *logged_at = Some(now);
        }
        is_time
    }
}
