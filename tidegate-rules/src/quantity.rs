//! Quantities: durations (`1m30s`), windows (`1m`, `month`), rates (`10/s`) and counts (`10k`), parsed and formatted.
//!
//! Everything is exact: a value that would need rounding is an error. Error messages do not name the field; callers do.

use std::time::Duration;

use tidegate::Rate;
use tidegate::limits::Window;
use tidegate::spi::{MAX_AMOUNT, MAX_WINDOW};

/// The longest text that is parsed, so that every error can quote it.
const MAX_TEXT_BYTES: usize = 64;

/// The most decimals of a number: ten to this power fits 64 bits.
const MAX_DECIMALS: usize = 18;

/// How to write a rate.
const RATE_HELP: &str = "write 10/s or 100/m";

const SECOND_MICROS: u64 = 1_000_000;
const MINUTE_MICROS: u64 = 60 * SECOND_MICROS;
const HOUR_MICROS: u64 = 60 * MINUTE_MICROS;
/// [`MAX_WINDOW`] in microseconds.
const MAX_WINDOW_MICROS: u64 = MAX_WINDOW.as_micros() as u64;

const DAY_MICROS: u64 = 24 * HOUR_MICROS;

/// A decimal number: `digits` divided by ten to the power of `places`.
#[derive(Clone, Copy)]
struct Decimal {
    digits: u64,
    places: u32,
}

/// Why a number times a unit is not an integer in range.
enum ScaleError {
    Fraction,
    TooLarge,
}

/// Parses a duration: numbers with units, summed, such as `1m30s`, `500ms`, `1.5s` or `10 minutes`. The error says what to
/// write.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tidegate_rules::parse_duration("1m30s"), Ok(Duration::from_secs(90)));
/// assert_eq!(tidegate_rules::parse_duration("90").unwrap_err(), "\"90\" lacks a unit; write 10s or 10m");
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const HELP: &str = "write 10s or 10m";
    let mut rest = bounded(text)?;
    if rest.is_empty() {
        return Err(format!("the duration is empty; {HELP}"));
    }
    let mut total = 0;
    while !rest.is_empty() {
        let (number, after) = decimal(rest)
            .map_err(|problem| varying_unit(rest).map_or_else(|| format!("{problem}; {HELP}"), ToOwned::to_owned))?;
        let (unit, after) = word(after.trim_start());
        if unit.is_empty() {
            return Err(format!("{text:?} lacks a unit; {HELP}"));
        }
        let micros = number.times(unit_micros(unit)?).map_err(|error| match error {
            ScaleError::Fraction => format!("{text:?} is not a whole number of microseconds; round it, in us"),
            ScaleError::TooLarge => too_long(text),
        })?;
        total = micros.checked_add(total).filter(|sum| *sum <= MAX_WINDOW_MICROS).ok_or_else(|| too_long(text))?;
        rest = after.trim_start();
    }
    Ok(Duration::from_micros(total))
}

/// Parses a window: a duration, or a calendar `month` or `year`.
pub(crate) fn parse_window(text: &str) -> Result<Window, String> {
    let whole = bounded(text)?;
    match whole {
        "month" => return Ok(Window::MONTH),
        "year" => return Ok(Window::YEAR),
        _ => {}
    }
    // Several months, or another spelling: the error says what to write.
    let (number, unit) = decimal(whole).unwrap_or((Decimal { digits: 1, places: 0 }, whole));
    let days = match unit.trim_start().to_lowercase().as_str() {
        unit if unit.contains(|c: char| !c.is_alphabetic()) => None,
        unit if unit.starts_with("month") => Some(30),
        unit if unit.starts_with("year") || unit == "y" => Some(365),
        _ => None,
    };
    let Some(days) = days else { return parse_duration(text).map(Window::from) };
    let days = number.times(days).ok().filter(|days| (1..=MAX_WINDOW_MICROS / DAY_MICROS).contains(days));
    let span = days.map_or_else(String::new, |days| format!(", or {days}d for a fixed length"));
    Err(format!("{text:?} is not a window; write month or year for a calendar one{span}"))
}

