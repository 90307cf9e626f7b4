//! `Key`: the key of one limit and one subject. Only this file knows the key grammar.
//!
//! ```text
//! name       = namespace version "{" partition "}" owner ":" shape subject
//! namespace  = of the deployment, "tg" by default; without braces
//! version    = "1", of this grammar and of the values
//! partition  = two characters, 0 to 1023 in base 32: a hash of what the rule is partitioned by; it decides the slot
//! owner      = the id of the rule, escaped; or "$" and the name of the budget, escaped
//! shape      = kind [window ["x" slices]] ["." name of the limit within its rule, escaped]
//! window     = number unit, with the unit "us" │ "ms" │ "s" │ "m" │ "h" │ "d", or "mo" │ "y" of the calendar
//! kind       = "t" token bucket │ "q" leaky bucket │ "f" fixed window │ "l" sliding log │ "s" sliding window │ "c" concurrency
//!              │ "u" quota (with its period as the window: "1h", "1d", "7d", "1mo", "1y") │ "p" penalty
//! subject    = sixteen bytes, the hash; or "+" and sixteen bytes, the number of an overflow bucket of the partition, 32 bits
//! escaped    = letters, digits, "_" and "-" as they are, any other byte as "%" and two hexadecimal digits
//! ```
//!
//! The last sixteen bytes are the subject, and no part before it contains the separator that ends it, so different keys have
//! different names. A shape never ends in "+", so no subject has the name of an overflow bucket. The amounts of a limit are not
//! part of the name, nor are the time zone and the anchor of a quota: a change of them keeps the state.
//!
//! No owner begins with `@`: a store keeps its own data after `namespace version "{" partition "}@"`.
//!
//! The values in Redis, without the [holds](crate::algorithm) of reservations:
//!
//! | limit | value | example |
//! |---|---|---|
//! | token bucket | the remainder, if any, and the microseconds at which the bucket is full, in 16 digits | `1800000000700000` |
//! | leaky bucket | the next free slot, likewise | `1800000000300000` |
//! | fixed window | the count, and the index of the window in 10 digits: windows, months or years since 1970 | `30030000000` |
//! | sliding window | the index of the newest slice, and counts from it backwards | `180000000,4,0,2` |
//! | sliding log | two bytes of sum, then nine bytes a request | binary |
//! | concurrency | two bytes of sum, then sixteen bytes a held slot: instant, owner, weight | binary |
//! | quota | the units used, and the index of the period in 8 digits; then the units of the period before; then debt and what was carried over | `4200024325,90` |
//! | penalty | the number of strikes, and the microseconds at which the last block ends, in 16 digits | `31800000060000000` |

use std::fmt::Write;

use siphasher::sip128::SipHasher24;

use crate::Limit;
use crate::algorithm::State;
use crate::algorithm::fixed_window::FixedWindow;
use crate::limits::Period;
use crate::spi::Subject;

/// The version of the key grammar and of the values under the keys.
pub const KEY_VERSION: &str = "1";

/// The number of partitions, each of which is in one slot of a cluster.
pub const PARTITIONS: u16 = 1024;

/// The key of one limit and one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'r> {
    stem: &'r KeyStem,
    partition: u16,
    /// Whether it is an overflow bucket; the subject is its number then.
    overflow: bool,
    subject: Subject,
}

/// The common part of the keys of one limit: its owner and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStem {
    text: String,
    /// A hash of the text. It also decides the partition of a limit without a subject, so it must not change.
    seed: u128,
    /// Another hash of the text, with a key of its own: a subject that is made from `seed` must not cancel it out in
    /// [`Key::id`].
    id_seed: u128,
}

