//! `Anchor`: the day on which the periods of a quota begin.

use std::fmt;
use std::str::FromStr;

use super::Period;
use crate::limit::LimitError;

const FIELD: &str = "quota.anchor";

/// The day on which the periods of a quota begin.
///
/// ```
/// use tidegate::limits::{Anchor, Weekday};
///
/// assert_eq!("sunday".parse(), Ok(Anchor::Weekday(Weekday::Sunday)));
/// assert_eq!("15".parse(), Ok(Anchor::Day(15)));
/// assert_eq!("04-06".parse(), Ok(Anchor::Date { month: 4, day: 6 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Anchor {
    /// The weekday on which weeks begin.
    Weekday(Weekday),
    /// The day on which months begin, 1 to 31. In a shorter month it is the last day.
    Day(u8),
    /// The date on which years begin. 29 February is 28 February in other years.
    Date {
        /// 1 to 12.
        month: u8,
        /// 1 to 31, as the month has.
        day: u8,
    },
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Anchor {
    /// The usual start of such periods; `None` for hours and days.
    pub(super) const fn default_of(period: Period) -> Option<Self> {
        match period {
            Period::Hour | Period::Day => None,
            Period::Week => Some(Self::Weekday(Weekday::Monday)),
            Period::Month => Some(Self::Day(1)),
            Period::Year => Some(Self::Date { month: 1, day: 1 }),
        }
    }

    /// The anchor of periods of this length, or an error if they cannot begin on it.
    pub(super) fn validate(anchor: Option<Self>, period: Period) -> Result<Option<Self>, LimitError> {
        let Some(anchor) = anchor else { return Ok(Self::default_of(period)) };
        let problem = match (period, anchor) {
            (Period::Week, Self::Weekday(_)) | (Period::Month, Self::Day(1..=31)) => return Ok(Some(anchor)),
            (Period::Year, Self::Date { month, day }) if (1..=days_in(month)).contains(&day) => {
                return Ok(Some(anchor));
            }
            (Period::Hour | Period::Day, _) => format!("periods of a {period} take no anchor"),
            (Period::Week, _) => format!("`{anchor}` is not a weekday, on which a week begins: monday to sunday"),
            (Period::Month, _) => format!("`{anchor}` is not a day on which a month begins: 1 to 31"),
            (Period::Year, _) => format!("`{anchor}` is not a date on which a year begins: MM-DD, such as 04-01"),
        };
        Err(LimitError::new(FIELD, problem))
    }
}

/// The days of a month in a leap year; 0 if there is no such month.
const fn days_in(month: u8) -> u8 {
    match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    }
}

impl Weekday {
    const ALL: [Self; 7] =
        [Self::Monday, Self::Tuesday, Self::Wednesday, Self::Thursday, Self::Friday, Self::Saturday, Self::Sunday];

    /// The English name in small letters, as rule files have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }

    /// Days after Monday.
    pub(super) const fn days_after_monday(self) -> u64 {
        self as u64
    }
}

impl FromStr for Anchor {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let two_digits = |digits: &str| digits.parse().ok().filter(|_| digits.len() == 2 && is_digits(digits));
        let date = || {
            let (month, day) = text.split_once('-')?;
            Some(Self::Date { month: two_digits(month)?, day: two_digits(day)? })
        };
        let day = || text.parse().ok().filter(|_| is_digits(text)).map(Self::Day);
        let weekday = || Weekday::ALL.into_iter().find(|day| day.as_str() == text).map(Self::Weekday);
        let problem =
            || format!("`{text}` is neither a weekday (monday), nor a day of the month (15), nor a date (MM-DD)");
        weekday().or_else(day).or_else(date).ok_or_else(|| LimitError::new(FIELD, problem()))
    }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weekday(weekday) => f.write_str(weekday.as_str()),
            Self::Day(day) => write!(f, "{day}"),
            Self::Date { month, day } => write!(f, "{month:02}-{day:02}"),
        }
    }
}

impl fmt::Display for Weekday {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
