//! `Limit`: the kinds of limit. The constructors reject parameters that could not be decided exactly.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::Rate;
use crate::algorithm::Calendar;
use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::penalty::Penalty;
use crate::algorithm::quota::Quota;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::limits::{Periods, Window};

/// The largest number of units: 2^52 - 1, so that the sum of two is exact in a Lua number.
pub const MAX_AMOUNT: u64 = (1 << 52) - 1;

/// The longest window of a limit: 100 years of 365.25 days.
pub const MAX_WINDOW: Duration = Duration::from_micros(MAX_WINDOW_MICROS);

pub(crate) const MAX_WINDOW_MICROS: u64 = 3_155_760_000_000_000;

/// The largest limit of a [sliding log](Limit::sliding_log), which keeps every request and stores its cost in two bytes.
pub const MAX_LOG_LIMIT: u64 = 65_535;

/// The largest maximum of a [concurrency limit](Limit::concurrency), which keeps every held slot and stores its weight in two bytes.
pub const MAX_CONCURRENCY: u64 = 65_535;

/// The largest number of slices of a [sliding window](Limit::sliding_window).
pub const MAX_SLICES: u64 = 120;

/// A limit: a number of units in a time.
///
/// Each kind has a module in [`algorithm`](crate::spi::algorithm) that states its invariant and its error bound as a formula.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Rate};
///
/// let api = Limit::token_bucket(20, Rate::per_second(10)?)?;
/// let login = Limit::sliding_log(5, Duration::from_secs(600))?;
/// assert_eq!(api.amount(), 20);
/// assert_eq!(
///     Limit::sliding_log(100_000, Duration::from_secs(1)).unwrap_err().to_string(),
///     "sliding_log.limit: 100000 is above the largest value, 65535 (it keeps every request; use sliding_window)"
/// );
/// # Ok::<(), tidegate::limits::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Bursts up to a capacity, then a sustained rate.
    TokenBucket(TokenBucket),
    /// A constant output rate. Requests that come early wait in a queue.
    LeakyBucket(LeakyBucket),
    /// A number of units in each window, aligned to the clock or the calendar. Allows a double burst at the boundary.
    FixedWindow(FixedWindow),
    /// A number of units in any window, exactly. Keeps every request.
    SlidingLog(SlidingLog),
    /// A number of units in any window, estimated from slices.
    SlidingWindow(SlidingWindow),
    /// A number of units held at the same time, as leases that run out unless they are renewed.
    Concurrency(Concurrency),
    /// A number of units in each calendar period, with grace, and debt that is carried over.
    Quota(Quota),
    /// Blocks a subject that the limits of its rule deny again and again. Beside these limits only: see
    /// [`Rule::with_penalty`](crate::Rule::with_penalty).
    Penalty(Penalty),
}

/// Evaluates `$body` with the parameters of a limit, and their type if that is needed. This is the list of all kinds.
macro_rules! with_kind {
    ($limit:expr, $parameters:ident => $body:expr) => {
        match $limit {
            Limit::TokenBucket($parameters) => $body,
            Limit::LeakyBucket($parameters) => $body,
            Limit::FixedWindow($parameters) => $body,
            Limit::SlidingLog($parameters) => $body,
            Limit::SlidingWindow($parameters) => $body,
            Limit::Concurrency($parameters) => $body,
            Limit::Quota($parameters) => $body,
            Limit::Penalty($parameters) => $body,
        }
    };
}
pub(crate) use with_kind;

/// The kind of a [`Limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// `token_bucket`
    TokenBucket,
    /// `leaky_bucket`
    LeakyBucket,
    /// `fixed_window`
    FixedWindow,
    /// `sliding_log`
    SlidingLog,
    /// `sliding_window`
    SlidingWindow,
    /// `concurrency`
    Concurrency,
    /// `quota`
    Quota,
    /// `penalty`
    Penalty,
}

/// An invalid parameter of a limit or a rate: the field, and the bound that it violates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    field: &'static str,
    problem: String,
}

/// Constructors
impl Limit {
    /// A bucket of `capacity` tokens, initially full, that refills at the rate `refill`.
    pub fn token_bucket(capacity: u64, refill: Rate) -> Result<Self, LimitError> {
        TokenBucket::new("token_bucket.capacity", capacity, refill).map(Self::TokenBucket)
    }

    /// Requests leave at the rate `drain`. One passes at once, and up to `queue` wait.
    pub fn leaky_bucket(drain: Rate, queue: u64) -> Result<Self, LimitError> {
        LeakyBucket::new(drain, queue).map(Self::LeakyBucket)
    }

    /// Allows `limit` units in each `window`: a duration, aligned to the Unix epoch, or a calendar month or year in UTC.
    pub fn fixed_window(limit: u64, window: impl Into<Window>) -> Result<Self, LimitError> {
        FixedWindow::new(limit, window.into()).map(Self::FixedWindow)
    }

