//! Limits as they are written.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Amount;
use crate::read::Spanned;

/// One limit, of one kind.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Limits")]
pub(crate) struct LimitSpec {
    /// So many at once, then a sustained rate.
    pub(crate) token_bucket: Option<Spanned<TokenBucketSpec>>,
    /// A constant rate; what comes early waits in a queue.
    pub(crate) leaky_bucket: Option<Spanned<LeakyBucketSpec>>,
    /// So many in each window of the clock or the calendar.
    pub(crate) fixed_window: Option<Spanned<FixedWindowSpec>>,
    /// So many in any window, exactly; keeps every request.
    pub(crate) sliding_log: Option<Spanned<SlidingLogSpec>>,
    /// So many in any window, estimated from slices.
    pub(crate) sliding_window: Option<Spanned<SlidingWindowSpec>>,
}

/// So many at once, then a sustained rate.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TokenBucket")]
pub(crate) struct TokenBucketSpec {
    /// The most that is admitted at once.
    pub(crate) capacity: Spanned<Amount>,
    /// How fast it comes back: `10/s`, `100/m`, `5/10m`.
    pub(crate) refill: Spanned<String>,
}

/// A constant rate; what comes early waits in a queue.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LeakyBucket")]
pub(crate) struct LeakyBucketSpec {
    /// How fast requests go out: `3000/s`.
    pub(crate) rate: Spanned<String>,
    /// How many may wait.
    pub(crate) queue: Spanned<Amount>,
}

/// So many in each window of the clock or the calendar.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FixedWindow")]
pub(crate) struct FixedWindowSpec {
    /// How many in a window. Around a boundary twice as many may pass in a short time.
    pub(crate) limit: Spanned<Amount>,
    /// How long a window is: `1m`, `1h`, `1d`, beginning at multiples of it since 1970; or `month` or `year` of the calendar.
    /// All in UTC.
    pub(crate) window: Spanned<String>,
}

/// So many in any window, exactly; keeps every request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SlidingLog")]
pub(crate) struct SlidingLogSpec {
    /// How many in any window.
    pub(crate) limit: Spanned<Amount>,
    /// How long a window is: `10m`.
    pub(crate) window: Spanned<String>,
}

/// So many in any window, estimated from slices.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SlidingWindow")]
pub(crate) struct SlidingWindowSpec {
    /// How many in any window.
    pub(crate) limit: Spanned<Amount>,
    /// How long a window is: `1m`.
    pub(crate) window: Spanned<String>,
    /// In how many parts it is counted: more are closer and cost more. 6 if left out.
    pub(crate) slices: Option<Spanned<Amount>>,
}
