//! `ExpiryRing`: counts live keys by their expiry. It reads no clock: callers pass the server's time.

/// How many slices of time the ring covers.
const SLICES: usize = 512;

/// The shortest slice. Slices double in width until the ring covers the longest life of a key.
const MIN_SLICE_MICROS: u64 = 1 << 18;

/// The clocks of the servers may differ by this much. A time further back means that the clock was set back.
const MAX_CLOCK_DIFFERENCE_MICROS: u64 = 60_000_000;

#[derive(Debug)]
pub(super) struct ExpiryRing {
    /// How many keys expire in each slice. `first` is the slice of the current time.
    counts: Box<[i64; SLICES]>,
    first: usize,
    total: i64,
    /// The start of the first slice, in microseconds.
    start: u64,
    /// The width of a slice, in microseconds.
    width: u64,
}

impl ExpiryRing {
    pub(super) fn new() -> Self {
        Self { counts: Box::new([0; SLICES]), first: 0, total: 0, start: 0, width: MIN_SLICE_MICROS }
    }

    /// The number of live keys. May be negative for a moment: extending a key of another instance subtracts it at its old
    /// expiry.
    pub(super) const fn count(&self) -> i64 {
        self.total
    }

    /// Advances the time to `now` and drops the keys that have expired.
    pub(super) fn advance(&mut self, now: u64) {
        if now.saturating_add(MAX_CLOCK_DIFFERENCE_MICROS) < self.start {
            self.start = now;
            return;
        }
        let elapsed_slices = now.saturating_sub(self.start) / self.width;
        if elapsed_slices >= SLICES as u64 {
            *self = Self { start: now, ..Self::new() };
            return;
        }
        for _ in 0..elapsed_slices {
            self.total -= std::mem::take(&mut self.counts[self.first]);
            self.first = (self.first + 1) % SLICES;
        }
        self.start += elapsed_slices * self.width;
    }

    /// Counts a new key.
    pub(super) fn add(&mut self, expiry: u64) {
        self.add_to_slice(expiry, 1);
    }

    /// Moves a key from its `previous_expiry` to a new one. A key that was dropped already counts again.
    pub(super) fn extend(&mut self, previous_expiry: u64, expiry: u64) {
        if previous_expiry >= self.start {
            self.add_to_slice(previous_expiry, -1);
        }
        self.add_to_slice(expiry, 1);
    }

    fn add_to_slice(&mut self, expiry: u64, keys: i64) {
        let offset = expiry.saturating_sub(self.start);
        while offset / self.width >= SLICES as u64 {
            self.double_width();
        }
        self.counts[(self.first + (offset / self.width) as usize) % SLICES] += keys;
        self.total += keys;
    }

    /// Merges every two slices into one.
    fn double_width(&mut self) {
        let mut wider = Self { start: self.start, width: self.width * 2, total: self.total, ..Self::new() };
        for slice in 0..SLICES {
            wider.counts[slice / 2] += self.counts[(self.first + slice) % SLICES];
        }
        *self = wider;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_MICROS: u64 = 1_000_000;
    const NOON_MICROS: u64 = 1_790_000_000 * SECOND_MICROS;

    fn ring_at_noon() -> ExpiryRing {
        let mut ring = ExpiryRing::new();
        ring.advance(NOON_MICROS);
        ring
    }

    #[test]
    fn a_key_counts_until_it_expires_and_hardly_longer() {
        for life in [0, 1, SECOND_MICROS, 100 * SECOND_MICROS, 86_400 * SECOND_MICROS, 31_557_600 * SECOND_MICROS] {
            let mut ring = ring_at_noon();
            ring.add(NOON_MICROS + life);
            ring.advance(NOON_MICROS + life.saturating_sub(1));
            assert_eq!(ring.count(), 1, "{life}");
            ring.advance(NOON_MICROS + life);
            assert_eq!(ring.count(), 1, "{life}");
            ring.advance(NOON_MICROS + life + (life / 128).max(2 * MIN_SLICE_MICROS));
            assert_eq!(ring.count(), 0, "{life}");
        }
    }

    #[test]
    fn an_extended_key_counts_once_and_until_its_new_expiry() {
        let mut ring = ring_at_noon();
        ring.add(NOON_MICROS + 10 * SECOND_MICROS);
        for second in 1..1000 {
            ring.advance(NOON_MICROS + second * SECOND_MICROS);
            ring.extend(NOON_MICROS + (second + 9) * SECOND_MICROS, NOON_MICROS + (second + 10) * SECOND_MICROS);
            assert_eq!(ring.count(), 1, "{second}");
        }
        ring.advance(NOON_MICROS + 1011 * SECOND_MICROS);
        assert_eq!(ring.count(), 0);
    }

    /// A key counts for the instance that created it, and after its original expiry for the one that extended it.
    #[test]
    fn a_key_extended_by_another_instance_is_counted_by_exactly_one() {
        let (mut creator, mut extender) = (ring_at_noon(), ring_at_noon());
        creator.add(NOON_MICROS + 10 * SECOND_MICROS);
        extender.extend(NOON_MICROS + 10 * SECOND_MICROS, NOON_MICROS + 100 * SECOND_MICROS);
        for second in 0..100 {
            creator.advance(NOON_MICROS + second * SECOND_MICROS);
            extender.advance(NOON_MICROS + second * SECOND_MICROS);
            assert_eq!(creator.count() + extender.count(), 1, "{second}");
        }
    }

    #[test]
    fn doubling_the_slice_width_keeps_all_keys() {
        let mut ring = ring_at_noon();
        for key in 0..1000 {
            ring.add(NOON_MICROS + (key % 300) * SECOND_MICROS / 3);
        }
        ring.add(NOON_MICROS + 86_400 * SECOND_MICROS);
        assert_eq!(ring.count(), 1001);
        ring.advance(NOON_MICROS + 600 * SECOND_MICROS);
        assert_eq!(ring.count(), 1);
    }

    /// The clocks of a cluster's servers differ a little. A clock that is set back by more sets the ring back.
    #[test]
    fn keys_survive_a_clock_that_steps_back_and_still_expire() {
        let mut ring = ring_at_noon();
        ring.add(NOON_MICROS + 10 * SECOND_MICROS);
        ring.advance(NOON_MICROS - 5 * SECOND_MICROS);
        assert_eq!(ring.count(), 1);
        ring.advance(NOON_MICROS - 86_400 * SECOND_MICROS);
        assert_eq!(ring.count(), 1);
        ring.advance(NOON_MICROS - 86_400 * SECOND_MICROS + 11 * SECOND_MICROS);
        assert_eq!(ring.count(), 0);
    }
}
