//! `Ring`: how many keys are alive, counted by when each will expire. It has no clock: time is what servers say it is.

/// How many slices of time it looks ahead.
const SLICES: usize = 512;

/// The shortest slice, in microseconds. Slices double as far as the longest life of a key needs it.
const FINEST: u64 = 1 << 18;

/// Clocks of servers may differ this much, in microseconds. One that is further behind was set back, and the ring with it.
const SET_BACK: u64 = 60_000_000;

#[derive(Debug)]
pub(super) struct Ring {
    /// What expires in each slice; the one that time is in comes first.
    counts: Box<[i64; SLICES]>,
    first: usize,
    total: i64,
    /// When the first slice began, in microseconds.
    start: u64,
    width: u64,
}

impl Ring {
    pub(super) fn new() -> Self {
        Self { counts: Box::new([0; SLICES]), first: 0, total: 0, start: 0, width: FINEST }
    }

    /// How many are alive. A key that is moved counts where it was as one less, so this may be below nothing for a moment.
    pub(super) const fn alive(&self) -> i64 {
        self.total
    }

    /// Lets time pass: what has expired by `now` does not count any more.
    pub(super) fn advance(&mut self, now: u64) {
        if now.saturating_add(SET_BACK) < self.start {
            self.start = now;
            return;
        }
        let passed = now.saturating_sub(self.start) / self.width;
        if passed >= SLICES as u64 {
            *self = Self { start: now, ..Self::new() };
            return;
        }
        for _ in 0..passed {
            self.total -= std::mem::take(&mut self.counts[self.first]);
            self.first = (self.first + 1) % SLICES;
        }
        self.start += passed * self.width;
    }

    /// Counts a new key, which expires at `expiry`.
    pub(super) fn add(&mut self, expiry: u64) {
        self.count(expiry, 1);
    }

    /// A key that would have expired at `before` now does so at `after`. If it does not count any more, it does again.
    pub(super) fn renew(&mut self, before: u64, after: u64) {
        if before >= self.start {
            self.count(before, -1);
        }
        self.count(after, 1);
    }

    fn count(&mut self, expiry: u64, count: i64) {
        let ahead = expiry.saturating_sub(self.start);
        while ahead / self.width >= SLICES as u64 {
            self.widen();
        }
        self.counts[(self.first + (ahead / self.width) as usize) % SLICES] += count;
        self.total += count;
    }

    /// Makes one slice of every two.
    fn widen(&mut self) {
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

    const SECOND: u64 = 1_000_000;
    const NOON: u64 = 1_790_000_000 * SECOND;

    fn at_noon() -> Ring {
        let mut ring = Ring::new();
        ring.advance(NOON);
        ring
    }

    #[test]
    fn a_key_counts_until_it_expires_and_hardly_longer() {
        for life in [0, 1, SECOND, 100 * SECOND, 86_400 * SECOND, 31_557_600 * SECOND] {
            let mut ring = at_noon();
            ring.add(NOON + life);
            ring.advance(NOON + life.saturating_sub(1));
            assert_eq!(ring.alive(), 1, "{life}");
            ring.advance(NOON + life);
            assert_eq!(ring.alive(), 1, "{life}");
            ring.advance(NOON + life + (life / 128).max(2 * FINEST));
            assert_eq!(ring.alive(), 0, "{life}");
        }
    }

    #[test]
    fn a_key_that_is_renewed_counts_once_and_for_longer() {
        let mut ring = at_noon();
        ring.add(NOON + 10 * SECOND);
        for second in 1..1000 {
            ring.advance(NOON + second * SECOND);
            ring.renew(NOON + (second + 9) * SECOND, NOON + (second + 10) * SECOND);
            assert_eq!(ring.alive(), 1, "{second}");
        }
        ring.advance(NOON + 1011 * SECOND);
        assert_eq!(ring.alive(), 0);
    }

    /// What another instance created counts there, and here only from when it would have expired.
    #[test]
    fn a_key_of_another_instance_counts_here_once_it_does_not_there() {
        let (mut there, mut here) = (at_noon(), at_noon());
        there.add(NOON + 10 * SECOND);
        here.renew(NOON + 10 * SECOND, NOON + 100 * SECOND);
        for second in 0..100 {
            there.advance(NOON + second * SECOND);
            here.advance(NOON + second * SECOND);
            assert_eq!(there.alive() + here.alive(), 1, "{second}");
        }
    }

    #[test]
    fn slices_that_grow_lose_nobody() {
        let mut ring = at_noon();
        for key in 0..1000 {
            ring.add(NOON + (key % 300) * SECOND / 3);
        }
        ring.add(NOON + 86_400 * SECOND);
        assert_eq!(ring.alive(), 1001);
        ring.advance(NOON + 600 * SECOND);
        assert_eq!(ring.alive(), 1);
    }

    /// Servers of a cluster differ a little; a clock that is set back for good takes the ring along, and nobody is forgotten.
    #[test]
    fn time_that_runs_backwards_forgets_nobody_and_keeps_nobody_for_ever() {
        let mut ring = at_noon();
        ring.add(NOON + 10 * SECOND);
        ring.advance(NOON - 5 * SECOND);
        assert_eq!(ring.alive(), 1);
        ring.advance(NOON - 86_400 * SECOND);
        assert_eq!(ring.alive(), 1);
        ring.advance(NOON - 86_400 * SECOND + 11 * SECOND);
        assert_eq!(ring.alive(), 0);
    }
}
