//! `Timestamp`: an instant in whole microseconds since the Unix epoch.

use std::time::Duration;

/// An instant, in whole microseconds since 1970-01-01 00:00:00 UTC.
///
/// Microseconds are the unit of the Redis clock. Values stay below 2^52, so that an instant plus the longest window of a limit is
/// exact in a Lua number.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Timestamp;
///
/// let start = Timestamp::from_micros(1_000_000);
/// assert_eq!(start.plus(Duration::from_millis(5)).as_micros(), 1_005_000);
/// assert_eq!(start.since(Timestamp::from_micros(2_000_000)), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last instant, in September 2112.
    pub const MAX: Self = Self((1 << 52) - 1);

    /// The instant `micros` microseconds after the epoch. Saturates at [`Timestamp::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        if micros < Self::MAX.0 { Self(micros) } else { Self::MAX }
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The instant `span` later, in whole microseconds. Saturates at [`Timestamp::MAX`].
    pub fn plus(self, span: Duration) -> Self {
        let span = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self::from_micros(self.0.saturating_add(span))
    }

    /// The time since `earlier`; zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
