//! How long a caller waits for an answer, and what that leaves for a decision. Pure.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// How long a decision may take, unless the caller has less time. Envoy waits 20 ms, unless told otherwise.
const LONGEST: Duration = Duration::from_millis(15);

/// What is kept of the caller's time for the way back.
const WAY_BACK: Duration = Duration::from_millis(5);

/// The time for a decision, if the caller waits so long.
pub(super) fn budget(waits: Option<Duration>) -> Duration {
    // Who has hardly any time leaves half of it to the way back: with none, every decision would be one without the store.
    waits.map_or(LONGEST, |waits| waits.saturating_sub(WAY_BACK).max(waits / 2).min(LONGEST))
}

/// The time that a caller waits, if it says so.
pub(super) fn waits(metadata: &MetadataMap) -> Option<Duration> {
    read(metadata.get("grpc-timeout")?.to_str().ok()?)
}

/// A time as gRPC writes it: up to eight digits and a unit.
fn read(timeout: &str) -> Option<Duration> {
    let (number, unit) = timeout.split_at_checked(timeout.len().checked_sub(1)?)?;
    let digits = number.len() <= 8 && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u32 = number.parse().ok().filter(|_| digits)?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grpc_says_of_time_is_read() {
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("20000u"), Some(Duration::from_millis(20)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(3600) * 99_999_999));
        assert_eq!(
            (read("0n"), read("3S"), read("2M")),
            (Some(Duration::ZERO), Some(Duration::from_secs(3)), Some(Duration::from_secs(120)))
        );
        for nonsense in ["", "m", "20", "+5m", "-1S", "123456789m", "5 m", "5ß", "ß"] {
            assert_eq!(read(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_decision_leaves_the_caller_time_for_the_way_back() {
        let of = |millis| budget(Some(Duration::from_millis(millis)));
        assert_eq!(
            (of(20), of(1000), of(12)),
            (Duration::from_millis(15), Duration::from_millis(15), Duration::from_millis(7))
        );
        assert_eq!((of(4), budget(None)), (Duration::from_millis(2), Duration::from_millis(15)));
    }
}
