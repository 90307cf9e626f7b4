//! The limits in Lua: the text of each function, for a store to compose scripts from.
//!
//! Each file defines one local function with the name of the limit and the signature described in `ops.lua`.

/// The comment that describes the signature. It comes first in every script.
const OPS: &str = include_str!("ops.lua");
/// `token_bucket`
pub const TOKEN_BUCKET: &str = include_str!("token_bucket.lua");
/// `leaky_bucket`, which needs [`TOKEN_BUCKET`] before it.
pub const LEAKY_BUCKET: &str = include_str!("leaky_bucket.lua");
/// `fixed_window`
pub const FIXED_WINDOW: &str = include_str!("fixed_window.lua");
/// `sliding_log`
pub const SLIDING_LOG: &str = include_str!("sliding_log.lua");
/// `sliding_window`
pub const SLIDING_WINDOW: &str = include_str!("sliding_window.lua");
/// `concurrency`
pub const CONCURRENCY: &str = include_str!("concurrency.lua");
/// `quota`
pub const QUOTA: &str = include_str!("quota.lua");
/// `holds`, which runs another limit beside the holds of reservations.
pub const HOLDS: &str = include_str!("holds.lua");
/// `penalty`
pub const PENALTY: &str = include_str!("penalty.lua");

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