/// The key of the hash for [`KeyStem::id_seed`]. Ids live in the memory of a process only.
const ID_HASH_KEY: [u8; 16] = *b"tidegate key ids";

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
            Limit::Concurrency(limit) => push_window(&mut text, 'c', limit.lease_micros()),
            Limit::Quota(limit) => text.push_str(quota_shape(limit.periods().period())),
            Limit::Penalty(_) => text.push('p'),
        }
        if !name.is_empty() {
            text.push('.');
            escape(&mut text, name);
        }
        Self::from_text(text)
    }

    /// The stem with this [text](Self::text).
    pub fn from_text(text: String) -> Self {
        let seed = SipHasher24::new().hash(text.as_bytes()).as_u128();
        let id_seed = SipHasher24::new_with_key(&ID_HASH_KEY).hash(text.as_bytes()).as_u128();
        Self { text, seed, id_seed }
    }

    /// The rule or `$` and the budget that the limit belongs to, the period of the quota, and the name of the limit. `None` if it is not the
    /// stem of a quota.
    pub fn parse_quota(text: &str) -> Option<(String, Period, String)> {
        let (owner, shape) = text.split_once(':')?;
        let (shape, name) = shape.split_once('.').unwrap_or((shape, ""));
        let period = Period::ALL.into_iter().find(|period| quota_shape(*period) == shape)?;
        let owner = match owner.strip_prefix('$') {
            Some(budget) => format!("${}", unescape(budget)?),
            None => unescape(owner)?,
        };
        Some((owner, period, unescape(name)?))
    }

    /// The owner and the shape, as in the names of keys.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A hash of the stem.
    pub const fn id(&self) -> u128 {
        self.seed
    }

    /// The partition of keys that belong together by this name.
    pub(crate) fn partition_of_name(name: &str) -> u16 {
        Subject::from_hash(SipHasher24::new().hash(name.as_bytes()).as_u128()).partition()
    }

    /// The subject of all requests together under this limit. It decides the partition of a rule that has no subject, which spreads such
    /// rules over the partitions.
    pub(crate) const fn own_subject(&self) -> Subject {
        Subject::from_hash(self.seed)
    }
}

impl<'r> Key<'r> {
    /// The key of `subject` under `stem`, in this partition, below [`PARTITIONS`].
    #[inline(always)]
    pub fn new(stem: &'r KeyStem, partition: u16, subject: Subject) -> Self {
        Self { stem, partition: partition % PARTITIONS, overflow: false, subject }
    }

    /// The key of an overflow bucket, by [number](crate::spi::Newcomer::bucket), that new subjects of this limit and partition share
    /// when there are too many. It is in the same slot. The memory store has its own overflow buckets, for all partitions together.
    pub fn overflow(&self, number: u32) -> Self {
        Self { overflow: true, subject: Subject::from_hash(u128::from(number)), ..*self }
    }

    /// The number of the overflow bucket, if it is one.
    pub const fn overflow_number(&self) -> Option<u32> {
        if self.overflow { Some(self.subject.hash() as u32) } else { None }
    }

    /// The common part of the keys of its limit.
    pub const fn stem(&self) -> &'r KeyStem {
        self.stem
    }

    /// The subject.
    #[inline(always)]
    pub const fn subject(&self) -> Subject {
        self.subject
    }

    /// The partition. Keys of one partition are in one slot of a cluster.
    #[inline(always)]
    pub const fn partition(&self) -> u16 {
        self.partition
    }

    /// Appends the name of the key.
    pub fn write_name(&self, namespace: &str, name: &mut Vec<u8>) {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
        name.extend_from_slice(namespace.as_bytes());
        name.extend_from_slice(KEY_VERSION.as_bytes());
        let (high, low) = (usize::from(self.partition >> 5), usize::from(self.partition & 31));
        name.extend_from_slice(&[b'{', DIGITS[high], DIGITS[low], b'}']);
        name.extend_from_slice(self.stem.text.as_bytes());
        if self.overflow {
            name.push(b'+');
        }
        name.extend_from_slice(&self.subject.hash().to_be_bytes());
    }

    /// A hash of the limit and the subject, for tables in the memory of a process. The partition and the
    /// [overflow buckets](Self::overflow) of shared stores are not part of it.
    #[inline(always)]
    pub const fn id(&self) -> u128 {
        self.stem.id_seed ^ self.subject.hash()
    }

    /// An overflow bucket of this limit in the memory store, by number.
    pub(crate) const fn overflow_id(&self, number: u32) -> u128 {
        self.stem.id_seed ^ number as u128
    }
}

