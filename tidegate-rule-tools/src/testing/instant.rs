//! Parses instants: `2026-01-01T00:00:00Z`, or with an offset, `2026-03-29T03:00:00+02:00`.

use tidegate::Timestamp;

/// Midnight, the first of January 2026: windows of every common length begin there.
pub(super) const DEFAULT_START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

const INSTANT_HELP: &str = "write one such as 2026-01-01T00:00:00Z or 2026-01-01T00:00:00+02:00";

/// Whether a time is an instant and not a duration, which has no dates.
pub(super) fn is_instant(text: &str) -> bool {
    text.contains('-')
}

/// Parses `2026-01-01T12:30:00Z`, the same with an offset, or a day, which starts at midnight UTC.
pub(super) fn parse_instant(text: &str) -> Result<Timestamp, String> {
    let invalid = || format!("not a valid time; {INSTANT_HELP}");
    let (date, time) =
        text.trim().split_once(['T', 't', ' ']).map_or((text.trim(), None), |(date, time)| (date, Some(time)));
    let [year, month, day] = numbers(date, '-', [4, 2, 2]).ok_or_else(invalid)?;
    let (time, offset) = match time.map(split_offset) {
        None => (None, 0),
        Some(None) => return Err(format!("the time zone is missing; {INSTANT_HELP}")),
        Some(Some((time, offset))) => (Some(time), offset_minutes(offset).ok_or_else(invalid)?),
    };
    let [hour, minute, second] = match time {
        None => [0; 3],
        Some(time) => numbers(time, ':', [2; 3]).ok_or_else(invalid)?,
    };
    if !(1970..2112).contains(&year) {
        return Err(format!("the time must be in the years 1970 to 2111; {INSTANT_HELP}"));
    }
    if month == 0 || month > 12 || day == 0 || day > days_in(year, month) || hour > 23 || minute > 59 || second > 59 {
        return Err(format!("no such date or time exists; {INSTANT_HELP}"));
    }
    let days_before = |year: u64| 365 * year + year / 4 - year / 100 + year / 400;
    let months: u64 = (1..month).map(|month| days_in(year, month)).sum();
    let days = days_before(year - 1) - days_before(1969) + months + day - 1;
    let local_minutes = (days * 24 + hour) * 60 + minute;
    // An instant before 1970 in UTC, on its first day elsewhere.
    let minutes = local_minutes
        .checked_add_signed(-offset)
        .ok_or_else(|| format!("no such date or time exists; {INSTANT_HELP}"))?;
    Ok(Timestamp::from_micros((minutes * 60 + second) * 1_000_000))
}

/// The time of day, and the offset from UTC behind it; `None` without an offset.
fn split_offset(text: &str) -> Option<(&str, &str)> {
    let index = text.find(['Z', 'z', '+', '-'])?;
    Some(text.split_at(index))
}

/// The minutes that a local time is ahead of UTC, from `Z`, `+02:00` or `-03:30`.
fn offset_minutes(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let (sign, digits) =
        if let Some(digits) = text.strip_prefix('+') { (1, digits) } else { (-1, text.strip_prefix('-')?) };
    let (hours, minutes) = digits.split_once(':')?;
    let number = |digits: &str, most: i64| {
        let fits = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|number: &i64| fits && *number <= most)
    };
    Some(sign * (60 * number(hours, 23)? + number(minutes, 59)?))
}

/// Three numbers with these numbers of digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part =
            parts.next().filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

fn days_in(year: u64, month: u64) -> u64 {
    let leap = (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read_with_their_offset() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("1970-01-02T00:00:01Z", 86_401),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2000-03-01 00:00:00z", 951_868_800),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
            ("2026-01-01", 1_767_225_600),
            ("2100-03-01", 4_107_542_400),
            ("2026-03-29T03:00:00+02:00", 1_774_746_000),
            ("2026-03-28T21:30:00-03:30", 1_774_746_000),
        ] {
            assert_eq!(parse_instant(text), Ok(Timestamp::from_micros(seconds * 1_000_000)), "{text}");
        }
        assert_eq!(parse_instant("2026-01-01"), Ok(DEFAULT_START));
    }

    #[test]
    fn invalid_start_times_are_rejected() {
        for (text, problem) in [
            ("", "not a valid time"),
            ("yesterday", "not a valid time"),
            ("2026-1-1", "not a valid time"),
            ("2026-01-01T00:00Z", "not a valid time"),
            ("2026-01-01T00:00:00.5Z", "not a valid time"),
            ("2026-01-01T00:00:00", "the time zone is missing"),
            ("2026-01-01T00:00:00+1:00", "not a valid time"),
            ("2026-01-01T00:00:00+24:00", "not a valid time"),
            ("2026-01-01T00:00:00+01:60", "not a valid time"),
            ("2026-01-01T00:00:00Zulu", "not a valid time"),
            ("1970-01-01T00:00:00+01:00", "no such date or time exists"),
            ("2026-02-29", "no such date or time exists"),
            ("2100-02-29", "no such date or time exists"),
            ("2026-13-01", "no such date or time exists"),
            ("2026-00-01", "no such date or time exists"),
            ("2026-01-00", "no such date or time exists"),
            ("2026-01-01T24:00:00Z", "no such date or time exists"),
            ("1969-12-31", "the time must be in the years 1970 to 2111"),
            ("9999-12-31", "the time must be in the years 1970 to 2111"),
        ] {
            let expected = format!("{problem}; {INSTANT_HELP}");
            assert_eq!(parse_instant(text), Err(expected), "{text}");
        }
    }
}
