//! Limits.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Amount, BoundedAmount};
use crate::read::Spanned;

/// One limit, with one algorithm.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Limits")]
pub(crate) struct LimitSpec {
    /// A burst, then a sustained rate.
    pub(crate) token_bucket: Option<Spanned<TokenBucketSpec>>,
    /// A constant rate; early requests wait in a queue.
    pub(crate) leaky_bucket: Option<Spanned<LeakyBucketSpec>>,
    /// A number of requests in each window of the clock or the calendar.
    pub(crate) fixed_window: Option<Spanned<FixedWindowSpec>>,
    /// A number of requests in any window, exactly; stores every request.
    pub(crate) sliding_log: Option<Spanned<SlidingLogSpec>>,
    /// A number of requests in any window, estimated from slices.
    pub(crate) sliding_window: Option<Spanned<SlidingWindowSpec>>,
    /// A number of requests at the same time, each held until it ends.
    pub(crate) concurrency: Option<Spanned<ConcurrencySpec>>,
}

/// A burst, then a sustained rate.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TokenBucket")]
pub(crate) struct TokenBucketSpec {
    /// The most requests that are admitted at once.
    pub(crate) capacity: Spanned<Amount>,
    /// The rate at which it refills: `10/s`, `100/m`, `5/10m`.
    pub(crate) refill: Spanned<String>,
}

/// A constant rate; early requests wait in a queue.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LeakyBucket")]
pub(crate) struct LeakyBucketSpec {
    /// The rate at which requests are admitted: `3000/s`.
    pub(crate) rate: Spanned<String>,
    /// The most requests that may wait.
    pub(crate) queue: Spanned<Amount>,
}

/// A number of requests in each window of the clock or the calendar.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FixedWindow")]
pub(crate) struct FixedWindowSpec {
    /// The most requests in a window. Twice as many may pass within a short time around a boundary.
    pub(crate) limit: Spanned<Amount>,
    /// The length of a window: `1m`, `1h`, `1d`, beginning at multiples of it since 1970; or `month` or `year` of the calendar.
    /// All in UTC.
    pub(crate) window: Spanned<String>,
}

/// A number of requests in any window, exactly; stores every request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SlidingLog")]
pub(crate) struct SlidingLogSpec {
    /// The most requests in any window.
    pub(crate) limit: Spanned<Amount>,
    /// The length of a window: `10m`.
    pub(crate) window: Spanned<String>,
}

/// A number of requests in any window, estimated from slices.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SlidingWindow")]
pub(crate) struct SlidingWindowSpec {
    /// The most requests in any window.
    pub(crate) limit: Spanned<Amount>,
    /// The length of a window: `1m`.
    pub(crate) window: Spanned<String>,
    /// The number of slices: more are more exact and take more memory. 6 if missing.
    pub(crate) slices: Option<Spanned<Amount>>,
}

/// A number of requests at the same time, each held until it ends.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Concurrency")]
pub(crate) struct ConcurrencySpec {
    /// The most requests at the same time, each counted with its cost: 0 to 65,535.
    pub(crate) max: Spanned<BoundedAmount<0, 65_535>>,
    /// How long a request is counted without a renewal, after its holder has died: `30s`, from 1 second to 1 day. 30 seconds if
    /// missing.
    pub(crate) lease: Option<Spanned<String>>,
}
