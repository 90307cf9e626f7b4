//! Periods and instants as texts: `2026`, `2026-03`, `2026-03-29`, `2026-03-29T05`, and for instants RFC 3339.
//!
//! The index of a period means the same date in all time zones, so texts of periods are those of the calendar in UTC.

use jiff::civil::{Date, DateTime, date};
use tidegate::Timestamp;
use tidegate::limits::{Period, Periods};
pub(crate) use tidegate_ledger::period_text;

/// The index of the period with this [text](period_text). `None` if it is that of no period of this length: the day 2026-03-01 and the
/// month 2026-03 begin at the same time, and who writes the one does not mean the other.
pub(crate) fn period_index(period: Period, text: &str) -> Option<u64> {
    let index = Periods::utc(period).bounds_at(parse_time(text)?).index;
    (period_text(period, index) == text).then_some(index)
}

/// How a period of this length is written, for example the one with this index.
pub(crate) fn period_form(period: Period, index: u64) -> String {
    let name = match period {
        Period::Week => "the Monday of a week",
        period => period.as_str(),
    };
    let article = match period {
        Period::Week => "",
        Period::Hour => "an ",
        _ => "a ",
    };
    format!("write {article}{name} such as {}", period_text(period, index))
}

/// The first instant of a date, or an instant in the format of RFC 3339. `None` if it is neither, or before 1970.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let micros = match text.parse::<jiff::Timestamp>() {
        Ok(instant) => instant.as_microsecond().into(),
        // The last days of the calendar are too late for an instant of jiff in every time zone.
        Err(_) => parse_date(text)?.duration_since(date(1970, 1, 1).at(0, 0, 0, 0)).as_micros(),
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
    }

    #[test]
    fn a_period_is_written_with_the_precision_of_its_length() {
        for (period, texts) in [
            (Period::Hour, ["2026-03-29", "2026-03-29T05:00:00Z", "2026"]),
            (Period::Day, ["2026-03", "2026", "2026-03-29T00"]),
            // A Tuesday: a week that begins on Wednesday has it in another week than one that begins on Monday.
            (Period::Week, ["2026-03-24", "2026-03", "2026"]),
            (Period::Month, ["2026-03-01", "2026", "2026-03-31"]),
            (Period::Year, ["2026-01", "2026-01-01", "26"]),
        ] {
            for text in texts {
                assert_eq!(period_index(period, text), None, "{text}");
            }
        }
        let form = |period: Period, text: &str| period_form(period, period_index(period, text).unwrap());
        assert_eq!(form(Period::Day, "2026-03-29"), "write a day such as 2026-03-29");
        assert_eq!(form(Period::Hour, "2026-03-29T05"), "write an hour such as 2026-03-29T05");
        assert_eq!(form(Period::Week, "2026-03-23"), "write the Monday of a week such as 2026-03-23");
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
