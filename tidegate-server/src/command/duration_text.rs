//! Durations as text, such as `100ms`, `1.97s` or `2m5s`, and as whole milliseconds. Both round up.

use std::time::Duration;

const MINUTE_SECONDS: u64 = 60;
const HOUR_SECONDS: u64 = 60 * MINUTE_SECONDS;
const DAY_SECONDS: u64 = 24 * HOUR_SECONDS;

/// Formats a duration in at most two units. It is rounded up, so that a wait of that length is long enough.
pub fn format_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
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
        ..HOUR_SECONDS => (format!("{}m", seconds / MINUTE_SECONDS), "s", seconds % MINUTE_SECONDS),
        HOUR_SECONDS..DAY_SECONDS => in_units(seconds, HOUR_SECONDS, MINUTE_SECONDS, ["h", "m"]),
        _ => in_units(seconds, DAY_SECONDS, HOUR_SECONDS, ["d", "h"]),
    };
    if rest == 0 { large } else { format!("{large}{rest}{small}") }
}

/// Splits seconds into two units, rounded up to the smaller.
fn in_units(seconds: u64, large: u64, small: u64, names: [&'static str; 2]) -> (String, &'static str, u64) {
    let smalls = seconds.div_ceil(small);
    let each = large / small;
    (format!("{}{}", smalls / each, names[0]), names[1], smalls % each)
}

/// Whole milliseconds, rounded up.
pub fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units_and_are_rounded_up() {
        for (micros, text) in [
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
            assert_eq!(format_duration(Duration::from_micros(micros)), text, "{micros}");
        }
        assert!(format_duration(Duration::MAX).ends_with('h'));
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        assert_eq!(whole_millis(Duration::from_micros(1)), 1);
        assert_eq!(whole_millis(Duration::from_millis(70)), 70);
        assert_eq!(whole_millis(Duration::ZERO), 0);
    }
}
