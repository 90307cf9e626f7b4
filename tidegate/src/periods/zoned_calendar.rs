//! `ZonedCalendar`: which period of a time zone contains an instant, and where periods begin. It computes; the cache remembers.
//!
//! Every period has an index that grows by one from period to period:
//!
//! ```text
//! hours   hours from 0001-01-01 UTC to the hour in UTC in which the period begins
//! days    days from 0001-01-01 to the local date
//! weeks   weeks from Monday 0001-01-01 to the week in which the period begins
//! months  12 · year + month - 1 of the month in which the period begins
//! years   the year in which the period begins
//! ```
//!
//! The same index in two time zones, or with two anchors, means the same hour, date, week, month or year. A period begins at the first
//! instant of its local day or hour: if the clocks skip midnight, the instant at which they are put forward; if they repeat it, the first
//! of the two. A local day that a time zone skipped altogether is an empty period.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, date};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};

use super::{Anchor, Period, PeriodBounds};

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

/// The days from 0001-01-01, a Monday, to 1970-01-01.
const DAYS_BEFORE_1970: i64 = 719_162;
const HOURS_BEFORE_1970: i64 = 24 * DAYS_BEFORE_1970;

/// The periods of one length, time zone and anchor.
pub(super) struct ZonedCalendar {
    period: Period,
    anchor: Option<Anchor>,
    zone: TimeZone,
}

impl ZonedCalendar {
    pub(super) const fn new(period: Period, anchor: Option<Anchor>, zone: TimeZone) -> Self {
        Self { period, anchor, zone }
    }

    pub(super) const fn period(&self) -> Period {
        self.period
    }

    pub(super) const fn anchor(&self) -> Option<Anchor> {
        self.anchor
    }

    /// The period that contains `now`, and its neighbours.
    pub(super) fn bounds_at(&self, now: u64) -> PeriodBounds {
        let now = now.cast_signed();
        let mut index = match self.period {
            Period::Hour => now.div_euclid(HOUR) + HOURS_BEFORE_1970,
            _ => self.index_of(self.zone.to_datetime(instant(now)).date()),
        };
        // Where the clocks repeat midnight, the next date begins, ends, and begins again.
        while self.start(index + 1) <= now {
            index += 1;
        }
        while self.start(index) > now {
            index -= 1;
        }
        PeriodBounds { index: index.unsigned_abs(), starts: [-1, 0, 1, 2].map(|more| micros(self.start(index + more))) }
    }

    /// The first instant of a period in microseconds. Saturates at the years that dates can have.
    pub(super) fn start_of(&self, index: u64) -> u64 {
        micros(self.start(i64::try_from(index).unwrap_or(i64::MAX)))
    }

    /// The index of the period that contains the local `date`.
    fn index_of(&self, date: Date) -> i64 {
        let month = i64::from(date.year()) * 12 + i64::from(date.month()) - 1;
        let index = match self.period {
            Period::Hour | Period::Day => days_of(date),
            Period::Week => days_of(date).div_euclid(7),
            Period::Month => month,
            Period::Year => i64::from(date.year()),
        };
        if self.first_date(index).is_some_and(|first| date < first) { index - 1 } else { index }
    }

    /// The local date on which a period begins. `None` if no calendar has it.
    fn first_date(&self, index: i64) -> Option<Date> {
        match self.anchor {
            None => date_of(index),
            Some(Anchor::Weekday(weekday)) => {
                date_of(index.checked_mul(7)?.checked_add(weekday.days_after_monday().cast_signed())?)
            }
            Some(Anchor::Day(day)) => clipped(index.div_euclid(12), index.rem_euclid(12) as u8 + 1, day),
            Some(Anchor::Date { month, day }) => clipped(index, month, day),
        }
    }

    fn start(&self, index: i64) -> i64 {
        if self.period == Period::Hour {
            return self.start_of_hour(index.saturating_sub(HOURS_BEFORE_1970).saturating_mul(HOUR));
        }
        self.first_date(index).map_or(i64::MAX, |date| self.start_of_day(date))
    }

    /// The instant within the hour from `utc` on at which the local clocks show a full hour. If they never do, since they are changed by
    /// a part of an hour, the instant of that change.
    fn start_of_hour(&self, utc: i64) -> i64 {
        let full_hour = |at: i64| {
            let offset = seconds(self.zone.to_offset(instant(at))) * 1_000_000;
            utc.saturating_add((-offset).rem_euclid(HOUR))
        };
        let start = full_hour(utc);
        let change = self.zone.following(instant(utc)).next().map(|change| change.timestamp().as_microsecond());
        match change {
            Some(change) if change <= start => full_hour(change).max(change),
            _ => start,
        }
    }

    /// The first instant of a local day.
    fn start_of_day(&self, date: Date) -> i64 {
        let midnight = date.at(0, 0, 0, 0);
        let at = |offset: Offset| days_of(date).wrapping_sub(DAYS_BEFORE_1970) * DAY - seconds(offset) * 1_000_000;
        match self.zone.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => at(offset),
            // The first of the two midnights.
            AmbiguousOffset::Fold { before, .. } => at(before),
            // The clocks were put forward at or before the midnight that they skip.
            AmbiguousOffset::Gap { before, .. } => {
                let skipped = at(before);
                let put_forward = self.zone.preceding(instant(skipped + 1)).next();
                put_forward.map_or(skipped, |change| change.timestamp().as_microsecond())
            }
        }
    }

    /// The local time, and its offset from UTC in seconds.
    pub(super) fn local_time(&self, now: u64) -> (DateTime, i64) {
        let now = instant(now.cast_signed());
        (self.zone.to_datetime(now), seconds(self.zone.to_offset(now)))
    }
}

fn seconds(offset: Offset) -> i64 {
    i64::from(offset.seconds())
}

/// Days from 0001-01-01 on.
fn days_of(day: Date) -> i64 {
    day.duration_since(date(1970, 1, 1)).as_hours() / 24 + DAYS_BEFORE_1970
}

fn date_of(days: i64) -> Option<Date> {
    let since_1970 = days.checked_sub(DAYS_BEFORE_1970)?.checked_mul(24)?;
    let hours = jiff::SignedDuration::try_from_hours(since_1970)?;
    date(1970, 1, 1).checked_add(hours).ok()
}

/// The day of a month, or its last day if it is shorter.
fn clipped(year: i64, month: u8, day: u8) -> Option<Date> {
    let first = Date::new(i16::try_from(year).ok()?, month.cast_signed(), 1).ok()?;
    let day = day.cast_signed().min(first.days_in_month());
    Date::new(first.year(), first.month(), day).ok()
}

/// An instant of jiff, which has no years after 9999.
fn instant(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(if micros < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// Microseconds from 1970 on. What began before then began in 1970.
const fn micros(instant: i64) -> u64 {
    if instant < 0 { 0 } else { instant.unsigned_abs() }
}
