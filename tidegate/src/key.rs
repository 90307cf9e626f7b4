//! `Key`: where the state of one limit for one subject is kept. The only file that knows the key grammar.
//!
//! ```text
//! name       = prefix version "{" partition "}" owner ":" shape subject
//! prefix     = of the store, "tg" unless told otherwise; without braces
//! version    = "1", of this grammar and of the values
//! partition  = two characters, 0 to 1023 in base 32: a hash of what the rule counts by, so that it decides the slot
//! owner      = the id of the rule, escaped; or "$" and the name of the budget, escaped
//! shape      = kind [window ["x" slices]] ["." name of the limit within its rule, escaped]
//! window     = number unit, with the unit "us" │ "ms" │ "s" │ "m" │ "h" │ "d", or "mo" │ "y" of the calendar
//! kind       = "t" token bucket │ "q" leaky bucket │ "f" fixed window │ "l" sliding log │ "s" sliding window
//! subject    = sixteen bytes, the hash; or "+" and sixteen bytes, a number: an overflow bucket of the partition, 0 to
//!              255, or one beside it, for those of one plan that must not share it
//! escaped    = letters, digits, "_" and "-" as they are, any other byte as "%" and two hexadecimal digits
//! ```
//!
//! The last sixteen bytes are the subject, and nothing before it can contain the separator that ends it, so no two keys share
//! a name; a shape never ends in "+", so no subject shares one with an overflow bucket. The amounts of a limit are not part of
//! it: changing them keeps the state.
//!
//! No owner begins with `@`: after `prefix version "{" partition "}@"` a store keeps what is its own.

use std::fmt::Write;

use siphasher::sip128::SipHasher24;

use crate::Limit;
use crate::algorithm::State;
use crate::algorithm::fixed_window::FixedWindow;
use crate::spi::Subject;

/// The version of the key grammar and of the values under the keys.
pub const KEY_VERSION: &str = "1";

/// The number of partitions, each of which lies in one slot of a cluster.
pub const PARTITIONS: u16 = 1024;

/// A key, as a plan refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'r> {
    stem: &'r KeyStem,
    partition: u16,
    /// Whether it is that of an overflow bucket; then the subject is its number.
    overflow: bool,
    subject: Subject,
}

/// What the keys of one limit have in common: its owner and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStem {
    text: String,
    seed: u128,
}

impl KeyStem {
    /// The stem of a limit that belongs to one rule.
    pub fn for_rule(rule: &str, limit: &Limit, name: &str) -> Self {
        let mut text = String::new();
        escape(&mut text, rule);
        Self::with_shape(text, limit, name)
    }

    /// The stem of a limit that several rules share.
    pub fn for_budget(budget: &str, limit: &Limit, name: &str) -> Self {
        let mut text = String::from("$");
        escape(&mut text, budget);
        Self::with_shape(text, limit, name)
    }

    fn with_shape(mut text: String, limit: &Limit, name: &str) -> Self {
        text.push(':');
        match limit {
            Limit::TokenBucket(_) => text.push('t'),
            Limit::LeakyBucket(_) => text.push('q'),
            Limit::FixedWindow(limit) => push_fixed_window(&mut text, limit),
            Limit::SlidingLog(limit) => push_window(&mut text, 'l', limit.window_micros()),
            Limit::SlidingWindow(limit) => {
                push_window(&mut text, 's', limit.window_micros());
                let _ = write!(text, "x{}", limit.slices());
            }
        }
        if !name.is_empty() {
            text.push('.');
            escape(&mut text, name);
        }
        let seed = SipHasher24::new().hash(text.as_bytes()).as_u128();
        Self { text, seed }
    }

    /// The stem as a number, for a table.
    pub const fn id(&self) -> u128 {
        self.seed
    }

    /// The tag of a name: whatever has the same one falls into the same partition.
    pub(crate) fn tag_of(name: &str) -> Subject {
        Subject::from_hash(SipHasher24::new().hash(name.as_bytes()).as_u128())
    }

    /// The tag of a limit without a subject: different limits fall into different partitions.
    pub(crate) const fn own_tag(&self) -> Subject {
        Subject::from_hash(self.seed)
    }
}

impl<'r> Key<'r> {
    /// The key of `subject` under `stem`, in the partition that `tag` falls into.
    #[inline(always)]
    pub fn new(stem: &'r KeyStem, tag: Subject, subject: Subject) -> Self {
        let partition = (tag.hash() >> 96) as u16 % PARTITIONS;
        Self { stem, partition, overflow: false, subject }
    }

    /// A key with a known partition, below [`PARTITIONS`].
    pub(crate) fn in_partition(stem: &'r KeyStem, partition: u16, subject: Subject) -> Self {
        Self { stem, partition: partition % PARTITIONS, overflow: false, subject }
    }

    /// The key of the bucket that new subjects of its limit and partition share once there are too many of them, or the one
    /// so many `beside` it. For shared stores, where it lies in the same slot; a store in memory has one of its own.
    pub fn overflow(&self, beside: u8) -> Self {
        Self { overflow: true, subject: Subject::from_hash(u128::from(beside)), ..*self }
    }

