//! `Moment`: an instant finer than a microsecond, so that a rate such as 7 per second loses nothing.

/// A number of whole microseconds plus `part` shares of one, where a share is 1/r µs for a rate of r units per period.
///
/// It serves as an instant (since the epoch) and as a span. The order is that of time, as long as both sides count
/// their parts by the same rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Whole microseconds.
    pub micros: u64,
    /// Shares of a microsecond, fewer than the rate's amount.
    pub part: u64,
}

impl Moment {
    /// A whole number of microseconds.
    #[inline(always)]
    pub const fn whole(micros: u64) -> Self {
        Self { micros, part: 0 }
    }

    /// `self + span`, carrying at `rate` parts.
    #[inline(always)]
    pub(crate) const fn plus(self, span: Self, rate: u64) -> Self {
        let (micros, part) = (self.micros + span.micros, self.part + span.part);
        if part >= rate { Self { micros: micros + 1, part: part - rate } } else { Self { micros, part } }
    }

    /// `self - span`, which must not be negative, borrowing at `rate` parts.
    #[inline(always)]
    pub(crate) const fn minus(self, span: Self, rate: u64) -> Self {
        if self.part < span.part {
            Self { micros: self.micros - span.micros - 1, part: self.part + rate - span.part }
        } else {
            Self { micros: self.micros - span.micros, part: self.part - span.part }
        }
    }

    /// The first whole microsecond that is not before it.
    #[inline(always)]
    pub(crate) const fn ceil(self) -> u64 {
        if self.part == 0 { self.micros } else { self.micros + 1 }
    }
}
