//! `IndexTable`: finds equal items of a list by their hash. It stores indexes only; the caller keeps the items.

/// A hash table of indexes.
#[derive(Debug)]
pub(super) struct IndexTable {
    /// Index + 1, or 0 for a free entry. The length is a power of two.
    entries: Vec<u16>,
}

impl IndexTable {
    /// A table for up to `capacity` items.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { entries: vec![0; (2 * capacity).next_power_of_two()] }
    }

    /// The index of the item with this `hash` for which `is_equal` holds. If there is none, inserts `next` and returns it.
    pub(super) fn find_or_insert(&mut self, hash: u64, next: usize, is_equal: impl Fn(usize) -> bool) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            match self.entries[at] {
                0 => {
                    self.entries[at] = next as u16 + 1;
                    return next;
                }
                index if is_equal(usize::from(index) - 1) => return usize::from(index) - 1,
                _ => at = (at + 1) & mask,
            }
        }
    }
}
