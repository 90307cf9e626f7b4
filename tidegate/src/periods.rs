//! `Periods`: the calendar periods of a quota: hours, days, weeks, months or years in a time zone, from an anchor on.
//!
//! They depend on a time zone, so only Rust computes them, by the crate `jiff` from its own copy of the time-zone database. A calendar is
//! made once for each length, zone and anchor. A script receives the index of a period and four instants: the starts of the period
//! before, of this one, of the next one, and of the one after that. It picks by its own time.

mod anchor;
mod bounds_cache;
mod local_time;
#[cfg(test)]
mod tests;
mod time_zones;
mod zoned_calendar;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

pub use anchor::{Anchor, Weekday};
use bounds_cache::BoundsCache;
pub use bounds_cache::PeriodBounds;
use zoned_calendar::ZonedCalendar;

use crate::Timestamp;
use crate::algorithm::Calendar;
use crate::limit::LimitError;
use crate::limits::Window;
use crate::sync::RwLock;

/// The length of the periods of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Period {
    /// An hour of the local time. An hour that the clocks repeat is a period of its own.
    Hour,
    /// A local day, of 23 or 25 hours where the clocks change.
    Day,
    /// Seven local days.
    Week,
    /// A calendar month, from the anchor day on.
    Month,
    /// A calendar year, from the anchor date on.
    Year,
}

/// The periods of a [quota](crate::Limit::quota): a length, a time zone, and the day on which periods begin.
///
/// A handle to a calendar that lives as long as the process: copies are free, and equal periods share one calendar.
///
/// ```
/// use tidegate::limits::{Anchor, Period, Periods};
/// use tidegate::Timestamp;
///
/// // Billing months in Berlin that begin on the 31st, or on the last day of shorter months.
/// let months = Periods::new(Period::Month, "Europe/Berlin", Some(Anchor::Day(31)))?;
/// let noon = Timestamp::from_micros(1_771_930_800_000_000); // 24 February 2026, 12:00 in Berlin
/// assert_eq!(months.end_after(noon).as_micros(), 1_772_233_200_000_000); // 28 February, 0:00 in Berlin
///
/// let error = Periods::new(Period::Day, "Europe/Berln", None).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "quota.timezone: `Europe/Berln` is not a time zone of the IANA database; did you mean `Europe/Berlin`?"
/// );
/// # Ok::<(), tidegate::limits::LimitError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Periods(&'static PeriodCalendar);

/// An interned calendar.
struct PeriodCalendar {
    zoned: ZonedCalendar,
    /// The name of the time zone in its usual spelling.
    zone: String,
    cache: BoundsCache,
}

/// Every calendar of the process. Their number is bounded by the zones and anchors that exist.
type Interned = HashMap<(Period, String, Option<Anchor>), &'static PeriodCalendar>;

static INTERNED: LazyLock<RwLock<Interned>> = LazyLock::new(RwLock::default);

/// More than the hours of any period.
const HOURS_BOUND: u64 = 16_384;

const HOUR_MICROS: u64 = 3_600_000_000;

impl Periods {
    /// Periods in UTC that begin at their usual time: weeks on Monday, months on the first, years on the first of January.
    pub fn utc(period: Period) -> Self {
        Self::interned(period, "UTC".into(), Anchor::default_of(period), jiff::tz::TimeZone::UTC)
    }

    /// Periods in a time zone of the IANA database, such as `Europe/Berlin`. The database is compiled in, so that all instances of a
    /// version agree.
    ///
    /// Without an `anchor`, weeks begin on Monday, months on the first and years on the first of January. Hours and days take none.
    pub fn new(period: Period, time_zone: &str, anchor: Option<Anchor>) -> Result<Self, LimitError> {
        let anchor = Anchor::validate(anchor, period)?;
        let (zone, name) = time_zones::find(time_zone)?;
        Ok(Self::interned(period, name, anchor, zone))
    }

