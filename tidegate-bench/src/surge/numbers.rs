//! Numbers as people read them. They round; programs get the numbers themselves.

/// Milliseconds: `0.21`, `7.9`, `231`, `30,009`.
pub(crate) fn millis(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{value:.2}"),
        value if value < 10.0 => format!("{value:.1}"),
        value => whole(value.round() as u64),
    }
}

/// A time with its unit: `0.21 ms`, `231 ms`, `30.0 s`.
pub(crate) fn time(value: f64) -> String {
    if value < 10_000.0 { format!("{} ms", millis(value)) } else { format!("{:.1} s", value / 1000.0) }
}

/// `12,345`.
pub(crate) fn whole(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `0.1 %`, `23 %`.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        percent if percent > 0.0 && percent < 0.1 => format!("{percent:.3} %"),
        percent if percent < 10.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// `× 11.9`, `× 103`.
pub(crate) fn times(factor: f64) -> String {
    if factor < 99.5 { format!("× {factor:.1}") } else { format!("× {}", whole(factor.round() as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_they_are_good_for() {
        assert_eq!([0.2149, 7.94, 231.4, 30_009.0].map(millis), ["0.21", "7.9", "231", "30,009"]);
        assert_eq!([0.2149, 231.4, 30_009.0].map(time), ["0.21 ms", "231 ms", "30.0 s"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(whole), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.0005, 0.012, 0.234, 1.0].map(percent), ["0.0 %", "0.050 %", "1.2 %", "23 %", "100 %"]);
        assert_eq!([0.999, 11.87, 1034.0].map(times), ["× 1.0", "× 11.9", "× 1,034"]);
    }
}
