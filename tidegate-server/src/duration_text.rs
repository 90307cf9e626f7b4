//! A span of time for people: `100ms`, `1.97s`, `2m5s`. For programs there are milliseconds, rounded up.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A span in at most two units. It is never shown shorter than it is, since people wait that long.
pub fn format_duration(span: Duration) -> String {
    let micros = span.as_micros();
    if micros < 1000 {
        return if micros == 0 { "0s".into() } else { format!("{micros}us") };
    }
    let millis = micros.div_ceil(1000);
    if millis < 1000 {
        return format!("{millis}ms");
    }
    if millis < 60_000 {
        let fraction = format!("{:03}", millis % 1000);
        let fraction = fraction.trim_end_matches('0');
        let dot = if fraction.is_empty() { "" } else { "." };
        return format!("{}{dot}{fraction}s", millis / 1000);
    }
    let seconds = u64::try_from(millis.div_ceil(1000)).unwrap_or(u64::MAX);
    let (large, small, rest) = match seconds {
        ..HOUR => (format!("{}m", seconds / MINUTE), "s", seconds % MINUTE),
        HOUR..DAY => in_units(seconds, HOUR, MINUTE, ["h", "m"]),
        _ => in_units(seconds, DAY, HOUR, ["d", "h"]),
    };
    if rest == 0 { large } else { format!("{large}{rest}{small}") }
}

/// A span in two units, rounded up to the smaller.
fn in_units(seconds: u64, large: u64, small: u64, names: [&'static str; 2]) -> (String, &'static str, u64) {
    let smalls = seconds.div_ceil(small);
    let each = large / small;
    (format!("{}{}", smalls / each, names[0]), names[1], smalls % each)
}

/// Whole milliseconds, rounded up.
pub fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_shown_in_at_most_two_units_and_never_too_short() {
        for (micros, shown) in [
            (0, "0s"),
            (1, "1us"),
            (999, "999us"),
            (1000, "1ms"),
            (1001, "2ms"),
            (100_000, "100ms"),
            (999_001, "1s"),
            (1_970_000, "1.97s"),
            (2_000_000, "2s"),
            (59_999_001, "1m"),
            (125_000_000, "2m5s"),
            (3_600_000_000, "1h"),
            (3_661_000_000, "1h2m"),
            (86_399_000_000, "24h"),
            (86_400_000_000, "1d"),
            (90_000_000_000, "1d1h"),
        ] {
            assert_eq!(format_duration(Duration::from_micros(micros)), shown, "{micros}");
        }
        assert!(format_duration(Duration::MAX).ends_with('h'));
    }

    #[test]
    fn programs_get_milliseconds_rounded_up() {
        assert_eq!(whole_millis(Duration::from_micros(1)), 1);
        assert_eq!(whole_millis(Duration::from_millis(70)), 70);
        assert_eq!(whole_millis(Duration::ZERO), 0);
    }
}
