//! The caller's deadline (`grpc-timeout`), and the time that it leaves for a decision. Pure.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// Default of the maximum time for a decision. Envoy waits 20 ms by default.
pub(crate) const DEFAULT_MAX_DECISION_TIME: Duration = Duration::from_millis(15);

/// Part of the caller's timeout that is reserved for sending the response.
const RESPONSE_RESERVE: Duration = Duration::from_millis(5);

/// The time for a decision: what the caller's timeout leaves, but at most `max`.
pub(super) fn decision_timeout(timeout: Option<Duration>, max: Duration) -> Duration {
    // Of a very short timeout half is used: with less, every decision would be made without the store.
    timeout.map_or(max, |timeout| timeout.saturating_sub(RESPONSE_RESERVE).max(timeout / 2).min(max))
}

/// The caller's timeout, if it sends one.
pub(super) fn grpc_timeout(metadata: &MetadataMap) -> Option<Duration> {
    parse_timeout(metadata.get("grpc-timeout")?.to_str().ok()?)
}

/// Parses a gRPC timeout: up to eight digits and a unit.
fn parse_timeout(timeout: &str) -> Option<Duration> {
    let (number, unit) = timeout.split_at_checked(timeout.len().checked_sub(1)?)?;
    let digits = number.len() <= 8 && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u32 = number.parse().ok().filter(|_| digits)?;
    let unit = match unit {
        "H" => Duration::from_hours(1),
        "M" => Duration::from_mins(1),
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
    fn grpc_timeouts_are_parsed() {
        assert_eq!(parse_timeout("20m"), Some(Duration::from_millis(20)));
        assert_eq!(parse_timeout("20000u"), Some(Duration::from_millis(20)));
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_hours(1) * 99_999_999));
        assert_eq!(
            (parse_timeout("0n"), parse_timeout("3S"), parse_timeout("2M")),
            (Some(Duration::ZERO), Some(Duration::from_secs(3)), Some(Duration::from_mins(2)))
        );
        for nonsense in ["", "m", "20", "+5m", "-1S", "123456789m", "5 m", "5ß", "ß"] {
            assert_eq!(parse_timeout(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_decision_leaves_time_to_send_the_response() {
        let millis = Duration::from_millis;
        let by_default = |timeout| decision_timeout(Some(millis(timeout)), DEFAULT_MAX_DECISION_TIME);
        assert_eq!([20, 1000, 12, 10, 4, 0].map(by_default), [15, 15, 7, 5, 2, 0].map(millis));
        let at_most_100 = |timeout| decision_timeout(Some(millis(timeout)), millis(100));
        assert_eq!([5000, 105, 104, 20, 8].map(at_most_100), [100, 100, 99, 15, 4].map(millis));
        assert_eq!(decision_timeout(None, millis(100)), millis(100));
    }
}
