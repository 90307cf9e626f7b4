//! The limits in Lua: the text of each twin, for a store to compose its scripts from.
//!
//! Each file defines one local function of the name of the limit, with the signature that `ops.lua` explains.

/// What every limit has in common, in words: comes first in every script.
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

/// The constants of the scripts: the operations, the margin for clocks that step back, in microseconds, and 2^53, which no
/// number in a value reaches, or we did not write it.
const CONSTANTS: [(&str, &str); 6] = [
    ("TAKE", "1"),
    ("ROOM", "2"),
    ("CHARGE", "3"),
    ("REFUND", "4"),
    ("MARGIN", "2000000"),
    ("TOO_LARGE", "9007199254740992"),
];

/// A script of these parts, with the constants put in. The first line is Redis's own, such as `#!lua`.
pub fn compose(first_line: &str, parts: &[&str]) -> String {
    let text = format!("{first_line}\n{OPS}{}", parts.concat());
    CONSTANTS.iter().fold(text, |text, (name, value)| text.replace(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_the_same_in_both_languages() {
        let margin = CONSTANTS.iter().find(|(name, _)| *name == "MARGIN");
        assert_eq!(margin.unwrap().1, super::super::MARGIN_MICROS.to_string());
    }
}
