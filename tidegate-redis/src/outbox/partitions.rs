//! `LedgerPartitions`: what an instance knows of the partitions of the ledger: their generations, and which of them it has written to.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tidegate::spi::{Adjustment, PARTITIONS, Plan};

/// The partitions of the ledger, as this instance knows them.
pub(crate) struct LedgerPartitions {
    /// The generation of each partition; 0 if it is unknown.
    generations: Box<[AtomicU64]>,
    /// A bit for each partition that was written to, or found without a generation, since they were taken.
    written: Box<[AtomicU64]>,
}

/// Marks partitions as written when it is dropped: after the call, however that ended.
pub(crate) struct WriteMark<'l> {
    ledger: &'l LedgerPartitions,
    partitions: SmallVec<[u16; 2]>,
}

impl Default for LedgerPartitions {
    fn default() -> Self {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { generations: zeros(PARTITIONS.into()), written: zeros(usize::from(PARTITIONS).div_ceil(64)) }
    }
}

impl LedgerPartitions {
    /// The generation of a partition; 0 if it is unknown.
    pub(crate) fn generation(&self, partition: u16) -> u64 {
        self.generations.get(usize::from(partition)).map_or(0, |generation| generation.load(Ordering::Acquire))
    }

    /// Learns the generation of a partition; 0 if it has none.
    pub(crate) fn set_generation(&self, partition: u16, generation: u64) {
        if let Some(known) = self.generations.get(usize::from(partition)) {
            known.store(generation, Ordering::Release);
        }
    }

    /// Learns the generations that a call has found, by partition. Returns whether all of them have one.
    pub(crate) fn learn(&self, found: impl IntoIterator<Item = (u16, u64)>) -> bool {
        let mut has_all = true;
        for (partition, generation) in found {
            self.set_generation(partition, generation);
            if generation == 0 {
                self.mark_written(partition);
                has_all = false;
            }
        }
        has_all
    }

    pub(crate) fn mark_written(&self, partition: u16) {
        if let Some(bits) = self.written.get(usize::from(partition) / 64) {
            bits.fetch_or(1 << (partition % 64), Ordering::AcqRel);
        }
    }

    /// Marks these partitions as written when the result is dropped.
    pub(crate) fn mark_after(&self, partitions: SmallVec<[u16; 2]>) -> WriteMark<'_> {
        WriteMark { ledger: self, partitions }
    }

    /// The partitions that were marked since the last call.
    pub(crate) fn take_written(&self) -> Vec<u16> {
        let mut partitions = Vec::new();
        for (index, bits) in self.written.iter().enumerate() {
            let bits = bits.swap(0, Ordering::AcqRel);
            let set = (0..64).filter(|bit| bits >> bit & 1 == 1);
            partitions.extend(set.map(|bit| index as u16 * 64 + bit));
        }
        partitions
    }
}

impl WriteMark<'_> {
    /// Marks nothing: nothing was written.
    pub(crate) fn cancel(mut self) {
        self.partitions.clear();
    }
}

impl Drop for WriteMark<'_> {
    fn drop(&mut self) {
        self.partitions.iter().for_each(|partition| self.ledger.mark_written(*partition));
    }
}

/// The partition of each check with a ledger, in order.
pub(crate) fn ledger_partitions(plan: &Plan<'_>) -> SmallVec<[u16; 2]> {
    let checks = plan.checks().iter().filter(|check| check.gate().ledger().is_some());
    checks.map(|check| check.key().partition()).collect()
}

/// The partition of an adjustment with a ledger.
pub(crate) fn ledger_partition(adjustment: &Adjustment<'_>) -> Option<u16> {
    adjustment.gate.ledger().map(|_| adjustment.key.partition())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_partitions_are_taken_once() {
        let ledger = LedgerPartitions::default();
        for partition in [0, 63, 64, 1023, 63] {
            ledger.mark_written(partition);
        }
        assert_eq!(ledger.take_written(), [0, 63, 64, 1023]);
        assert!(ledger.take_written().is_empty());
        drop(ledger.mark_after(SmallVec::from_slice(&[7, 8])));
        ledger.mark_after(SmallVec::from_slice(&[9])).cancel();
        assert_eq!(ledger.take_written(), [7, 8]);
    }

    #[test]
    fn a_partition_without_a_generation_is_marked_so_that_it_is_rebuilt() {
        let ledger = LedgerPartitions::default();
        assert!(ledger.learn([(1, 5), (2, 6)]));
        assert!(!ledger.learn([(1, 5), (2, 0)]));
        assert_eq!((ledger.generation(1), ledger.generation(2), ledger.generation(3)), (5, 0, 0));
        assert_eq!(ledger.take_written(), [2]);
    }
}
