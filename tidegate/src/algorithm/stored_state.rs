//! `StoredState`: decodes the values that the Lua functions write, and the summaries of logs and leases in their replies.

use super::concurrency::ConcurrencySummary;
use super::fixed_window::FixedWindowState;
use super::penalty::{self, PenaltyState};
use super::quota::QuotaState;
use super::sliding_log::SlidingLogSummary;
use super::sliding_window::SlidingWindowState;
use super::token_bucket::{self, MAX_RETURNED_MICROS, TokenBucketState};
use super::{Change, FractionalMicros, State, StateView};
use crate::{Limit, Timestamp};

/// All numbers in values are below this. A larger one was not written by this library.
const NUMBER_BOUND: u64 = 1 << 53;

/// The state that a script found under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredState {
    /// No state.
    Fresh,
    /// The state itself.
    State(State),
    /// The summary of a log.
    Log(SlidingLogSummary),
    /// The summary of leases.
    Leases(ConcurrencySummary),
    /// Any of the others, and the units that reservations hold beside it.
    WithHolds {
        /// The state of the limit.
        inner: Box<StoredState>,
        /// The units that reservations of others hold.
        held: u64,
        /// When the last hold runs out, in microseconds; 0 if there is none.
        ends: u64,
    },
}

impl StoredState {
    /// Decodes the state of a `limit`. `None` if no version of this library writes such a value.
    pub fn decode(limit: &Limit, bytes: &[u8]) -> Option<Self> {
        match limit {
            Limit::TokenBucket(_) => {
                let mut numbers = bytes.splitn(2, |byte| *byte == b',');
                let full = decode_moment(numbers.next()?)?;
                let returned = match numbers.next() {
                    Some(digits) => parse_number(digits).filter(|number| (1..=MAX_RETURNED_MICROS).contains(number))?,
                    None => 0,
                };
                Some(Self::State(State::new(Change::Bucket(TokenBucketState { full, returned }))))
            }
            Limit::LeakyBucket(_) => Some(Self::State(State::Bucket(decode_moment(bytes)?))),
            Limit::FixedWindow(limit) => {
                let width = if limit.window_micros() < 1_000_000 { 16 } else { 10 };
                let (count, index) = split_number(bytes, width)?;
                Some(limit.start_of(index)).filter(|start| *start < NUMBER_BOUND)?;
                Some(Self::State(State::Window(FixedWindowState { index, count })))
            }
            Limit::SlidingLog(_) => {
                let [used, newest, blocker] = <[u64; 3]>::try_from(parse_list(bytes)?).ok()?;
                Some(Self::Log(SlidingLogSummary { used, newest, blocker }))
            }
            Limit::SlidingWindow(limit) => {
                let numbers = parse_list(bytes)?;
                let (index, counts) = numbers.split_first()?;
                index.checked_mul(limit.slice_micros()).filter(|start| *start < NUMBER_BOUND)?;
                let slices = SlidingWindowState { index: *index, counts: counts.into() };
                Some(Self::State(State::Slices(Box::new(slices))))
            }
            Limit::Concurrency(_) => {
                let [used, own, newest] = <[u64; 3]>::try_from(parse_list(bytes)?).ok()?;
                Some(Self::Leases(ConcurrencySummary { used, own, newest }))
            }
            Limit::Quota(_) => {
                let mut numbers = bytes.splitn(2, |byte| *byte == b',');
                let (used, index) = split_number(numbers.next()?, 8)?;
                let more = numbers.next().map_or_else(|| Some(Vec::new()), parse_list)?;
                let (previous, debt, carried) = match more[..] {
                    [] => (0, 0, 0),
                    [previous] => (previous, 0, 0),
                    [previous, debt, carried] => (previous, debt, carried),
                    _ => return None,
                };
                Some(Self::State(QuotaState { index, used, debt, previous, carried }.into()))
            }
            Limit::Penalty(_) => {
                let (strikes, ends) = split_number(bytes, 16).filter(|_| (17..=19).contains(&bytes.len()))?;
                Some(Self::State(State::Penalty(PenaltyState { strikes, ends })))
            }
        }
    }

    /// The first instant, in microseconds, at which it is equivalent to none; `now` for a log without entries or
    /// leases of which all have run out. `None` if there is
    /// no state.
    pub fn expiry(&self, limit: &Limit, now: Timestamp) -> Option<u64> {
        match (self, limit) {
            (Self::Fresh, _) => None,
            (Self::State(state), _) => Some(super::expiry(state, limit)),
            (Self::Log(summary), Limit::SlidingLog(limit)) if summary.newest > 0 => {
                Some(summary.newest + limit.window_micros())
            }
            (Self::Leases(summary), Limit::Concurrency(limit)) if summary.newest > 0 => {
                Some(summary.newest + limit.lease_micros())
            }
            (Self::WithHolds { inner, ends, .. }, _) => {
                inner.expiry(limit, now).max(Some(*ends).filter(|ends| *ends > 0))
            }
            (Self::Log(_) | Self::Leases(_), _) => Some(now.as_micros()),
        }
    }

