//! A [`Grant`] as bytes, for another process that ends it.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;

use super::{Grant, GrantKind, GrantPart};
use crate::algorithm::{FractionalMicros, TakePosition};
use crate::spi::Subject;

/// The first byte: the version of the layout. Others are rejected. Version 1 did not say until when a take is missing from a bucket, and version 2
/// had no leases.
const LAYOUT_VERSION: u8 = 3;

/// Bits of the flags of a part.
const HAS_PLAN: u8 = 1;
const IS_ANONYMOUS: u8 = 2;
const IS_SHADOW: u8 = 4;
const IS_SLOT: u8 = 8;
const IS_HELD: u8 = 16;
const IS_SHARE: u8 = 32;
const IS_LOCAL: u8 = 64;

impl Grant {
    /// The grant as bytes. Sign them and accept each once: anyone who can forge them can give back units that were never consumed, and end the
    /// reservations of others.
    ///
    /// They are sufficient to refund, release, renew and commit. For rules that share a budget, what was consumed at once has only the sum of the
    /// costs, not what a settlement needs.
    ///
    /// One byte is the version, 3. Each part adds 73 bytes and the names of its rule, limit and plan; a slot 8 bytes more, and what a
    /// reservation holds 2 bytes more and those of its budget.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT_VERSION];
        for part in self.endable_parts() {
            part.append_to(&mut bytes);
        }
        bytes
    }

    /// The grant from the bytes of [`to_bytes`](Self::to_bytes); `None` if they are invalid, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bytes = bytes.strip_prefix(&[LAYOUT_VERSION])?;
        let mut parts = SmallVec::new();
        while !bytes.is_empty() {
            parts.push(GrantPart::read_from(&mut bytes)?);
        }
        Some(Self { parts, has_lost_place: false })
    }
}

impl GrantPart {
    fn append_to(&self, bytes: &mut Vec<u8>) {
        push_text(bytes, &self.rule);
        push_text(bytes, &self.limit_name);
        let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
        bytes.push(
            flag(HAS_PLAN, self.plan.is_some())
                | flag(IS_ANONYMOUS, self.anonymous)
                | flag(IS_SHADOW, self.shadow)
                | flag(IS_SLOT, self.kind == GrantKind::Slot)
                | flag(IS_HELD, self.kind == GrantKind::Held)
                | flag(IS_SHARE, self.share)
                | flag(IS_LOCAL, self.local),
        );
        push_text(bytes, self.plan.as_deref().unwrap_or_default());
        bytes.extend_from_slice(&self.subject.hash().to_be_bytes());
        bytes.extend_from_slice(&self.partition.to_be_bytes());
        let FractionalMicros { micros, part } = self.position.slot();
        let full = self.position.full();
        for number in [self.cost, micros, part, full.micros, full.part, self.position.returned()] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        match self.kind {
            GrantKind::Taken => {}
            GrantKind::Slot => {
                let micros = u64::try_from(self.lease.as_micros()).unwrap_or(u64::MAX);
                bytes.extend_from_slice(&micros.to_be_bytes());
            }
            GrantKind::Held => {
                // A commit may have another cost for each rule.
                bytes.extend_from_slice(&u16::try_from(self.others.len()).unwrap_or(u16::MAX).to_be_bytes());
                for (rule, cost) in self.others.iter().take(usize::from(u16::MAX)) {
                    push_text(bytes, rule);
                    bytes.extend_from_slice(&cost.to_be_bytes());
                }
            }
        }
    }

    fn read_from(bytes: &mut &[u8]) -> Option<Self> {
        let (rule, limit_name) = (read_text(bytes)?.into(), read_text(bytes)?.into());
        let flags = read_array(bytes).map(|[flags]| flags).filter(|flags| *flags < 128)?;
        let kind = match flags & (IS_SLOT | IS_HELD) {
            0 => GrantKind::Taken,
            IS_SLOT => GrantKind::Slot,
            IS_HELD => GrantKind::Held,
            _ => return None,
        };
        let plan = read_text(bytes)?;
        Some(Self {
            rule,
            limit_name,
            plan: (flags & HAS_PLAN != 0).then(|| Arc::from(plan)),
            kind,
            anonymous: flags & IS_ANONYMOUS != 0,
            shadow: flags & IS_SHADOW != 0,
            share: flags & IS_SHARE != 0,
            local: flags & IS_LOCAL != 0,
            network: None,
            overflowed: false,
            settled: None,
            subject: Subject::from_hash(u128::from_be_bytes(read_array(bytes)?)),
            partition: u16::from_be_bytes(read_array(bytes)?),
            cost: read_number(bytes)?,
            position: {
                let slot = FractionalMicros { micros: read_number(bytes)?, part: read_number(bytes)? };
                let full = FractionalMicros { micros: read_number(bytes)?, part: read_number(bytes)? };
                TakePosition::from_bucket(slot, full, read_number(bytes)?)
            },
            lease: if kind == GrantKind::Slot { Duration::from_micros(read_number(bytes)?) } else { Duration::ZERO },
            others: if kind == GrantKind::Held { read_shares(bytes)? } else { Vec::new() },
        })
    }
}

