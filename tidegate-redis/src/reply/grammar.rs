//! `ResultText`: the parser of the result of one plan. The contract of `decide_batch.lua` has the grammar.
//!
//! It knows no plan and no limit: it says what the script wrote, not what that means.

use smallvec::SmallVec;

use super::STALE;
use super::numbers::{parse_number, take_number, take_stream_id};

/// The result of a plan.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResultText<'t> {
    /// The periods of a quota do not contain the time of the script.
    Stale,
    /// The state of the check with this number, from 1, is unreadable.
    Unreadable(u64),
    /// The generation that was found for each check with a ledger.
    OtherGenerations(SmallVec<[u64; 2]>),
    OutboxFull,
    AlreadyEnded,
    KeyReused,
    Decided(DecidedText<'t>),
}

/// A plan that was decided.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DecidedText<'t> {
    /// Whether the reservation was made before.
    pub(super) is_repeat: bool,
    /// The units granted, of a plan of several.
    pub(super) granted: Option<u64>,
    /// The checks, which are [parsed](CheckText::take) one by one.
    pub(super) checks: &'t [u8],
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckText<'t> {
    pub(super) letter: CheckLetter,
    pub(super) state: &'t [u8],
    pub(super) holds: Option<HoldsText>,
    /// The units that earlier plans took from the state; 0 for none.
    pub(super) taken: u64,
    pub(super) ttl_millis: Option<u64>,
    /// The time and sequence of the entry in the stream.
    pub(super) entry: Option<(u64, u64)>,
}

/// What a state with holds is followed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HoldsText {
    /// The units that others hold.
    pub(super) held: u64,
    /// When the last hold runs out, in microseconds.
    pub(super) ends: u64,
    /// The number of holds and remembered ends.
    pub(super) entries: u64,
}

/// How a check was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct CheckLetter {
    pub(super) admitted: bool,
    /// On the overflow bucket.
    pub(super) overflowed: bool,
    /// On a key that does not exist, on a full server: nothing was written.
    pub(super) stateless: bool,
    /// A shadow check whose state is unreadable.
    pub(super) unreadable: bool,
    /// A penalty that was struck.
    pub(super) struck: bool,
}

impl<'t> ResultText<'t> {
    /// Parses the text between two semicolons. The checks of a decided plan are not parsed yet.
    pub(super) fn parse(text: &'t [u8]) -> Option<Self> {
        Some(match text {
            STALE => Self::Stale,
            b"%" => Self::OutboxFull,
            b"e" => Self::AlreadyEnded,
            b"k" => Self::KeyReused,
            [b'!', number @ ..] => Self::Unreadable(parse_number(number)?),
            [b'?', list @ ..] => {
                Self::OtherGenerations(list.split(|byte| *byte == b',').map(parse_number).collect::<Option<_>>()?)
            }
            _ => {
                let (is_repeat, rest) = text.strip_prefix(b"r").map_or((false, text), |rest| (true, rest));
                let (granted, checks) = take_field(b'g', rest)?;
                Self::Decided(DecidedText { is_repeat, granted, checks })
            }
        })
    }
}

impl<'t> CheckText<'t> {
    /// Parses the check at the start of `text`. Returns the rest.
    pub(super) fn take(text: &'t [u8]) -> Option<(Self, &'t [u8])> {
        let (letter, text) = text.split_first()?;
        let letter = CheckLetter::parse(*letter)?;
        let is_state_byte = |byte: &&u8| byte.is_ascii_digit() || **byte == b',';
        let (state, text) = text.split_at(text.iter().take_while(is_state_byte).count());
        let (holds, text) = HoldsText::take(text)?;
        let (taken, text) = take_field(b't', text)?;
        let (ttl_millis, text) = take_field(b'm', text)?;
        let (entry, text) = match text.strip_prefix(b"l") {
            Some(rest) => take_stream_id(rest).map(|(id, rest)| (Some(id), rest))?,
            None => (None, text),
        };
        Some((Self { letter, state, holds, taken: taken.unwrap_or(0), ttl_millis, entry }, text))
    }
}

