//! The limits in Lua: the text of each function, for a store to compose scripts from.
//!
//! Each file defines one local function with the name of the limit and the signature described in `ops.lua`.

use super::Kind;
use super::TakePosition;
use super::concurrency::Concurrency;
use super::fixed_window::FixedWindow;
use super::leaky_bucket::LeakyBucket;
use super::penalty::Penalty;
use super::quota::Quota;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::token_bucket::TokenBucket;
use crate::limit::with_kind;
use crate::{Limit, Timestamp};

/// The comment that describes the signature. It comes first in every script.
const OPS: &str = include_str!("ops.lua");
/// `holds`, which runs another limit beside the holds of reservations.
pub const HOLDS: &str = include_str!("holds.lua");

/// The functions of all limits, each after the one that it calls.
pub const FUNCTIONS: [LuaFunction; 8] = [
    TokenBucket::LUA,
    LeakyBucket::LUA,
    FixedWindow::LUA,
    SlidingLog::LUA,
    SlidingWindow::LUA,
    Concurrency::LUA,
    Penalty::LUA,
    Quota::LUA,
];

/// The Lua function of a limit.
#[derive(Clone, Copy, Debug)]
pub struct LuaFunction {
    /// Its place among [all](FUNCTIONS), from 1.
    pub number: usize,
    /// Its name.
    pub name: &'static str,
    /// The text that defines it.
    pub text: &'static str,
    /// The text of the function that it calls.
    pub needs: &'static str,
    /// How many numbers it takes after `units` for a decision.
    pub numbers: usize,
    /// How many more for an adjustment.
    pub refund_numbers: usize,
}

/// What the numbers of a function depend on, beside the limit.
#[derive(Clone, Copy, Debug)]
pub struct LuaInput {
    /// The cost of one unit.
    pub cost: u64,
    /// The longest delay that is accepted, in microseconds; `None` for any.
    pub max_delay_micros: Option<u64>,
    /// Where the take to refund was consumed, or whose slot it is.
    pub position: TakePosition,
    /// Whether it is for an adjustment.
    pub is_adjustment: bool,
}

/// The function of `limit`.
pub fn function(limit: &Limit) -> LuaFunction {
    const fn of<K: Kind>(_: &K) -> LuaFunction {
        K::LUA
    }
    with_kind!(limit, kind => of(kind))
}

/// Passes the numbers that the function of `limit` takes after `units` to `push`. `now` is asked for quotas only.
#[inline]
pub fn push_numbers(limit: &Limit, input: LuaInput, now: impl FnOnce() -> Timestamp, push: impl FnMut(f64)) {
    with_kind!(limit, kind => kind.push_numbers(input, now, push));
}

impl LuaInput {
    /// The longest delay as a number; infinite for any.
    pub(super) fn max_delay(&self) -> f64 {
        self.max_delay_micros.filter(|micros| *micros < 1 << 53).map_or(f64::INFINITY, |micros| micros as f64)
    }
}

/// The constants of the scripts: the operations, the clock margin, the maximum of what a bucket counts as returned, both in
/// microseconds, the maxima of reservations and of counted strikes, the longest debt of a quota, the largest amount, and 2^53, the bound
/// of all numbers in values. A name that contains another comes before it.
const CONSTANTS: [(&str, &str); 18] = [
    ("TAKE", "1"),
    ("ROOM", "2"),
    ("CHARGE", "3"),
    ("REFUND", "4"),
    ("RENEW", "5"),
    ("RESERVE", "6"),
    ("COMMIT", "7"),
    ("RELEASE", "9"),
    ("KEEP", "10"),
    ("MAX_RESERVATIONS", "1024"),
    ("MAX_STRIKES", "900"),
    ("STRIKE", "8"),
    ("FILL", "11"),
    ("MAX_WINDOW", "3155760000000000"),
    ("MAX_AMOUNT", "4503599627370495"),
    ("MARGIN", "2000000"),
    ("MAX_RETURNED", "4503599627370496"),
    ("TOO_LARGE", "9007199254740992"),
];

/// Composes a script from these parts and replaces the constants. `first_line` is the shebang line, such as `#!lua`.
pub fn compose(first_line: &str, parts: &[&str]) -> String {
    let text = format!("{first_line}\n{OPS}{}", parts.concat());
    CONSTANTS.iter().fold(text, |text, (name, value)| text.replace(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_are_the_same_in_rust_and_lua() {
        let constant = |name: &str| CONSTANTS.iter().find(|constant| constant.0 == name).unwrap().1;
        assert_eq!(constant("MARGIN"), super::super::CLOCK_MARGIN_MICROS.to_string());
        assert_eq!(constant("MAX_WINDOW"), crate::limit::MAX_WINDOW_MICROS.to_string());
        assert_eq!(constant("MAX_AMOUNT"), crate::limit::MAX_AMOUNT.to_string());
        assert_eq!(constant("MAX_STRIKES"), super::super::penalty::MAX_STRIKES.to_string());
        assert_eq!(constant("MAX_RESERVATIONS"), super::super::holds::MAX_RESERVATIONS.to_string());
        assert_eq!(constant("MAX_RETURNED"), super::super::token_bucket::MAX_RETURNED_MICROS.to_string());
    }
}
