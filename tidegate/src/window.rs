//! `Window`: the length of a fixed window: a duration, or a calendar month or year in UTC.

use std::convert::Infallible;
use std::time::Duration;

use crate::Timestamp;
use crate::algorithm::Calendar;

/// The length of the windows of a [fixed window](crate::Limit::fixed_window).
///
/// A [`Duration`] converts into a window; such windows begin at multiples of it since 1970. Months and years are those of the
/// calendar in UTC.
///
/// ```
/// use std::time::Duration;
/// use tidegate::limits::Window;
/// use tidegate::Limit;
///
/// let minute = Limit::fixed_window(600, Duration::from_secs(60))?;
/// let month = Limit::fixed_window(1_000_000, Window::MONTH)?;
/// assert_eq!(minute.window().duration(), Some(Duration::from_secs(60)));
/// assert_eq!(month.window(), Window::MONTH);
/// # Ok::<(), tidegate::limits::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window(WindowLength);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WindowLength {
    Duration(Duration),
    Months(u32),
}

impl Window {
    /// A calendar month in UTC.
    pub const MONTH: Self = Self(WindowLength::Months(1));

    /// A calendar year in UTC.
    pub const YEAR: Self = Self(WindowLength::Months(12));

    /// The length of each window; `None` for months and years, which vary.
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            WindowLength::Duration(span) => Some(span),
            WindowLength::Months(_) => None,
        }
    }

    /// The time from `now` to the end of the window that contains it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::limits::Window;
    /// use tidegate::Timestamp;
    ///
    /// let day = Duration::from_secs(86_400);
    /// let noon = Timestamp::from_micros(0).plus(day / 2); // on the first of January 1970
    /// assert_eq!(Window::from(day).until_end(noon), day / 2);
    /// assert_eq!(Window::MONTH.until_end(noon), day * 31 - day / 2);
    /// ```
    pub fn until_end(self, now: Timestamp) -> Duration {
        // A length that no limit accepts is clamped.
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let Ok(calendar) = self.calendar(|span| Ok::<_, Infallible>(micros(span)));
        Duration::from_micros(calendar.start_of(calendar.index_of(now) + 1).saturating_sub(now.as_micros()))
    }

    pub(crate) const fn from_calendar(calendar: Calendar) -> Self {
        match calendar.months() {
            None => Self(WindowLength::Duration(Duration::from_micros(calendar.max_micros()))),
            Some(months) => Self(WindowLength::Months(months)),
        }
    }

    /// The calendar of these windows. `micros` converts and validates a duration.
    pub(crate) fn calendar<E>(self, micros: impl FnOnce(Duration) -> Result<u64, E>) -> Result<Calendar, E> {
        Ok(match self.0 {
            WindowLength::Duration(span) => Calendar::from_micros(micros(span)?),
            WindowLength::Months(months) => Calendar::from_months(months),
        })
    }
}

impl From<Duration> for Window {
    fn from(span: Duration) -> Self {
        Self(WindowLength::Duration(span))
    }
}
