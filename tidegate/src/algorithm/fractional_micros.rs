//! `FractionalMicros`: a time in exact fractions of a microsecond, so that rates such as 7 per second are not rounded.

/// Whole microseconds plus `part`/r of one, for a rate of r units per period.
///
/// Used for instants since the epoch and for spans. Two values compare correctly if they have the same rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FractionalMicros {
    /// Whole microseconds.
    pub micros: u64,
    /// The numerator of the fraction, less than the amount of the rate.
    pub part: u64,
}

impl FractionalMicros {
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

    /// `self - span`, or zero if that is negative.
    #[inline(always)]
    pub(crate) fn saturating_minus(self, span: Self, rate: u64) -> Self {
        if span > self { Self::default() } else { self.minus(span, rate) }
    }

    /// Rounded up to whole microseconds.
    #[inline(always)]
    pub(crate) const fn ceil(self) -> u64 {
        if self.part == 0 { self.micros } else { self.micros + 1 }
    }
}