    /// Allows `limit` units in any `window`, exactly; `limit` is at most [`MAX_LOG_LIMIT`].
    pub fn sliding_log(limit: u64, window: Duration) -> Result<Self, LimitError> {
        SlidingLog::new(limit, window).map(Self::SlidingLog)
    }

    /// Allows about `limit` units in any `window`, counted in `slices` equal parts of it.
    ///
    /// One slice is the classic estimate from two windows; six to twelve make it accurate.
    pub fn sliding_window(limit: u64, window: Duration, slices: u64) -> Result<Self, LimitError> {
        SlidingWindow::new(limit, window, slices).map(Self::SlidingWindow)
    }

    /// Allows `max` units to be held at the same time; at most [`MAX_CONCURRENCY`]. What is neither released nor renewed within
    /// `lease` is given up.
    pub fn concurrency(max: u64, lease: Duration) -> Result<Self, LimitError> {
        Concurrency::new(max, lease).map(Self::Concurrency)
    }

    /// Allows `amount` units in each calendar period.
    ///
    /// ```
    /// use tidegate::limits::{Period, Periods};
    /// use tidegate::Limit;
    ///
    /// let month = Limit::quota(1_000_000, Periods::new(Period::Month, "Europe/Berlin", None)?)?;
    /// assert_eq!(month.amount(), 1_000_000);
    /// # Ok::<(), tidegate::limits::LimitError>(())
    /// ```
    pub fn quota(amount: u64, periods: Periods) -> Result<Self, LimitError> {
        Self::quota_with_grace(amount, 0, periods)
    }

    /// Allows `amount` units in each calendar period, and `grace` more, whose decisions are [marked](crate::Decision::is_in_grace).
    pub fn quota_with_grace(amount: u64, grace: u64, periods: Periods) -> Result<Self, LimitError> {
        Quota::new(amount, grace, periods).map(Self::Quota)
    }
}

/// Properties
impl Limit {
    /// The largest cost that can be admitted at once: capacity, limit, or queue + 1. For a quota, without grace.
    pub const fn amount(&self) -> u64 {
        match self {
            Self::TokenBucket(limit) => limit.capacity(),
            Self::LeakyBucket(limit) => limit.queue() + 1,
            Self::FixedWindow(limit) => limit.limit(),
            Self::SlidingLog(limit) => limit.limit(),
            Self::SlidingWindow(limit) => limit.limit(),
            Self::Concurrency(limit) => limit.max(),
            Self::Quota(limit) => limit.amount(),
            // It denies or admits whatever the cost.
            Self::Penalty(_) => MAX_AMOUNT,
        }
    }

    /// The window of the limit; for a quota, the usual length of its periods; for a bucket, the time to refill completely, rounded up; for a concurrency limit, the lease; for a
    /// penalty, the longest block.
    pub const fn window(&self) -> Window {
        Window::from_calendar(self.calendar())
    }

    /// The same, as checks store it.
    pub(crate) const fn calendar(&self) -> Calendar {
        match self {
            Self::FixedWindow(limit) => limit.calendar(),
            Self::Quota(limit) => limit.periods().period().calendar(),
            other => Calendar::from_micros(other.window_micros()),
        }
    }

    /// The length of the window: for months and years, of the longest one; for a bucket, the time to refill completely, rounded
    /// up.
    pub const fn max_window(&self) -> Duration {
        Duration::from_micros(self.window_micros())
    }

    const fn window_micros(&self) -> u64 {
        match self {
            Self::TokenBucket(limit) => limit.burst().ceil(),
            Self::LeakyBucket(limit) => limit.bucket().burst().ceil(),
            Self::FixedWindow(limit) => limit.window_micros(),
            Self::SlidingLog(limit) => limit.window_micros(),
            Self::SlidingWindow(limit) => limit.window_micros(),
            Self::Concurrency(limit) => limit.lease_micros(),
            Self::Quota(limit) => limit.periods().period().calendar().max_micros(),
            Self::Penalty(penalty) => penalty.max_micros(),
        }
    }