impl CheckLetter {
    const fn parse(letter: u8) -> Option<Self> {
        let admitted = letter.is_ascii_lowercase();
        let own = Self { admitted, overflowed: false, stateless: false, unreadable: false, struck: false };
        Some(match letter {
            b'a' | b'A' => own,
            b's' | b'S' => Self { overflowed: true, ..own },
            b'n' | b'N' => Self { stateless: true, ..own },
            b'o' | b'O' => Self { overflowed: true, stateless: true, ..own },
            b'p' => Self { struck: true, ..own },
            b'U' => Self { unreadable: true, ..own },
            _ => return None,
        })
    }
}

impl HoldsText {
    /// Parses what may follow a state. Returns the rest.
    fn take(text: &[u8]) -> Option<(Option<Self>, &[u8])> {
        let Some(rest) = text.strip_prefix(b"h") else { return Some((None, text)) };
        let (held, rest) = take_number(rest)?;
        let (ends, rest) = take_number(rest.strip_prefix(b",")?)?;
        let (entries, rest) = take_number(rest.strip_prefix(b",")?)?;
        Some((Some(Self { held, ends, entries }), rest))
    }
}

/// Parses the number that may follow `letter` at the start of `text`. Returns the rest.
fn take_field(letter: u8, text: &[u8]) -> Option<(Option<u64>, &[u8])> {
    match text.split_first() {
        Some((first, rest)) if *first == letter => take_number(rest).map(|(number, rest)| (Some(number), rest)),
        _ => Some((None, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(text: &[u8]) -> Option<(bool, Option<u64>, Vec<CheckText<'_>>)> {
        let ResultText::Decided(DecidedText { is_repeat, granted, checks: mut text }) = ResultText::parse(text)? else {
            return None;
        };
        let mut checks = Vec::new();
        while !text.is_empty() {
            let (check, rest) = CheckText::take(text)?;
            checks.push(check);
            text = rest;
        }
        Some((is_repeat, granted, checks))
    }

    #[test]
    fn each_result_that_changes_nothing_has_a_letter_of_its_own() {
        let results = [
            (&b"~"[..], ResultText::Stale),
            (b"%", ResultText::OutboxFull),
            (b"e", ResultText::AlreadyEnded),
            (b"k", ResultText::KeyReused),
            (b"!12", ResultText::Unreadable(12)),
            (b"?7,0", ResultText::OtherGenerations(SmallVec::from_slice(&[7, 0]))),
        ];
        for (text, result) in results {
            assert_eq!(ResultText::parse(text), Some(result));
        }
        for text in [&b"!"[..], b"!x", b"?", b"?7,", b"g", b"rgx"] {
            assert_eq!(ResultText::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_check_has_its_parts_in_one_order() {
        let (is_repeat, granted, checks) = decided(b"rg3S12,3h4,5,6t7m8l9-1ap0U").unwrap();
        assert_eq!((is_repeat, granted, checks.len()), (true, Some(3), 4));
        let CheckText { letter, state, holds, taken, ttl_millis, entry } = checks[0];
        assert!(letter.overflowed && !letter.admitted);
        assert_eq!((state, holds), (&b"12,3"[..], Some(HoldsText { held: 4, ends: 5, entries: 6 })));
        assert_eq!((taken, ttl_millis, entry), (7, Some(8), Some((9, 1))));
        assert!(checks[1].letter.admitted && checks[2].letter.struck && checks[3].letter.unreadable);
        assert_eq!(decided(b""), Some((false, None, Vec::new())));
        for text in [&b"x"[..], b"u", b"P", b"ah1,2", b"am8t7", b"al9", b"t", b"ag1"] {
            assert_eq!(decided(text), None, "{text:?}");
        }
    }

    /// Whatever a server or a proxy answers.
    #[test]
    fn any_text_is_parsed_or_refused() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|text| {
            if let Some((_, _, checks)) = decided(text) {
                assert!(checks.len() <= text.len());
            }
        });
    }
}