/// Appends the length and the text.
fn push_text(bytes: &mut Vec<u8>, text: &str) {
    // Names are short. A longer one would be cut, its rule not found, and nothing given back.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..usize::from(length)]);
}

/// Reads a text from the front.
fn read_text<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
    let length = u16::from_be_bytes(read_array(bytes)?);
    let (text, rest) = bytes.split_at_checked(usize::from(length))?;
    *bytes = rest;
    str::from_utf8(text).ok()
}

/// Reads the costs of further rules from the front.
fn read_shares(bytes: &mut &[u8]) -> Option<Vec<(SmolStr, u64)>> {
    let count = u16::from_be_bytes(read_array(bytes)?);
    (0..count).map(|_| Some((read_text(bytes)?.into(), read_number(bytes)?))).collect()
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    read_array(bytes).map(u64::from_be_bytes)
}

/// Reads `N` bytes from the front.
fn read_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Grant {
        let part = |rule: &str, plan: Option<&str>, kind: GrantKind| GrantPart {
            rule: rule.into(),
            limit_name: "burst".into(),
            plan: plan.map(Arc::from),
            subject: Subject::from_hash(u128::MAX - 7),
            partition: 513,
            kind,
            cost: 1 << 40,
            settled: None,
            position: TakePosition::from_bucket(
                FractionalMicros { micros: 1_763_190_000_123_456, part: 3 },
                FractionalMicros { micros: 1_763_190_000_323_456, part: 5 },
                1 << 50,
            ),
            lease: if kind == GrantKind::Slot { Duration::from_secs(30) } else { Duration::ZERO },
            anonymous: plan.is_some(),
            shadow: plan == Some("pro"),
            local: rule == "größe",
            share: rule.is_empty(),
            network: None,
            overflowed: false,
            others: if kind == GrantKind::Held { vec![("other".into(), 7)] } else { Vec::new() },
        };
        let parts = [
            part("a", None, GrantKind::Taken),
            part("größe", Some(""), GrantKind::Slot),
            part("", Some("pro"), GrantKind::Held),
        ];
        Grant { parts: parts.into_iter().collect(), has_lost_place: false }
    }

    #[test]
    fn each_part_adds_73_bytes_and_its_names() {
        let names: usize =
            ["a", "größe", ""].iter().map(|rule| rule.len() + "burst".len()).sum::<usize>() + "pro".len();
        let (lease, budget) = (8, 2 + 2 + "other".len() + 8);
        assert_eq!(grant().to_bytes().len(), 1 + 3 * 73 + names + lease + budget);
    }

    #[test]
    fn a_grant_of_an_older_version_is_rejected() {
        for version in [1, 2] {
            let mut bytes = grant().to_bytes();
            bytes[0] = version;
            assert_eq!(Grant::from_bytes(&bytes), None, "version {version}");
        }
    }

    #[test]
    fn a_lost_place_in_a_queue_leaves_slots_and_holds_alone_to_give_back() {
        let mut grant = Grant { has_lost_place: true, ..grant() };
        let kept = Grant::from_bytes(&grant.to_bytes()).unwrap();
        assert_eq!(kept.parts.as_slice(), &grant.parts[1..]);
        grant.parts.truncate(1);
        assert!(grant.is_empty());
        assert_eq!(grant.to_bytes(), [LAYOUT_VERSION]);
    }

    #[test]
    fn a_grant_survives_the_conversion_to_bytes() {
        assert_eq!(Grant::from_bytes(&grant().to_bytes()), Some(grant()));
    }

    #[test]
    fn overflow_buckets_are_not_refunded() {
        let mut grant = grant();
        grant.parts.truncate(1);
        grant.parts[0].overflowed = true;
        assert!(grant.is_empty());
        assert_eq!(Grant::from_bytes(&grant.to_bytes()), Some(Grant::default()));
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        let bytes = grant().to_bytes();
        for end in (0..bytes.len()).filter(|end| Grant::from_bytes(&bytes[..*end]).is_some()) {
            // Cut after a part, the bytes are a shorter grant; a signature prevents that.
            let shorter = Grant::from_bytes(&bytes[..end]).map(|grant| grant.parts.len());
            assert!(shorter < Some(3), "{end}");
        }
        assert_eq!(Grant::from_bytes(&[bytes.as_slice(), &[0]].concat()), None);
        assert_eq!(Grant::from_bytes(&[4]), None, "another layout");
        assert_eq!(Grant::from_bytes(&[3, 0, 1, 0xff, 0, 0]), None, "not UTF-8");
    }
}