const fn quota_shape(period: Period) -> &'static str {
    match period {
        Period::Hour => "u1h",
        Period::Day => "u1d",
        Period::Week => "u7d",
        Period::Month => "u1mo",
        Period::Year => "u1y",
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

/// The inverse of [`escape`].
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Keeps table entries of the memory store small.
const _: () = assert!(size_of::<State>() <= 24);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;
    use crate::limits::{Periods, Window};
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
        let name = name(&Key::new(&stem, subject.partition(), subject));
        assert_eq!(name.len(), 28);
        assert!(name.starts_with(b"tg1{07}api:t"));
    }

    #[test]
    fn an_overflow_bucket_is_in_the_slot_of_its_subjects_under_a_name_of_its_own() {
        let limit = Limit::token_bucket(20, Rate::per_second(10).unwrap()).unwrap();
        let stem = KeyStem::for_rule("api", &limit, "");
        let (ann, bob) = (Subject::from_hash(7 << 96), Subject::from_hash((7 << 96) + 1));
        let bucket = Key::new(&stem, ann.partition(), ann).overflow(0);
        assert_eq!(name(&bucket), [&b"tg1{07}api:t+"[..], &[0; 16]].concat());
        assert_eq!(name(&bucket), name(&Key::new(&stem, bob.partition(), bob).overflow(0)));
        assert_ne!(name(&bucket), name(&Key::new(&stem, ann.partition(), ann).overflow(1)));
        assert_ne!(name(&bucket), name(&Key::new(&stem, ann.partition(), Subject::from_hash(0))));
    }

    /// Regression: what decided the partition of a limit was its seed, and as a subject it cancelled the seed out: all such keys had the id 0.
    #[test]
    fn limits_without_a_subject_have_different_ids_in_memory() {
        let limit = Limit::token_bucket(20, Rate::per_second(10).unwrap()).unwrap();
        let stems = ["a", "b"].map(|rule| KeyStem::for_rule(rule, &limit, "static"));
        let ids = stems.each_ref().map(|stem| Key::new(stem, stem.own_subject().partition(), stem.own_subject()).id());
        assert_ne!(ids[0], ids[1]);
        for (stem, id) in stems.iter().zip(ids) {
            let key = |subject| Key::new(stem, stem.own_subject().partition(), subject);
            assert!(
                id != 0
                    && id != key(Subject::from_hash(0)).id()
                    && id != key(Subject::from_hash(stem.id())).overflow_id(0)
            );
        }
        // A subject of one limit does not have the id of another limit's subject, in whichever way they are paired.
        let crossed = [(0, 1), (1, 0)]
            .map(|(stem, of)| (&stems[stem], stems[of].own_subject()))
            .map(|(stem, subject)| Key::new(stem, subject.partition(), subject).id());
        assert_ne!(crossed[0], crossed[1]);
    }

    #[test]
    fn the_stem_of_a_quota_tells_its_rule_period_and_name() {
        let quota = Limit::quota(1, Periods::utc(Period::Month)).unwrap();
        let stem = KeyStem::for_rule("api ü/units", &quota, "a.b");
        assert_eq!(KeyStem::parse_quota(stem.text()), Some(("api ü/units".into(), Period::Month, "a.b".into())));
        assert_eq!(KeyStem::from_text(stem.text().to_owned()), stem);
        let budget = KeyStem::for_budget("units", &quota, "");
        assert_eq!(KeyStem::parse_quota(budget.text()), Some(("$units".into(), Period::Month, String::new())));
        for text in ["r:t", "r", "r:u2d", "r:u1d.%zz", "r:u1d.%e"] {
            assert_eq!(KeyStem::parse_quota(text), None, "{text}");
        }
    }

    #[test]
    fn the_name_contains_the_shape_of_a_limit_but_not_its_amounts() {
        let window = Duration::from_secs(600);
        let text = |limit: Limit, name: &str| KeyStem::for_rule("r", &limit, name).text;
        assert_eq!(text(Limit::sliding_window(10, window, 6).unwrap(), ""), "r:s10mx6");
        assert_eq!(text(Limit::sliding_window(99, window, 6).unwrap(), ""), "r:s10mx6");
        assert_eq!(text(Limit::fixed_window(1, Duration::from_micros(1500)).unwrap(), "a.b"), "r:f1500us.a%2eb");
        assert_eq!(text(Limit::fixed_window(1, Duration::from_secs(30 * 86_400)).unwrap(), ""), "r:f30d");
        assert_eq!(text(Limit::fixed_window(1, Window::MONTH).unwrap(), ""), "r:f1mo");
        assert_eq!(text(Limit::fixed_window(1, Window::YEAR).unwrap(), ""), "r:f1y");
        let quota = |period, zone| Limit::quota(1, Periods::new(period, zone, None).unwrap()).unwrap();
        let shapes = Period::ALL.map(|period| text(quota(period, "Asia/Tokyo"), ""));
        assert_eq!(shapes, ["r:u1h", "r:u1d", "r:u7d", "r:u1mo", "r:u1y"]);
        assert_eq!(shapes, Period::ALL.map(|period| text(quota(period, "UTC"), "")));
    }
}
