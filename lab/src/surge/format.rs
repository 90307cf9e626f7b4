//! Numbers as text, rounded for reading.

/// Milliseconds without their unit: `0.21`, `7.9`, `231`, `30,009`.
pub(crate) fn format_millis(millis: f64) -> String {
    match millis {
        millis if millis < 1.0 => format!("{millis:.2}"),
        millis if millis < 10.0 => format!("{millis:.1}"),
        millis => format_count(millis.round() as u64),
    }
}

/// Milliseconds with a unit: `0.21 ms`, `231 ms`, `2.8 s`, `30.0 s`.
pub(crate) fn format_time(millis: f64) -> String {
    if millis < 999.5 { format!("{} ms", format_millis(millis)) } else { format!("{:.1} s", millis / 1000.0) }
}

/// `12,345`.
pub(crate) fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// A share of 1 in percent: `0.1 %`, `23 %`.
pub(crate) fn format_percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        percent if percent > 0.0 && percent < 0.1 => format!("{percent:.3} %"),
        percent if percent < 10.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// `× 11.9`, `× 103`.
pub(crate) fn format_factor(factor: f64) -> String {
    if factor < 99.5 { format!("× {factor:.1}") } else { format!("× {}", format_count(factor.round() as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_their_significant_digits() {
        assert_eq!([0.2149, 7.94, 231.4, 30_009.0].map(format_millis), ["0.21", "7.9", "231", "30,009"]);
        assert_eq!([0.2149, 999.4, 999.6, 30_009.0].map(format_time), ["0.21 ms", "999 ms", "1.0 s", "30.0 s"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(format_count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 0.0005, 0.012, 0.234, 1.0].map(format_percent),
            ["0.0 %", "0.050 %", "1.2 %", "23 %", "100 %"]
        );
        assert_eq!([0.999, 11.87, 1034.0].map(format_factor), ["× 1.0", "× 11.9", "× 1,034"]);
    }
}
