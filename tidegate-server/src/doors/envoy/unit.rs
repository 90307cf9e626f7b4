//! Envoy's units of time and their windows. Months and years are calendar months and years in UTC; in strict mode, and for
//! algorithms that need a fixed duration, a month has 30 days and a year 365, as in the reference server.

use std::time::Duration;

use tidegate::limits::Window;

use super::messages::{RateLimitUnit, Unit};

const DAY_SECONDS: u64 = 86_400;

/// All units, with their length in seconds.
const UNITS: [(Unit, u64); 7] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3600),
    (Unit::Day, DAY_SECONDS),
    (Unit::Week, 7 * DAY_SECONDS),
    (Unit::Month, 30 * DAY_SECONDS),
    (Unit::Year, 365 * DAY_SECONDS),
];

/// Parses the name of a unit, in any case.
pub(super) fn from_name(name: &str) -> Option<Unit> {
    UNITS.into_iter().map(|(unit, _)| unit).find(|unit| unit.as_str_name().eq_ignore_ascii_case(name))
}

/// The window of a limit: for fixed windows, and for algorithms that need a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitWindows {
    pub(super) fixed: Window,
    pub(super) span: Duration,
}

/// Whether `unit_multiplier` may be used: multiples of calendar months and years have no fixed duration.
pub(super) const fn can_be_multiplied(unit: Unit) -> bool {
    !matches!(unit, Unit::Month | Unit::Year | Unit::Unknown)
}

/// The duration of a unit; `None` for the unknown one.
pub(super) fn duration(unit: Unit) -> Option<Duration> {
    UNITS.into_iter().find(|(other, _)| *other == unit).map(|(_, seconds)| Duration::from_secs(seconds))
}

/// The unit with the length of a window, or the unknown one.
pub(super) fn from_window(window: Window) -> Unit {
    match window {
        Window::MONTH => Unit::Month,
        Window::YEAR => Unit::Year,
        _ => UNITS
            .into_iter()
            .map(|(unit, _)| unit)
            .find(|unit| duration(*unit) == window.duration())
            .unwrap_or(Unit::Unknown),
    }
}

/// Converts the unit of an override, which is another enum.
pub(super) fn from_override(unit: i32) -> Option<Unit> {
    from_name(RateLimitUnit::try_from(unit).ok()?.as_str_name())
}

impl UnitWindows {
    /// The windows of a unit; `None` for the unknown one.
    pub(super) fn from_unit(unit: Unit, strict: bool) -> Option<Self> {
        let windows = Self::from_span(duration(unit)?);
        Some(match unit {
            Unit::Month if !strict => Self { fixed: Window::MONTH, ..windows },
            Unit::Year if !strict => Self { fixed: Window::YEAR, ..windows },
            _ => windows,
        })
    }

    /// Windows of this length.
    pub(super) fn from_span(span: Duration) -> Self {
        Self { fixed: span.into(), span }
    }
}