    /// The part of the limit that one of `instances` may grant alone: an equal part, rounded down, but at least 1 unless the limit
    /// is 0. All instances together grant at most the limit, or one unit each if there are more instances than units.
    ///
    /// ```
    /// # use tidegate::{Limit, Rate};
    /// let limit = Limit::token_bucket(20, Rate::per_second(10)?)?;
    /// assert_eq!(limit.share(3), Limit::token_bucket(6, Rate::new(10, std::time::Duration::from_secs(3))?)?);
    /// assert_eq!(limit.share(100).amount(), 1);
    /// # Ok::<(), tidegate::limits::LimitError>(())
    /// ```
    pub fn share(&self, instances: u32) -> Self {
        let instances = u64::from(instances.max(1));
        let part = |amount: u64| if amount == 0 { 0 } else { (amount / instances).max(1) };
        let share = match self {
            Self::TokenBucket(limit) => Self::token_bucket(part(limit.capacity()), limit.refill().part(instances)),
            Self::LeakyBucket(limit) => {
                Self::leaky_bucket(limit.drain().part(instances), part(limit.queue() + 1).saturating_sub(1))
            }
            Self::FixedWindow(limit) => Self::fixed_window(part(limit.limit()), limit.window()),
            Self::SlidingLog(limit) => Self::sliding_log(part(limit.limit()), limit.window()),
            Self::SlidingWindow(limit) => Self::sliding_window(part(limit.limit()), limit.window(), limit.slices()),
            Self::Concurrency(limit) => Self::concurrency(part(limit.max()), limit.lease()),
            Self::Quota(limit) => {
                Self::quota_with_grace(part(limit.amount()), limit.grace() / instances, limit.periods())
            }
            Self::Penalty(_) => Ok(*self),
        };
        // Cannot fail: all parameters are within the bounds.
        share.unwrap_or(*self)
    }

    /// Whether a request takes a slot, which it holds until it is released: a concurrency limit.
    pub const fn has_slots(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    /// Whether a reservation is a [hold](crate::spi::algorithm::holds) beside the state of the limit. Under the others it is a take.
    pub const fn keeps_holds(&self) -> bool {
        !matches!(self, Self::LeakyBucket(_) | Self::Concurrency(_) | Self::Penalty(_))
    }

    /// The kind of limit.
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::TokenBucket(_) => Algorithm::TokenBucket,
            Self::LeakyBucket(_) => Algorithm::LeakyBucket,
            Self::FixedWindow(_) => Algorithm::FixedWindow,
            Self::SlidingLog(_) => Algorithm::SlidingLog,
            Self::SlidingWindow(_) => Algorithm::SlidingWindow,
            Self::Concurrency(_) => Algorithm::Concurrency,
            Self::Quota(_) => Algorithm::Quota,
            Self::Penalty(_) => Algorithm::Penalty,
        }
    }
}

impl Algorithm {
    /// The name in rule files, metrics and responses, such as `token_bucket`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingWindow => "sliding_window",
            Self::Concurrency => "concurrency",
            Self::Quota => "quota",
            Self::Penalty => "penalty",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl LimitError ===

impl LimitError {
    /// The invalid field, such as `token_bucket.capacity`.
    pub const fn field(&self) -> &'static str {
        self.field
    }

    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }

    pub(crate) fn too_small(field: &'static str, value: u64, bound: u64, reason: &str) -> Self {
        Self::new(field, format!("{value} is below the smallest value, {bound} {reason}"))
    }

    pub(crate) fn too_large(field: &'static str, value: u64, bound: u64, reason: &str) -> Self {
        Self::new(field, format!("{value} is above the largest value, {bound} {reason}"))
    }

    pub(crate) fn check_amount(field: &'static str, amount: u64) -> Result<(), Self> {
        if amount <= MAX_AMOUNT {
            return Ok(());
        }
        Err(Self::too_large(field, amount, MAX_AMOUNT, "(2^52 - 1, which both stores count exactly)"))
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl Error for LimitError {}

/// `span` in microseconds, if it is a whole number of them from 1 to [`MAX_WINDOW`].
pub(crate) fn whole_micros(field: &'static str, span: Duration) -> Result<u64, LimitError> {
    if span.is_zero() {
        return Err(LimitError::new(field, "it is zero; it must be at least 1 microsecond"));
    }
    if !span.subsec_nanos().is_multiple_of(1000) {
        return Err(LimitError::new(field, format!("{span:?} is not a whole number of microseconds")));
    }
    match u64::try_from(span.as_micros()) {
        Ok(micros) if micros <= MAX_WINDOW_MICROS => Ok(micros),
        _ => Err(LimitError::new(field, format!("{span:?} is longer than 100 years, the maximum"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_quota_is_a_part_of_its_amount_and_grace() {
        let periods = Periods::utc(crate::limits::Period::Month);
        let limit = Limit::quota_with_grace(100, 7, periods).unwrap();
        assert_eq!(limit.share(3), Limit::quota_with_grace(33, 2, periods).unwrap());
        assert_eq!(limit.share(1000), Limit::quota(1, periods).unwrap());
        assert_eq!((limit.amount(), limit.window()), (100, Window::MONTH));
    }

    #[test]
    fn a_concurrency_limit_tells_its_parameters() {
        let limit = Limit::concurrency(3, Duration::from_secs(30)).unwrap();
        assert_eq!((limit.amount(), limit.max_window()), (3, Duration::from_secs(30)));
        let Limit::Concurrency(slots) = limit else { panic!("another limit") };
        assert_eq!((slots.max(), slots.lease()), (3, Duration::from_secs(30)));
    }
}
