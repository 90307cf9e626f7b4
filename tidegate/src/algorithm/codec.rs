//! Reading what the Lua twins write: the values under the keys, and the log's summary.

use super::{Moment, State, View, fixed_window, sliding_log, sliding_window};
use crate::{Limit, Timestamp};

/// Numbers in values stay below this; what does not was not written by us.
const TOO_LARGE: u64 = 1 << 53;

/// What a script found under a key, as it replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Fresh,
    /// The state itself.
    State(State),
    /// The summary of a log.
    Log(sliding_log::Summary),
}

impl Found {
    /// Reads what a script found for a check of `limit`. None if no version so far writes such a thing.
    pub fn decode(limit: &Limit, bytes: &[u8]) -> Option<Self> {
        match limit {
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
                let (part, micros) = split_number(bytes, 16)?;
                Some(Self::State(State::Moment(Moment { micros, part })))
            }
            Limit::FixedWindow(limit) => {
                let width = if limit.window_micros() < 1_000_000 { 16 } else { 10 };
                let (count, index) = split_number(bytes, width)?;
                Some(limit.start_of(index)).filter(|start| *start < TOO_LARGE)?;
                Some(Self::State(State::Window(fixed_window::State { index, count })))
            }
            Limit::SlidingLog(_) => {
                let [used, newest, blocker] = <[u64; 3]>::try_from(list(bytes)?).ok()?;
                Some(Self::Log(sliding_log::Summary { used, newest, blocker }))
            }
            Limit::SlidingWindow(limit) => {
                let numbers = list(bytes)?;
                let (index, counts) = numbers.split_first()?;
                index.checked_mul(limit.slice_micros()).filter(|start| *start < TOO_LARGE)?;
                let slices = sliding_window::State { index: *index, counts: counts.into() };
                Some(Self::State(State::Slices(Box::new(slices))))
            }
        }
    }

    /// The first instant, in microseconds, at which it decides like none; that has come for a log without entries, at `now`.
    /// None if there was nothing.
    pub fn expiry(&self, limit: &Limit, now: Timestamp) -> Option<u64> {
        match (self, limit) {
            (Self::Fresh, _) => None,
            (Self::State(state), _) => Some(super::expiry(state, limit)),
            (Self::Log(summary), Limit::SlidingLog(limit)) if summary.newest > 0 => {
                Some(summary.newest + limit.window_micros())
            }
            (Self::Log(_), _) => Some(now.as_micros()),
        }
    }

    /// As an outcome sees it.
    pub fn view(&self) -> View<'_> {
        match self {
            Self::Log(summary) => View::Log(*summary),
            Self::State(State::Moment(moment)) => View::Moment(*moment),
            Self::State(State::Window(window)) => View::Window(*window),
            Self::State(State::Slices(slices)) => View::Slices(slices),
            // A script tells a log by its summary only, never as a state.
            Self::Fresh | Self::State(State::Log(_)) => View::Fresh,
        }
    }
}

/// The number in the last `width` digits and the one before them (0 if there are no more digits).
fn split_number(bytes: &[u8], width: usize) -> Option<(u64, u64)> {
    let (head, tail) = bytes.split_at_checked(bytes.len().checked_sub(width)?)?;
    Some((if head.is_empty() { 0 } else { number(head)? }, number(tail)?))
}

fn list(bytes: &[u8]) -> Option<Vec<u64>> {
    bytes.split(|byte| *byte == b',').map(number).collect()
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number < TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Window;

    /// 2^53 microseconds end in June 2255.
    #[test]
    fn a_window_of_the_calendar_is_readable_up_to_the_largest_number() {
        for (window, last) in [(Window::MONTH, 285 * 12 + 5), (Window::YEAR, 285)] {
            let limit = Limit::fixed_window(9, window).unwrap();
            let decode = |index: u64| Found::decode(&limit, format!("7{index:010}").as_bytes());
            let found = Found::State(State::Window(fixed_window::State { index: last, count: 7 }));
            assert_eq!((decode(last), decode(last + 1), decode(9_999_999_999)), (Some(found), None, None));
        }
    }
}