    /// How long, in microseconds, a store keeps it after it no longer affects decisions: a token bucket with refunds is remembered for
    /// receipts from before.
    pub fn extra_life_micros(&self, limit: &Limit) -> u64 {
        match (self, limit) {
            (Self::State(State::RefundedBucket(state)), Limit::TokenBucket(limit)) => {
                token_bucket::expiry(**state, limit) - state.full.ceil()
            }
            _ => 0,
        }
    }

    /// The state of a penalty after a strike. `None` if there is none: during a block, and for other limits.
    pub fn after_strike(&self, limit: &Limit, now: Timestamp) -> Option<Self> {
        let Limit::Penalty(penalty) = limit else { return None };
        let state = self.view().penalty();
        Some(Self::State(State::Penalty(penalty::strike(state, penalty, now)?)))
    }

    /// The units that reservations hold beside it; `None` if there are no reservations.
    pub const fn held(&self) -> Option<u64> {
        if let Self::WithHolds { held, .. } = self { Some(*held) } else { None }
    }

    /// When the last hold beside it runs out, in microseconds; 0 if there is none.
    pub const fn holds_end_micros(&self) -> u64 {
        if let Self::WithHolds { ends, .. } = self { *ends } else { 0 }
    }

    /// The view that an outcome is computed from. Holds are not part of it.
    pub fn view(&self) -> StateView<'_> {
        match self {
            Self::Log(summary) => StateView::Log(*summary),
            Self::Leases(summary) => StateView::Leases(*summary),
            Self::State(State::Bucket(full)) => StateView::Bucket((*full).into()),
            Self::State(State::RefundedBucket(state)) => StateView::Bucket(**state),
            Self::State(State::Window(window)) => StateView::Window(*window),
            Self::State(State::Slices(slices)) => StateView::Slices(slices),
            Self::State(state @ (State::Quota { .. } | State::QuotaWithDebt(_))) => {
                state.quota().map_or(StateView::Fresh, StateView::Quota)
            }
            Self::State(State::Penalty(state)) => StateView::Penalty(*state),
            Self::WithHolds { inner, .. } => inner.view(),
            // A script replies with the summary of a log, of leases or of holds, never with all of them.
            Self::Fresh | Self::State(State::Log(_) | State::Leases(_) | State::WithHolds(_)) => StateView::Fresh,
        }
    }
}

/// The instant that a bucket's value starts with.
fn decode_moment(bytes: &[u8]) -> Option<FractionalMicros> {
    let (part, micros) = split_number(bytes, 16)?;
    Some(FractionalMicros { micros, part })
}

/// The number before the last `width` digits (0 if there is none), and the number in these digits.
fn split_number(bytes: &[u8], width: usize) -> Option<(u64, u64)> {
    let (head, tail) = bytes.split_at_checked(bytes.len().checked_sub(width)?)?;
    Some((if head.is_empty() { 0 } else { parse_number(head)? }, parse_number(tail)?))
}

fn parse_list(bytes: &[u8]) -> Option<Vec<u64>> {
    bytes.split(|byte| *byte == b',').map(parse_number).collect()
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number < NUMBER_BOUND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Window;

    #[test]
    fn only_a_token_bucket_counts_refunds() {
        let rate = crate::Rate::per_second(1).unwrap();
        let (token, leaky) = (Limit::token_bucket(10, rate).unwrap(), Limit::leaky_bucket(rate, 9).unwrap());
        let full = FractionalMicros { micros: 1_790_000_000_000_000, part: 7 };
        for (value, returned) in [("71790000000000000", 0), ("71790000000000000,3000000", 3_000_000)] {
            let state = StoredState::decode(&token, value.as_bytes()).unwrap();
            assert_eq!(state.view(), StateView::Bucket(TokenBucketState { full, returned }));
            assert_eq!(state.extra_life_micros(&token), returned);
            assert_eq!(state.expiry(&token, Timestamp::default()), Some(full.micros + 1 + returned));
            let of_leaky = StoredState::decode(&leaky, value.as_bytes());
            assert_eq!(of_leaky.map(|state| state.extra_life_micros(&leaky)), (returned == 0).then_some(0));
        }
        let most = format!("71790000000000000,{MAX_RETURNED_MICROS}");
        assert_eq!(StoredState::decode(&token, most.as_bytes()).unwrap().extra_life_micros(&token), 10_000_000);
        let more = format!("71790000000000000,{}", MAX_RETURNED_MICROS + 1);
        for value in ["71790000000000000,0", "71790000000000000,", "71790000000000000,3,4", &more] {
            assert_eq!(StoredState::decode(&token, value.as_bytes()), None, "{value}");
        }
    }

    /// 2^53 microseconds end in June 2255.
    #[test]
    fn calendar_windows_are_decoded_up_to_the_largest_number() {
        for (window, last) in [(Window::MONTH, 285 * 12 + 5), (Window::YEAR, 285)] {
            let limit = Limit::fixed_window(9, window).unwrap();
            let decode = |index: u64| StoredState::decode(&limit, format!("7{index:010}").as_bytes());
            let expected = StoredState::State(State::Window(FixedWindowState { index: last, count: 7 }));
            assert_eq!((decode(last), decode(last + 1), decode(9_999_999_999)), (Some(expected), None, None));
        }
    }
}