/// Parses a rate: an amount and a time, such as `10/s`, `5/10m`, `0.5/s` or `10 per second`.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, String> {
    let (amount, time) = amount_and_time(text)?;
    let (number, factor) = amount_of(amount).map_err(|problem| format!("{problem}; {RATE_HELP}"))?;
    let period = match word(time) {
        ("", "") => return Err(format!("{text:?} lacks the time; {RATE_HELP}")),
        // A unit without a number means one.
        (unit, "") => unit_micros(unit)?,
        _ => u64::try_from(parse_duration(time)?.as_micros()).unwrap_or(u64::MAX), // never above the longest window
    };
    // 0.5 per second is 5 per ten seconds: decimals lengthen the period, so that nothing is rounded.
    let units = u128::from(number.digits) * u128::from(factor);
    let micros = u128::from(period) * number.scale();
    let divisor = greatest_common_divisor(units, micros).max(1);
    // Values that do not fit are far above the bounds, and refused below.
    let part = |of: u128| u64::try_from(of / divisor).unwrap_or(u64::MAX);
    Rate::new(part(units), Duration::from_micros(part(micros))).map_err(|error| error.to_string())
}

/// Parses a rate and the burst of a static limit, which is the amount as written: 600 for `600/m`.
pub(crate) fn parse_static_limit(text: &str) -> Result<(u64, Rate), String> {
    let rate = parse_rate(text)?;
    let (number, factor) = amount_of(amount_and_time(text)?.0).map_err(|problem| format!("{problem}; {RATE_HELP}"))?;
    let whole = || {
        let period = format_duration(rate.period());
        format!("{text:?} is not a whole number; write {}/{period}", rate.amount())
    };
    number.times(factor).map(|amount| (amount, rate)).map_err(|_| whole())
}

/// Parses a count: `600`, `10_000`, `10k` (thousands) or `5M` (millions).
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    const HELP: &str = "write 600, 10_000, 10k or 5M";
    let (number, factor) = amount_of(bounded(text)?).map_err(|problem| format!("{problem}; {HELP}"))?;
    number.times(factor).map_err(|error| match error {
        ScaleError::Fraction => format!("{text:?} is not a whole number; {HELP}"),
        ScaleError::TooLarge => format!("{text:?} is too large; the maximum is {MAX_AMOUNT}"),
    })
}

/// Parses a grace of a quota: a count, or a part of `amount` such as `5%` or `0.5%`, rounded down.
pub(crate) fn parse_grace(text: &str, amount: u64) -> Result<u64, String> {
    const HELP: &str = "write 50_000 or 5%";
    let text = bounded(text)?;
    let Some(percent) = text.strip_suffix('%') else {
        return parse_count(text).map_err(|why| match why.split_once(';') {
            Some((problem, _)) => format!("{problem}; {HELP}"),
            None => why,
        });
    };
    let (number, rest) = decimal(percent.trim_end()).map_err(|problem| format!("{problem}; {HELP}"))?;
    if !rest.is_empty() {
        return Err(format!("{text:?} is not a number or a percentage; {HELP}"));
    }
    let units = u128::from(amount) * u128::from(number.digits) / (100 * number.scale());
    u64::try_from(units)
        .ok()
        .filter(|units| *units <= MAX_AMOUNT)
        .ok_or_else(|| format!("{text:?} of {amount} is above {MAX_AMOUNT}, the maximum"))
}

/// Formats a duration as [`parse_duration`] reads it, exact to the microsecond: `1m30s`, `100ms`, `1250us`.
pub fn format_duration(span: Duration) -> String {
    let mut rest = span.as_micros();
    let finest = if rest.is_multiple_of(1000) { ("ms", 1000) } else { ("us", 1) };
    let units = [("d", DAY_MICROS), ("h", HOUR_MICROS), ("m", MINUTE_MICROS), ("s", SECOND_MICROS), finest];
    let parts = units.into_iter().filter_map(|(unit, length)| {
        let number = rest / u128::from(length);
        rest %= u128::from(length);
        (number > 0).then(|| format!("{number}{unit}"))
    });
    let shown: String = parts.collect();
    if shown.is_empty() { "0s".into() } else { shown }
}

/// Formats a window: `1m30s`, `calendar month (UTC)`.
pub fn format_window(window: Window) -> String {
    match (window, window.duration()) {
        (_, Some(span)) => format_duration(span),
        (Window::MONTH, _) => "calendar month (UTC)".into(),
        _ => "calendar year (UTC)".into(),
    }
}

