//! Limits.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Amount, BoundedAmount, TextScalar};
use crate::read::{Required, Spanned};

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
    /// A number of requests in each period of the calendar, in a time zone.
    pub(crate) quota: Option<Spanned<QuotaSpec>>,
}

/// A burst, then a sustained rate.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TokenBucket")]
pub(crate) struct TokenBucketSpec {
    /// The most requests that are admitted at once.
    pub(crate) capacity: Required<Amount>,
    /// The rate at which it refills: `10/s`, `100/m`, `5/10m`.
    pub(crate) refill: Required<String>,
}

/// A constant rate; early requests wait in a queue.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LeakyBucket")]
pub(crate) struct LeakyBucketSpec {
    /// The rate at which requests are admitted: `3000/s`.
    pub(crate) rate: Required<String>,
    /// The most requests that may wait.
    pub(crate) queue: Required<Amount>,
}

/// A number of requests in each window of the clock or the calendar.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FixedWindow")]
pub(crate) struct FixedWindowSpec {
    /// The most requests in a window. Twice as many may pass within a short time around a boundary.
    pub(crate) limit: Required<Amount>,
    /// The length of a window: `1m`, `1h`, `1d`, beginning at multiples of it since 1970; or `month` or `year` of the calendar.
    /// All in UTC.
    pub(crate) window: Required<String>,
}

/// A number of requests in any window, exactly; stores every request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SlidingLog")]
pub(crate) struct SlidingLogSpec {
    /// The most requests in any window.
    pub(crate) limit: Required<Amount>,
    /// The length of a window: `10m`.
    pub(crate) window: Required<String>,
}

/// A number of requests in any window, estimated from slices.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SlidingWindow")]
pub(crate) struct SlidingWindowSpec {
    /// The most requests in any window.
    pub(crate) limit: Required<Amount>,
    /// The length of a window: `1m`.
    pub(crate) window: Required<String>,
    /// The number of slices: more are more exact and take more memory. 6 if missing.
    pub(crate) slices: Option<Spanned<Amount>>,
}

/// A number of requests at the same time, each held until it ends.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Concurrency")]
pub(crate) struct ConcurrencySpec {
    /// The most requests at the same time, each counted with its cost: 0 to 65,535.
    pub(crate) max: Required<BoundedAmount<0, 65_535>>,
    /// How long a request is counted without a renewal, after its holder has died: `30s`, from 1 second to 1 day. 30 seconds if
    /// missing.
    pub(crate) lease: Option<Spanned<String>>,
}

/// A number of requests, or of units of their cost, in each period of the calendar. What is charged beyond it is carried into the next
/// period.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Quota")]
pub(crate) struct QuotaSpec {
    /// The units in each period.
    pub(crate) amount: Required<Amount>,
    /// The length of a period.
    pub(crate) period: Required<PeriodSpec>,
    /// The time zone in which periods begin, by its name in the IANA database: `Europe/Berlin`. `UTC` if missing.
    pub(crate) timezone: Option<Spanned<String>>,
    /// Where periods begin: a day of the week (`monday`, the default), of the month (1 to 31; a shorter month begins on its last day; 1 if
    /// missing) or of the year (`03-31`; `01-01` if missing). Hours and days have none.
    pub(crate) anchor: Option<Spanned<TextScalar>>,
    /// Further units after the amount, in which requests pass with a mark: a number, or a part of the amount (`5%`), rounded down. 0 if
    /// missing.
    pub(crate) grace: Option<Spanned<TextScalar>>,
    /// Records what is consumed in the ledger: `sync` before a request is allowed, `async` soon after. No ledger if missing; `none` says
    /// that this is meant. A plan has the one of the rule.
    pub(crate) ledger: Option<Spanned<LedgerSpec>>,
    /// Whether the ledger keeps the tenant's name in clear text, beside the hash. Only with `ledger`, and if the rule counts by `tenant`.
    /// False if missing.
    pub(crate) keep_names: Option<Spanned<bool>>,
}

/// When the ledger has what a request consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Ledger")]
pub(crate) enum LedgerSpec {
    /// Before the request is allowed.
    Sync,
    /// Soon after the request was allowed.
    Async,
    /// Never. A server with a ledger warns of quotas that have none and do not say so.
    None,
}

/// The length of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Period")]
pub(crate) enum PeriodSpec {
    /// An hour of the clock.
    Hour,
    /// A day, of 23 to 25 hours where the clocks change.
    Day,
    /// A week, from Monday on unless there is an anchor.
    Week,
    /// A month of the calendar, or from the anchor's day of one month to that of the next.
    Month,
    /// A year of the calendar, or from the anchor's date on.
    Year,
}
