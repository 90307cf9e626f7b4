//! `Window`: how long a fixed window lasts, as it is written: a span of time, or a month or year of the calendar. It knows
//! no time zone but UTC.

use std::convert::Infallible;
use std::time::Duration;

use crate::Timestamp;
use crate::algorithm::Calendar;

/// How long a window of a [fixed window](crate::Limit::fixed_window) lasts.
///
/// A [`Duration`] is a window: such windows begin at multiples of it since 1970. Months and years are those of the
/// calendar, in UTC: February has 28 days, or 29.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Window};
///
/// let minute = Limit::fixed_window(600, Duration::from_secs(60))?;
/// let month = Limit::fixed_window(1_000_000, Window::MONTH)?;
/// assert_eq!(minute.window().span(), Some(Duration::from_secs(60)));
/// assert_eq!(month.window(), Window::MONTH);
/// # Ok::<(), tidegate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Span(Duration),
    Months(u32),
}

impl Window {
    /// A month of the calendar, in UTC.
    pub const MONTH: Self = Self(Kind::Months(1));

    /// A year of the calendar, in UTC.
    pub const YEAR: Self = Self(Kind::Months(12));

    /// How long each of these windows lasts. None for months and years, which differ among themselves.
    pub const fn span(self) -> Option<Duration> {
        match self.0 {
            Kind::Span(span) => Some(span),
            Kind::Months(_) => None,
        }
    }

    /// The time from `now` to the end of the window that holds it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Timestamp, Window};
    ///
    /// let day = Duration::from_secs(86_400);
    /// let noon = Timestamp::from_micros(0).plus(day / 2); // on the first of January 1970
    /// assert_eq!(Window::from(day).until_end(noon), day / 2);
    /// assert_eq!(Window::MONTH.until_end(noon), day * 31 - day / 2);
    /// ```
    pub fn until_end(self, now: Timestamp) -> Duration {
        // A span that no limit would accept is taken for the nearest one that makes sense.
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let Ok(calendar) = self.calendar(|span| Ok::<_, Infallible>(micros(span)));
        Duration::from_micros(calendar.start_of(calendar.index_of(now) + 1).saturating_sub(now.as_micros()))
    }

    pub(crate) const fn of(calendar: Calendar) -> Self {
        match calendar.months() {
            None => Self(Kind::Span(Duration::from_micros(calendar.longest()))),
            Some(months) => Self(Kind::Months(months)),
        }
    }

    /// Where such windows begin, with the microseconds that are made of a span.
    pub(crate) fn calendar<E>(self, micros: impl FnOnce(Duration) -> Result<u64, E>) -> Result<Calendar, E> {
        Ok(match self.0 {
            Kind::Span(span) => Calendar::of_micros(micros(span)?),
            Kind::Months(months) => Calendar::of_months(months),
        })
    }
}

impl From<Duration> for Window {
    fn from(span: Duration) -> Self {
        Self(Kind::Span(span))
    }
}
