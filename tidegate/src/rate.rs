//! `Rate`: units per time, as an exact fraction.

use std::fmt;
use std::time::Duration;

use crate::limit::{LimitError, MAX_WINDOW_MICROS, whole_micros};

/// An amount per period, such as 10 per second, stored as a reduced fraction of units and microseconds.
///
/// It is not rounded: 7 per second is 7 per 1,000,000 µs, not one per 142,857 µs.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Rate;
///
/// assert_eq!(Rate::per_second(10)?, Rate::new(600, Duration::from_secs(60))?);
/// assert_eq!(
///     Rate::per_second(0).unwrap_err().to_string(),
///     "rate.amount: 0 is below the smallest value, 1 (a rate that never refills is a limit of 0)"
/// );
/// # Ok::<(), tidegate::limits::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    amount: u64,
    period: u64,
}

/// Constructors
impl Rate {
    /// `amount` units in `period`, a whole number of microseconds.
    pub fn new(amount: u64, period: Duration) -> Result<Self, LimitError> {
        if amount == 0 {
            let reason = "(a rate that never refills is a limit of 0)";
            return Err(LimitError::too_small("rate.amount", 0, 1, reason));
        }
        LimitError::check_amount("rate.amount", amount)?;
        let period = whole_micros("rate.period", period)?;
        let divisor = greatest_common_divisor(amount, period);
        Ok(Self { amount: amount / divisor, period: period / divisor })
    }

    /// `amount` units per second.
    pub fn per_second(amount: u64) -> Result<Self, LimitError> {
        Self::new(amount, Duration::from_secs(1))
    }

    /// `amount` units per minute.
    pub fn per_minute(amount: u64) -> Result<Self, LimitError> {
        Self::new(amount, Duration::from_secs(60))
    }

    /// `amount` units per hour.
    pub fn per_hour(amount: u64) -> Result<Self, LimitError> {
        Self::new(amount, Duration::from_secs(3600))
    }
}

/// The reduced fraction
impl Rate {
    /// The units in one [period](Self::period), after reduction.
    pub const fn amount(self) -> u64 {
        self.amount
    }

    /// The rate divided by `parts`. Clamped to one period per 100 years.
    pub(crate) fn part(self, parts: u64) -> Self {
        let period = self.period.saturating_mul(parts).min(MAX_WINDOW_MICROS);
        let divisor = greatest_common_divisor(self.amount, period);
        Self { amount: self.amount / divisor, period: period / divisor }
    }

    /// The time in which [`amount`](Self::amount) units refill, after reduction.
    pub const fn period(self) -> Duration {
        Duration::from_micros(self.period)
    }

    pub(crate) const fn period_micros(self) -> u64 {
        self.period
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {:?}", self.amount, Duration::from_micros(self.period))
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