    /// What it has in common with the other keys of its limit.
    pub const fn stem(&self) -> &'r KeyStem {
        self.stem
    }

    /// Whose key it is.
    #[inline(always)]
    pub const fn subject(&self) -> Subject {
        self.subject
    }

    /// Keys of one partition lie in one slot of a cluster.
    #[inline(always)]
    pub const fn partition(&self) -> u16 {
        self.partition
    }

    /// Appends the full name, after the grammar above.
    pub fn write_name(&self, prefix: &str, name: &mut Vec<u8>) {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
        name.extend_from_slice(prefix.as_bytes());
        name.extend_from_slice(KEY_VERSION.as_bytes());
        let (high, low) = (usize::from(self.partition >> 5), usize::from(self.partition & 31));
        name.extend_from_slice(&[b'{', DIGITS[high], DIGITS[low], b'}']);
        name.extend_from_slice(self.stem.text.as_bytes());
        if self.overflow {
            name.push(b'+');
        }
        name.extend_from_slice(&self.subject.hash().to_be_bytes());
    }

    /// The key as a number, for a table in memory.
    #[inline(always)]
    pub(crate) const fn id(&self) -> u128 {
        self.stem.seed ^ self.subject.hash()
    }

    /// The bucket that subjects of this stem share once there is no room for their own.
    pub(crate) const fn overflow_id(&self) -> u128 {
        self.stem.seed
    }
}

fn push_fixed_window(text: &mut String, limit: &FixedWindow) {
    match limit.months() {
        None => push_window(text, 'f', limit.window_micros()),
        Some(months) if months.is_multiple_of(12) => _ = write!(text, "f{}y", months / 12),
        Some(months) => _ = write!(text, "f{months}mo"),
    }
}

fn push_window(text: &mut String, kind: char, micros: u64) {
    const UNITS: [(u64, &str); 6] =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms"), (1, "us")];
    text.push(kind);
    if let Some((unit, name)) = UNITS.iter().find(|(unit, _)| micros.is_multiple_of(*unit)) {
        let _ = write!(text, "{}{name}", micros / unit);
    }
}

fn escape(text: &mut String, raw: &str) {
    for byte in raw.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "%{byte:02x}");
            }
        }
    }
}

/// The size that a table slot is meant to have: the state of a bucket beside its id.
const _: () = assert!(size_of::<State>() <= 24);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rate, Window};
    use std::time::Duration;

    fn name(key: &Key<'_>) -> Vec<u8> {
        let mut name = Vec::new();
        key.write_name("tg", &mut name);
        name
    }

    #[test]
    fn a_short_rule_has_a_name_of_28_bytes() {
        let limit = Limit::token_bucket(20, Rate::per_second(10).unwrap()).unwrap();
        let stem = KeyStem::for_rule("api", &limit, "");
        let subject = Subject::from_hash(7 << 96);
        let name = name(&Key::new(&stem, subject, subject));
        assert_eq!(name.len(), 28);
        assert!(name.starts_with(b"tg1{07}api:t"));
    }

    #[test]
    fn an_overflow_bucket_lies_in_the_slot_of_those_who_share_it_under_a_name_of_no_subject() {
        let limit = Limit::token_bucket(20, Rate::per_second(10).unwrap()).unwrap();
        let stem = KeyStem::for_rule("api", &limit, "");
        let (ann, bob) = (Subject::from_hash(7 << 96), Subject::from_hash((7 << 96) + 1));
        let bucket = Key::new(&stem, ann, ann).overflow(0);
        assert_eq!(name(&bucket), [&b"tg1{07}api:t+"[..], &[0; 16]].concat());
        assert_eq!(name(&bucket), name(&Key::new(&stem, bob, bob).overflow(0)));
        assert_ne!(name(&bucket), name(&Key::new(&stem, ann, ann).overflow(1)));
        assert_ne!(name(&bucket), name(&Key::new(&stem, ann, Subject::from_hash(0))));
    }

    #[test]
    fn the_shape_is_in_the_name_and_the_amounts_are_not() {
        let window = Duration::from_secs(600);
        let text = |limit: Limit, name: &str| KeyStem::for_rule("r", &limit, name).text;
        assert_eq!(text(Limit::sliding_window(10, window, 6).unwrap(), ""), "r:s10mx6");
        assert_eq!(text(Limit::sliding_window(99, window, 6).unwrap(), ""), "r:s10mx6");
        assert_eq!(text(Limit::fixed_window(1, Duration::from_micros(1500)).unwrap(), "a.b"), "r:f1500us.a%2eb");
        assert_eq!(text(Limit::fixed_window(1, Duration::from_secs(30 * 86_400)).unwrap(), ""), "r:f30d");
        assert_eq!(text(Limit::fixed_window(1, Window::MONTH).unwrap(), ""), "r:f1mo");
        assert_eq!(text(Limit::fixed_window(1, Window::YEAR).unwrap(), ""), "r:f1y");
    }
}