    fn interned(period: Period, name: String, anchor: Option<Anchor>, zone: jiff::tz::TimeZone) -> Self {
        let key = (period, name, anchor);
        if let Some(known) = INTERNED.read().get(&key) {
            return Self(known);
        }
        let mut interned = INTERNED.write();
        let zone_name = key.1.clone();
        let calendar = interned.entry(key).or_insert_with(|| {
            let zoned = ZonedCalendar::new(period, anchor, zone);
            Box::leak(Box::new(PeriodCalendar { zoned, zone: zone_name, cache: BoundsCache::default() }))
        });
        Self(calendar)
    }

    /// The length of the periods.
    pub const fn period(self) -> Period {
        self.0.zoned.period()
    }

    /// The name of the time zone.
    pub fn time_zone(self) -> &'static str {
        &self.0.zone
    }

    /// The day on which periods begin; `None` for hours and days.
    pub const fn anchor(self) -> Option<Anchor> {
        self.0.zoned.anchor()
    }

    /// The end of the period that contains `now`, which is the start of the next one.
    pub fn end_after(self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(self.bounds_at(now).starts[2])
    }

    /// The period that contains `now`, and the ones before and after it.
    #[inline]
    pub fn bounds_at(self, now: Timestamp) -> PeriodBounds {
        self.0.cache.get_or_compute(now.as_micros(), || self.0.zoned.bounds_at(now.as_micros()))
    }

    /// Passes to `push` what the scripts take in place of a calendar: the index of the period at `now` with the hours of the longest one,
    /// and the first instants of four periods.
    #[inline]
    pub fn push_numbers(self, now: Timestamp, mut push: impl FnMut(f64)) {
        let bounds = self.bounds_at(now);
        push((bounds.index * HOURS_BOUND + self.max_hours()) as f64);
        bounds.starts.iter().for_each(|start| push(*start as f64));
    }

    /// The first instant of the period with this index, in microseconds.
    pub fn start_of(self, index: u64) -> u64 {
        self.0.cache.start_of(index).unwrap_or_else(|| self.0.zoned.start_of(index))
    }

    /// No period is longer than this, in hours.
    pub const fn max_hours(self) -> u64 {
        self.period().max_hours()
    }

    /// The same in microseconds.
    pub(crate) const fn max_micros(self) -> u64 {
        self.max_hours() * HOUR_MICROS
    }
}

impl PartialEq for Periods {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Periods {}

impl fmt::Debug for Periods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Periods({} in {}", self.period(), self.time_zone())?;
        if let Some(anchor) = self.anchor() {
            write!(f, " from {anchor}")?;
        }
        f.write_str(")")
    }
}

impl Period {
    /// All lengths, from the shortest.
    pub const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The name in rule files: `hour`, `day`, `week`, `month` or `year`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The usual length, for display: a day is 24 hours.
    pub const fn window(self) -> Window {
        Window::from_calendar(self.calendar())
    }

    pub(crate) const fn calendar(self) -> Calendar {
        match self {
            Self::Hour => Calendar::from_micros(HOUR_MICROS),
            Self::Day => Calendar::from_micros(24 * HOUR_MICROS),
            Self::Week => Calendar::from_micros(7 * 24 * HOUR_MICROS),
            Self::Month => Calendar::from_months(1),
            Self::Year => Calendar::from_months(12),
        }
    }

    /// An upper bound of the length in any time zone: clocks that change make an hour up to two and a day up to 48 hours long, and
    /// other periods up to a day longer.
    const fn max_hours(self) -> u64 {
        match self {
            Self::Hour => 2,
            Self::Day => 48,
            Self::Week => 8 * 24,
            Self::Month => 32 * 24,
            Self::Year => 367 * 24,
        }
    }
}

impl FromStr for Period {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let problem = || format!("`{text}` is none of hour, day, week, month and year");
        Self::ALL
            .into_iter()
            .find(|period| period.as_str() == text)
            .ok_or_else(|| LimitError::new("quota.period", problem()))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The time from `now` to `instant` in microseconds; zero if that has passed.
pub(crate) const fn until(instant: u64, now: Timestamp) -> Duration {
    Duration::from_micros(instant.saturating_sub(now.as_micros()))
}