/// Formats a rate as `parse_rate` reads it: in the shortest of s, m, h and d with an integer amount, else as `7/45s`.
pub fn format_rate(rate: Rate) -> String {
    let (amount, period) = (u128::from(rate.amount()), rate.period().as_micros());
    for (unit, length) in [("s", SECOND_MICROS), ("m", MINUTE_MICROS), ("h", HOUR_MICROS), ("d", DAY_MICROS)] {
        let units = amount * u128::from(length);
        // A rate near the bound would exceed it in a longer unit.
        if units.is_multiple_of(period) && units / period <= u128::from(MAX_AMOUNT) {
            return format!("{}/{unit}", units / period);
        }
    }
    format!("{amount}/{}", format_duration(rate.period()))
}

impl Decimal {
    /// Ten to the power of `places`.
    fn scale(self) -> u128 {
        10_u128.pow(self.places)
    }

    /// The number times `factor`, if that is an integer.
    fn times(self, factor: u64) -> Result<u64, ScaleError> {
        let product = u128::from(self.digits) * u128::from(factor);
        if !product.is_multiple_of(self.scale()) {
            return Err(ScaleError::Fraction);
        }
        u64::try_from(product / self.scale()).map_err(|_| ScaleError::TooLarge)
    }
}

/// The trimmed text, unless it is too long.
fn bounded(text: &str) -> Result<&str, String> {
    if text.len() <= MAX_TEXT_BYTES {
        return Ok(text.trim());
    }
    Err(format!("a text of {} bytes is too long for a quantity; the maximum is {MAX_TEXT_BYTES}", text.len()))
}

/// Splits a rate into amount and time.
fn amount_and_time(text: &str) -> Result<(&str, &str), String> {
    let whole = bounded(text)?;
    match whole.split_once('/').or_else(|| whole.split_once(" per ")) {
        Some((amount, time)) => Ok((amount.trim(), time.trim())),
        None => Err(format!("{text:?} is not a rate, which is an amount per time; {RATE_HELP}")),
    }
}

/// Parses a number and the factor of its suffix.
fn amount_of(text: &str) -> Result<(Decimal, u64), String> {
    let (number, after) = decimal(text)?;
    match after.trim_start() {
        "" => Ok((number, 1)),
        "k" => Ok((number, 1000)),
        "M" => Ok((number, 1_000_000)),
        _ => Err(format!("{text:?} is not a number, nor one with k for thousands or M for millions")),
    }
}

/// The number at the start of `text`, and what follows it.
fn decimal(text: &str) -> Result<(Decimal, &str), String> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || "_.,".contains(c))).unwrap_or(text.len());
    let (number, after) = text.split_at(end);
    if text.starts_with('-') {
        return Err(format!("{text:?} is negative"));
    }
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("{text:?} does not start with a number"));
    }
    if number.contains(',') {
        return Err(format!("{text:?} has a comma, which is ambiguous; use _ for thousands or . for decimals"));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let fraction = digits(fraction).map(|fraction| fraction.trim_end_matches('0').to_owned());
    let (Some(whole), Some(fraction)) = (digits(whole), fraction) else {
        return Err(format!("in {text:?} a point or an underscore is not between digits"));
    };
    if fraction.len() > MAX_DECIMALS {
        return Err(format!("{text:?} has more than {MAX_DECIMALS} decimals"));
    }
    let places = fraction.len() as u32;
    match (whole + &fraction).parse() {
        Ok(digits) => Ok((Decimal { digits, places }, after)),
        Err(_) => Err(format!("{text:?} has too many digits")),
    }
}

/// The digits without underscores, which are allowed between digits only.
fn digits(part: &str) -> Option<String> {
    let groups = part.split('_').all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    groups.then(|| part.replace('_', ""))
}

/// The letters at the start of `text`, and what follows them.
fn word(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len()))
}

/// The error for a unit of varying length.
fn varying_unit(unit: &str) -> Option<&'static str> {
    match unit {
        "month" | "months" => Some("months differ in length; write 30d"),
        "year" | "years" | "y" => Some("years differ in length; write 365d"),
        _ => None,
    }
}

