//! Envoy's units of time: their names, their windows, and the unit of a window. Months and years are those of the calendar, in
//! UTC; in strict mode, and where a limit needs a span of time, a month has 30 days and a year 365, as in the reference server.

use std::time::Duration;

use tidegate::Window;

use super::pb::{RateLimitUnit, Unit};

const DAY: u64 = 86_400;

/// Every unit and its seconds.
const UNITS: [(Unit, u64); 7] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3600),
    (Unit::Day, DAY),
    (Unit::Week, 7 * DAY),
    (Unit::Month, 30 * DAY),
    (Unit::Year, 365 * DAY),
];

/// A unit by its name, in whichever case.
pub(super) fn named(name: &str) -> Option<Unit> {
    UNITS.into_iter().map(|(unit, _)| unit).find(|unit| unit.as_str_name().eq_ignore_ascii_case(name))
}

/// The window of a limit: for fixed windows, and for limits that need a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) fixed: Window,
    pub(super) span: Duration,
}

/// The window of a unit.
pub(super) fn window(unit: Unit, strict: bool) -> Option<Windows> {
    let windows = Windows::of(length(unit)?);
    Some(match unit {
        Unit::Month if !strict => Windows { fixed: Window::MONTH, ..windows },
        Unit::Year if !strict => Windows { fixed: Window::YEAR, ..windows },
        _ => windows,
    })
}

/// Whether a number of them is a span of time: of months and years it would not be one.
pub(super) const fn can_be_multiplied(unit: Unit) -> bool {
    !matches!(unit, Unit::Month | Unit::Year | Unit::Unknown)
}

/// How long a unit lasts; an unknown one does not.
pub(super) fn length(unit: Unit) -> Option<Duration> {
    UNITS.into_iter().find(|(known, _)| *known == unit).map(|(_, seconds)| Duration::from_secs(seconds))
}

/// The unit that lasts as long as a window, or the unknown one.
pub(super) fn of_window(window: Window) -> Unit {
    match window {
        Window::MONTH => Unit::Month,
        Window::YEAR => Unit::Year,
        _ => {
            UNITS.into_iter().map(|(unit, _)| unit).find(|unit| length(*unit) == window.span()).unwrap_or(Unit::Unknown)
        }
    }
}

/// The unit of an override, which has an enum of its own.
pub(super) fn of_override(unit: i32) -> Option<Unit> {
    named(RateLimitUnit::try_from(unit).ok()?.as_str_name())
}

impl Windows {
    /// Windows of this length.
    pub(super) fn of(span: Duration) -> Self {
        Self { fixed: span.into(), span }
    }
}
