//! `TimeMove`: how time moves between the steps of a history.

use std::time::Duration;

use tidegate::{Limit, Timestamp};

#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeMove {
    Micros(i64),
    /// In eighths of the first limit's window.
    Spans(i64),
    /// By the margin for backward clock steps, plus a few microseconds.
    Margin(i64, bool),
    /// To the retry time of the last denial, plus a few microseconds.
    Retry(i64),
    /// To a calendar boundary, plus a few microseconds.
    Boundary(u64, i64),
    /// To the start of a period of a quota, so many after this one, plus a few microseconds. For other limits, so many windows.
    Period(i64, i64),
}

impl TimeMove {
    pub(crate) fn from(self, now: u64, limit: &Limit, last_retry: Option<Duration>) -> u64 {
        let spans = |numerator: i64, denominator: i128| {
            (i128::from(span_of(limit)) * i128::from(numerator) / denominator).clamp(-1 << 52, 1 << 52) as i64
        };
        let by = match (self, limit) {
            (Self::Boundary(seconds, more), _) => return (seconds * 1_000_000).saturating_add_signed(more),
            (Self::Period(number, more), Limit::Quota(quota)) => {
                let index = quota.periods().bounds_at(Timestamp::from_micros(now)).index;
                return quota.periods().start_of(index.saturating_add_signed(number)).saturating_add_signed(more);
            }
            (Self::Micros(by), _) => by,
            (Self::Spans(eighths), _) => spans(eighths, 8),
            (Self::Period(number, more), _) => spans(number, 1) + more,
            (Self::Margin(more, back), _) => (2_000_000 + more) * if back { -1 } else { 1 },
            (Self::Retry(more), _) => last_retry.map_or(0, |retry| retry.as_micros() as i64) + more,
        };
        now.saturating_add_signed(by)
    }
}

/// The window of a limit, in microseconds.
fn span_of(limit: &Limit) -> u64 {
    match limit {
        Limit::TokenBucket(limit) => limit.burst().micros,
        Limit::LeakyBucket(limit) => limit.bucket().burst().micros,
        limit => limit.max_window().as_micros() as u64,
    }
}