/// The length of a unit in microseconds.
fn unit_micros(unit: &str) -> Result<u64, String> {
    let unknown = || format!("{unit:?} is not a unit of time; use us, ms, s, m, h, d or w");
    Ok(match unit {
        // The micro sign and the Greek letter look the same but are two characters.
        "us" | "\u{b5}s" | "\u{3bc}s" | "microsecond" | "microseconds" => 1,
        "ms" | "millisecond" | "milliseconds" => 1000,
        "s" | "sec" | "second" | "seconds" => SECOND_MICROS,
        "m" | "min" | "minute" | "minutes" => MINUTE_MICROS,
        "h" | "hour" | "hours" => HOUR_MICROS,
        "d" | "day" | "days" => DAY_MICROS,
        "w" | "week" | "weeks" => 7 * DAY_MICROS,
        _ => return Err(varying_unit(unit).map_or_else(unknown, ToOwned::to_owned)),
    })
}

fn too_long(text: &str) -> String {
    format!("{text:?} is longer than the maximum of 100 years")
}

fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn micros(text: &str) -> u128 {
        parse_duration(text).unwrap_or_else(|problem| panic!("{text}: {problem}")).as_micros()
    }

    fn per(amount: u64, period: Duration) -> Rate {
        Rate::new(amount, period).unwrap()
    }

    #[test]
    fn common_notations_of_durations_are_parsed() {
        for (text, expected) in [
            ("0s", 0),
            ("7us", 7),
            ("7µs", 7),
            ("7\u{3bc}s", 7),
            ("500ms", 500_000),
            ("0.1ms", 100),
            ("1.5s", 1_500_000),
            ("1.500_000s", 1_500_000),
            ("10 minutes", 600_000_000),
            (" 1m30s ", 90_000_000),
            ("1h 30m", 5_400_000_000),
            ("1 hour 1 min 1 sec", 3_661_000_000),
            ("2d", 172_800_000_000),
            ("1w", 604_800_000_000),
            ("1_000s", 1_000_000_000),
            ("36525d", MAX_WINDOW.as_micros()),
        ] {
            assert_eq!(micros(text), expected, "{text}");
        }
    }

    #[test]
    fn the_error_of_an_invalid_duration_names_a_valid_one() {
        for (text, expected) in [
            ("", "the duration is empty; write 10s or 10m"),
            ("  ", "the duration is empty; write 10s or 10m"),
            ("10", "\"10\" lacks a unit; write 10s or 10m"),
            ("1m30", "\"1m30\" lacks a unit; write 10s or 10m"),
            ("s", "\"s\" does not start with a number; write 10s or 10m"),
            ("-5s", "\"-5s\" is negative; write 10s or 10m"),
            (".5s", "\".5s\" does not start with a number; write 10s or 10m"),
            ("5.s", "in \"5.s\" a point or an underscore is not between digits; write 10s or 10m"),
            ("1__0s", "in \"1__0s\" a point or an underscore is not between digits; write 10s or 10m"),
            ("1.2.3s", "in \"1.2.3s\" a point or an underscore is not between digits; write 10s or 10m"),
            ("5 fortnights", "\"fortnights\" is not a unit of time; use us, ms, s, m, h, d or w"),
            ("5M", "\"M\" is not a unit of time; use us, ms, s, m, h, d or w"),
            ("1 month", "months differ in length; write 30d"),
            ("2 years", "years differ in length; write 365d"),
            ("month", "months differ in length; write 30d"),
            ("0.1us", "\"0.1us\" is not a whole number of microseconds; round it, in us"),
            ("36525d1us", "\"36525d1us\" is longer than the maximum of 100 years"),
            ("18446744073709551615w", "\"18446744073709551615w\" is longer than the maximum of 100 years"),
            ("99999999999999999999s", "\"99999999999999999999s\" has too many digits; write 10s or 10m"),
            ("0.0000000000000000001s", "\"0.0000000000000000001s\" has more than 18 decimals; write 10s or 10m"),
        ] {
            assert_eq!(parse_duration(text).unwrap_err(), expected, "{text}");
        }
        assert!(parse_duration(&"1s".repeat(50)).unwrap_err().contains("100 bytes"));
    }

    #[test]
    fn a_grace_is_a_count_or_a_part_of_the_amount() {
        for (text, amount, expected) in [
            ("0", 100, 0),
            ("50_000", 100, 50_000),
            ("2k", 100, 2_000),
            ("5%", 1_000_000, 50_000),
            ("5 %", 199, 9),
            ("0.5%", 1_000, 5),
            ("33.333%", 1_000, 333),
            ("200%", 10, 20),
            ("0%", 10, 0),
            ("100%", MAX_AMOUNT, MAX_AMOUNT),
        ] {
            assert_eq!(parse_grace(text, amount), Ok(expected), "{text} of {amount}");
        }
        for (text, problem) in [
            ("", "\"\" does not start with a number; write 50_000 or 5%"),
            ("%", "\"\" does not start with a number; write 50_000 or 5%"),
            ("-5%", "\"-5\" is negative; write 50_000 or 5%"),
            ("5%%", "\"5%%\" is not a number or a percentage; write 50_000 or 5%"),
            ("5k%", "\"5k%\" is not a number or a percentage; write 50_000 or 5%"),
            ("1.5", "\"1.5\" is not a whole number; write 50_000 or 5%"),
            ("99999999999999999%", "\"99999999999999999%\" of 4503599627370495 is above 4503599627370495, the maximum"),
        ] {
            assert_eq!(parse_grace(text, MAX_AMOUNT), Err(problem.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_window_is_a_duration_or_a_calendar_month_or_year() {
        for (text, expected, shown) in [
            ("month", Window::MONTH, "calendar month (UTC)"),
            (" year ", Window::YEAR, "calendar year (UTC)"),
            ("1m", Duration::from_secs(60).into(), "1m"),
            ("30d", Duration::from_secs(30 * 86_400).into(), "30d"),
        ] {
            assert_eq!(parse_window(text), Ok(expected), "{text}");
            assert_eq!(format_window(expected), shown);
        }
    }

    #[test]
    fn the_error_of_a_window_of_several_months_names_a_valid_one() {
        for (text, span) in [
            ("2 months", ", or 60d for a fixed length"),
            ("1 month", ", or 30d for a fixed length"),
            ("Month", ", or 30d for a fixed length"),
            ("monthly", ", or 30d for a fixed length"),
            ("0.5 years", ""),
            ("3y", ", or 1095d for a fixed length"),
            ("200y", ""),
        ] {
            let expected = format!("{text:?} is not a window; write month or year for a calendar one{span}");
            assert_eq!(parse_window(text), Err(expected));
        }
        for text in ["", "5", "m", "1 month 2d", "moth", "quarter", "5 fortnights"] {
            assert_eq!(parse_window(text).unwrap_err(), parse_duration(text).unwrap_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_exact_fractions() {
        for (text, amount, period) in [
            ("10/s", 10, Duration::from_secs(1)),
            ("100/m", 100, Duration::from_secs(60)),
            ("5/10m", 5, Duration::from_secs(600)),
            ("1000 / hour", 1000, Duration::from_secs(3600)),
            ("3000/sec", 3000, Duration::from_secs(1)),
            ("1_000/s", 1000, Duration::from_secs(1)),
            ("10k/s", 10_000, Duration::from_secs(1)),
            ("0.5/s", 1, Duration::from_secs(2)),
            ("2.50/m", 5, Duration::from_secs(120)),
            ("1.5k/d", 1500, Duration::from_secs(86_400)),
            ("0.1/ms", 1, Duration::from_millis(10)),
            ("10 per second", 10, Duration::from_secs(1)),
            ("3 per 5 minutes", 3, Duration::from_secs(300)),
            ("7/1m30s", 7, Duration::from_secs(90)),
        ] {
            assert_eq!(parse_rate(text), Ok(per(amount, period)), "{text}");
        }
    }

    #[test]
    fn the_error_of_an_invalid_rate_names_a_valid_one() {
        for (text, expected) in [
            ("", "\"\" is not a rate, which is an amount per time; write 10/s or 100/m"),
            ("10", "\"10\" is not a rate, which is an amount per time; write 10/s or 100/m"),
            ("10/", "\"10/\" lacks the time; write 10/s or 100/m"),
            ("/s", "\"\" does not start with a number; write 10/s or 100/m"),
            ("x/s", "\"x\" does not start with a number; write 10/s or 100/m"),
            (
                "10 apples/s",
                "\"10 apples\" is not a number, nor one with k for thousands or M for millions; write 10/s or 100/m",
            ),
            ("10/60", "\"60\" lacks a unit; write 10s or 10m"),
            ("10/month", "months differ in length; write 30d"),
            ("10/s/s", "\"s/s\" does not start with a number; write 10s or 10m"),
            (
                "1,000/s",
                "\"1,000\" has a comma, which is ambiguous; use _ for thousands or . for decimals; write 10/s or 100/m",
            ),
            ("0/s", "rate.amount: 0 is below the smallest value, 1 (a rate that never refills is a limit of 0)"),
        ] {
            assert_eq!(parse_rate(text).unwrap_err(), expected, "{text}");
        }
        assert!(parse_rate("10/0s").unwrap_err().contains("at least 1"));
        assert!(parse_rate("0.000000000000000001/w").unwrap_err().contains("100 years"));
        assert!(parse_rate("18446744073709551615/us").unwrap_err().contains("above the largest value"));
    }

    #[test]
    fn counts_may_have_separators_and_suffixes() {
        for (text, expected) in
            [("600", 600), ("0", 0), ("10_000", 10_000), ("10k", 10_000), ("5M", 5_000_000), ("1.5M", 1_500_000)]
        {
            assert_eq!(parse_count(text), Ok(expected), "{text}");
        }
        for text in ["", "k", "1.5", "10K", "10m", "_1", "1_", "1,000", "-1", "1e3", "18446744073709551616", "1_0M0"] {
            assert!(parse_count(text).unwrap_err().contains("write 600"), "{text}");
        }
        assert!(parse_count("18446744073709551615k").unwrap_err().contains("too large"));
    }

    #[test]
    fn durations_are_formatted_in_common_units() {
        for (micros, expected) in [
            (0, "0s"),
            (90_000_000, "1m30s"),
            (100_000, "100ms"),
            (2_000_000, "2s"),
            (70_000, "70ms"),
            (1250, "1250us"),
            (1_970_000, "1s970ms"),
            (86_400_000_000, "1d"),
            (2_592_000_000_000, "30d"),
            (3_661_000_001, "1h1m1s1us"),
        ] {
            assert_eq!(format_duration(Duration::from_micros(micros)), expected);
        }
        assert_eq!(format_duration(Duration::from_nanos(1999)), "1us");
    }

    #[test]
    fn rates_are_formatted_in_the_shortest_unit_with_an_integer_amount() {
        for (text, expected) in [
            ("600/m", "10/s"),
            ("100/m", "100/m"),
            ("5/10m", "30/h"),
            ("0.5/s", "30/m"),
            ("1/d", "1/d"),
            ("7/11s", "7/11s"),
            ("1/30d", "1/30d"),
            ("4503599627370495/us", "4503599627370495/1us"),
        ] {
            assert_eq!(format_rate(parse_rate(text).unwrap()), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_duration_parses_to_the_same_duration(micros in prop_oneof![0..=MAX_WINDOW_MICROS, 0..10_000_000_u64]) {
            let span = Duration::from_micros(micros);
            prop_assert_eq!(parse_duration(&format_duration(span)), Ok(span));
        }

        #[test]
        fn a_formatted_rate_parses_to_the_same_rate(
            amount in prop_oneof![1..=MAX_AMOUNT, 1..1000_u64],
            period in prop_oneof![1..=MAX_WINDOW_MICROS, (1..1000_u64).prop_map(|seconds| seconds * SECOND_MICROS)],
        ) {
            let shown = per(amount, Duration::from_micros(period));
            prop_assert_eq!(parse_rate(&format_rate(shown)), Ok(shown));
        }

        #[test]
        fn no_text_of_typical_characters_panics(text in "[0-9_.,smhdwkM/ µup]{0,30}") {
            if let Ok(span) = parse_duration(&text) {
                prop_assert_eq!(parse_duration(&format_duration(span)), Ok(span));
            }
            if let Ok(shown) = parse_rate(&text) {
                prop_assert_eq!(parse_rate(&format_rate(shown)), Ok(shown));
            }
            if let Ok(number) = parse_count(&text) {
                prop_assert_eq!(parse_count(&number.to_string()), Ok(number));
            }
        }
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<String>().for_each(|text| {
            let problems =
                [parse_duration(text).err(), parse_window(text).err(), parse_rate(text).err(), parse_count(text).err()];
            assert!(problems.iter().flatten().all(|problem| problem.len() < 1000));
        });
    }
}
