//! Periods and instants as texts: `2026`, `2026-03`, `2026-03-29`, `2026-03-29T05`, and for instants RFC 3339.
//!
//! The index of a period means the same date in all time zones, so texts of periods are those of the calendar in UTC.

use jiff::civil::{Date, DateTime, date};
use jiff::tz::TimeZone;
use tidegate::{Period, Periods, Timestamp};

/// The date of the period with this index: of an hour, a day or the first day of a week, a month, or a year.
pub(crate) fn period_text(period: Period, index: u64) -> String {
    let periods = Periods::utc(period);
    let mut text = periods.local_time(Timestamp::from_micros(periods.start_of(index)));
    text.truncate(match period {
        Period::Year => 4,
        Period::Month => 7,
        Period::Hour => 13,
        _ => 10,
    });
    text
}

/// The index of the period that contains the beginning of this date. `None` if it is no date.
pub(crate) fn period_index(period: Period, text: &str) -> Option<u64> {
    parse_time(text).map(|at| Periods::utc(period).bounds_at(at).index)
}

/// The first instant of a date, or an instant in the format of RFC 3339. `None` if it is neither, or before 1970.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let micros = match text.parse::<jiff::Timestamp>() {
        Ok(instant) => instant.as_microsecond(),
        Err(_) => parse_date(text)?.to_zoned(TimeZone::UTC).ok()?.timestamp().as_microsecond(),
    };
    u64::try_from(micros).ok().map(Timestamp::from_micros)
}

/// The first instant behind a year, a month, a day or an hour; an instant in the format of RFC 3339 is itself.
pub(crate) fn end_of(text: &str) -> Option<Timestamp> {
    if text.parse::<jiff::Timestamp>().is_ok() {
        return parse_time(text);
    }
    let period = match text.len() {
        4 => Period::Year,
        7 => Period::Month,
        10 => Period::Day,
        _ => Period::Hour,
    };
    Some(Periods::utc(period).end_after(parse_time(text)?))
}

fn parse_date(text: &str) -> Option<DateTime> {
    let (day, hour) = match text.split_once('T') {
        Some((day, hour)) => (day, number(hour, 2)?),
        None => (text, 0),
    };
    let mut parts = day.split('-');
    let year = number(parts.next()?, 4)?;
    let [month, day] = [parts.next(), parts.next()];
    if parts.next().is_some() || (hour > 0 && day.is_none()) || (text.contains('T') && day.is_none()) {
        return None;
    }
    let part = |part: Option<&str>| part.map_or(Some(1), |part| number(part, 2));
    let (month, day) = (i8::try_from(part(month)?).ok()?, i8::try_from(part(day)?).ok()?);
    let date = Date::new(year, month, day).ok().filter(|day| *day >= date(1970, 1, 1))?;
    DateTime::new(date.year(), date.month(), date.day(), i8::try_from(hour).ok()?, 0, 0, 0).ok()
}

/// A number of exactly `digits` digits.
fn number(text: &str, digits: usize) -> Option<i16> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_period_names_the_same_period() {
        let at = parse_time("2026-03-29T05:06:07Z").unwrap();
        for (period, text) in [
            (Period::Hour, "2026-03-29T05"),
            (Period::Day, "2026-03-29"),
            (Period::Week, "2026-03-23"),
            (Period::Month, "2026-03"),
            (Period::Year, "2026"),
        ] {
            let index = Periods::utc(period).bounds_at(at).index;
            assert_eq!(period_text(period, index), text);
            assert_eq!(period_index(period, text), Some(index), "{text}");
        }
        assert_eq!(period_index(Period::Month, "2026-03-31"), period_index(Period::Month, "2026-03"));
    }

    #[test]
    fn the_end_of_a_date_is_the_beginning_of_the_next_one() {
        for (text, next) in
            [("2026", "2027"), ("2026-12", "2027-01"), ("2026-02-28", "2026-03-01"), ("2026-02-28T23", "2026-03-01")]
        {
            assert_eq!(end_of(text), parse_time(next), "{text}");
        }
        assert_eq!(end_of("2026-02-28T05:00:00Z"), parse_time("2026-02-28T05"));
        assert_eq!(end_of("2026-02-30"), None);
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in
            ["", "26", "2026-3", "2026-13", "2026-02-30", "2026-02-01-", "2026T05", "2026-02-01T25", "now", "1969"]
        {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
