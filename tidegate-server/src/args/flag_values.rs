//! Parsers of the values of flags. No error repeats a value: it may be meant for another flag.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_rules::parse_duration;

use crate::command::duration_text::format_duration;
use crate::command::failure::Failure;

/// Longest time that a flag in seconds accepts.
pub(crate) const MAX_SECONDS: u64 = 365 * 86_400;

/// Where a front end or the admin address listens. `None` if it is off.
pub(crate) type ListenAddress = Option<SocketAddr>;

/// Parses an address to listen on: `127.0.0.1:8080` or `[::1]:8080`; `8080` and `localhost:8080` on loopback; `:8080` on every address; `off`.
pub(crate) fn listen_address(text: &str) -> Result<ListenAddress, String> {
    if text == "off" {
        return Ok(None);
    }
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let (address, port) = match text.rsplit_once(':') {
        None => (loopback, text),
        Some(("localhost", port)) => (loopback, port),
        Some(("", port)) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
        Some(_) => return text.parse().map(Some).map_err(|_| ADDRESS_HELP.to_owned()),
    };
    // Not `+80`, which the parser of numbers takes.
    let digits = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    let port = digits.and_then(|port| port.parse().ok()).ok_or(ADDRESS_HELP)?;
    Ok(Some(SocketAddr::new(address, port)))
}

const ADDRESS_HELP: &str = "write an IP address and a port, such as 127.0.0.1:8080; 8080 or localhost:8080 for this machine alone; :8080 for every address; or off";

/// An error that begins with a file, with the flag in front that names this file, if only one does.
pub(crate) fn file_error(flags: &[(&str, Option<&PathBuf>)], error: &impl Display) -> Failure {
    let text = error.to_string();
    let is_named = |path: &PathBuf| text.starts_with(&format!("{}: ", path.display()));
    let mut named = flags.iter().filter(|(_, path)| path.is_some_and(is_named));
    match (named.next(), named.next()) {
        (Some((flag, _)), None) => Failure::usage(format!("{flag} {text}")),
        _ => Failure::usage(text),
    }
}

/// A parser of whole numbers in this range.
pub(crate) fn whole_number<N: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<N, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| N::try_from(number).ok()).ok_or_else(|| match (*range.start(), *range.end()) {
            (0, u64::MAX) => "write a whole number".to_owned(),
            (min, u64::MAX) => format!("write a whole number, at least {min}"),
            (min, max) => format!("write a whole number from {min} to {max}"),
        })
    }
}

/// A parser of durations such as `10s` or `1m30s`. A number alone is in seconds, as is the range.
pub(crate) fn seconds(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    let range = Duration::from_secs(*range.start())..=Duration::from_secs(*range.end());
    duration(Duration::from_secs(1), "seconds", range)
}

/// The same in milliseconds.
pub(crate) fn millis(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    let range = Duration::from_millis(*range.start())..=Duration::from_millis(*range.end());
    duration(Duration::from_millis(1), "milliseconds", range)
}

fn duration(
    unit: Duration,
    unit_name: &'static str,
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let number = || text.parse().ok().and_then(|number: u32| unit.checked_mul(number));
        let duration = parse_duration(text).ok().or_else(number);
        duration.filter(|duration| range.contains(duration)).ok_or_else(|| {
            let (min, max) = (format_duration(*range.start()), format_duration(*range.end()));
            format!("write a duration from {min} to {max}, such as 10s, 250ms or 2m; a number alone is in {unit_name}")
        })
    }
}

/// Parses a share of a limit.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 1, such as 0.8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_host_is_on_loopback_and_one_with_only_a_colon_is_public() {
        for (text, expected) in [
            ("8080", "127.0.0.1:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            (":8080", "[::]:8080"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(listen_address(text), Ok(Some(expected.parse().unwrap())), "{text}");
        }
        assert_eq!(listen_address("off"), Ok(None));
        for text in [
            "",
            ":",
            "hunter2",
            "hunter2:80",
            "65536",
            ":+80",
            "localhost",
            "127.0.0.1",
            "::1",
            "localhost:",
            "1.2.3.4:x",
            "OFF",
            "off:80",
            "none",
        ] {
            assert_eq!(listen_address(text), Err(ADDRESS_HELP.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_duration_has_a_unit_or_that_of_its_flag() {
        let (seconds, millis) = (seconds(1..=3600), millis(1..=60_000));
        for (text, expected) in
            [("10", 10_000), ("10s", 10_000), ("1500ms", 1_500), ("1m30s", 90_000), ("1h", 3_600_000)]
        {
            assert_eq!(seconds(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        for (text, expected) in [("10", 10), ("10s", 10_000), ("10 ms", 10), ("1m", 60_000)] {
            assert_eq!(millis(text), Ok(Duration::from_millis(expected)), "{text}");
        }
    }

    #[test]
    fn any_other_value_gets_an_error_with_the_range_and_without_the_value() {
        for text in ["", "hunter2", "-1", "0", "0s", "1.5", "3601", "2h", "10 years", "99999999999999999999"] {
            let error = seconds(1..=3600)(text).expect_err(text);
            assert!(error.contains("from 1s to 1h") && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
