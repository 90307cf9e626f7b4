//! Limits as they are written.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Amount;
use crate::read::At;

/// One limit, of one kind.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// So many at once, then a sustained rate.
    pub(crate) token_bucket: Option<At<TokenBucket>>,
    /// A constant rate; what comes early waits in a queue.
    pub(crate) leaky_bucket: Option<At<LeakyBucket>>,
    /// So many in each window of the clock or the calendar.
    pub(crate) fixed_window: Option<At<FixedWindow>>,
    /// So many in any window, exactly; keeps every request.
    pub(crate) sliding_log: Option<At<SlidingLog>>,
    /// So many in any window, estimated from slices.
    pub(crate) sliding_window: Option<At<SlidingWindow>>,
}

/// So many at once, then a sustained rate.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenBucket {
    /// The most that is admitted at once.
    pub(crate) capacity: At<Amount>,
    /// How fast it comes back: `10/s`, `100/m`, `5/10m`.
    pub(crate) refill: At<String>,
}

/// A constant rate; what comes early waits in a queue.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeakyBucket {
    /// How fast requests go out: `3000/s`.
    pub(crate) rate: At<String>,
    /// How many may wait.
    pub(crate) queue: At<Amount>,
}

/// So many in each window of the clock or the calendar.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FixedWindow {
    /// How many in a window. Around a boundary twice as many may pass in a short time.
    pub(crate) limit: At<Amount>,
    /// How long a window is: `1m`, `1h`, `1d`, beginning at multiples of it since 1970; or `month` or `year` of the calendar.
    /// All in UTC.
    pub(crate) window: At<String>,
}

/// So many in any window, exactly; keeps every request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlidingLog {
    /// How many in any window.
    pub(crate) limit: At<Amount>,
    /// How long a window is: `10m`.
    pub(crate) window: At<String>,
}

/// So many in any window, estimated from slices.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlidingWindow {
    /// How many in any window.
    pub(crate) limit: At<Amount>,
    /// How long a window is: `1m`.
    pub(crate) window: At<String>,
    /// In how many parts it is counted: more are closer and cost more. 6 if left out.
    pub(crate) slices: Option<At<Amount>>,
}
