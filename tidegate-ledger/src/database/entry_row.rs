//! `EntryRow`: a row of the table of entries. An outbox entry with a late amount becomes two.

use siphasher::sip::SipHasher13;
use tidegate::spi::{EntryId, EntryKind, OutboxEntry};

use super::account_balances::BalanceChange;

/// The bytes of an [`EntryId`] in the order of its fields, big-endian, the number of the part, and a fingerprint of the entry.
///
/// A server that was promoted without the last writes may give an id again. The fingerprint tells the two entries apart.
pub(crate) type RowId = [u8; 31];

/// Where the fingerprint begins.
pub(crate) const FINGERPRINT_AT: usize = 27;

/// A row of the table of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryRow {
    pub(crate) id: RowId,
    pub(crate) account: i64,
    pub(crate) time: i64,
    pub(crate) kind: EntryKind,
    pub(crate) period: i64,
    pub(crate) amount: i64,
    pub(crate) hard_limit: i64,
    pub(crate) held: Option<i64>,
    pub(crate) owner: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) forgiven: Option<i64>,
    pub(crate) author: Option<String>,
    pub(crate) reason: Option<String>,
}

/// The part of an outbox entry that a row has.
const MAIN_PART: u8 = 0;
const LATE_PART: u8 = 1;

/// The bytes of the id of a row without a fingerprint, as of entries that the ledger makes itself.
pub(crate) fn row_id(id: EntryId, part: u8) -> RowId {
    let mut bytes = [0; 31];
    bytes[..8].copy_from_slice(&id.generation.to_be_bytes());
    bytes[8..10].copy_from_slice(&id.partition.to_be_bytes());
    bytes[10..18].copy_from_slice(&id.millis.to_be_bytes());
    bytes[18..26].copy_from_slice(&id.sequence.to_be_bytes());
    bytes[26] = part;
    bytes
}

/// The bytes of the id of a row of an outbox entry.
fn fingerprinted(entry: &OutboxEntry, part: u8) -> RowId {
    let mut bytes = row_id(entry.id, part);
    let numbers = [entry.at.as_micros(), entry.period, entry.held, entry.owner].map(u64::to_be_bytes);
    let amounts = [entry.amount, entry.late_amount].map(i64::to_be_bytes);
    let subject = entry.subject.hash().to_be_bytes();
    let parts = [&[entry.kind.number()], &numbers.concat()[..], &amounts.concat(), &subject, entry.stem.as_bytes()];
    let hash = SipHasher13::new().hash(&parts.concat());
    bytes[FINGERPRINT_AT..].copy_from_slice(&hash.to_be_bytes()[..4]);
    bytes
}

/// The id in the bytes of a row's, and whether the row is the late part of the entry. `None` if they are too short.
pub(crate) fn entry_id(bytes: &[u8]) -> Option<(EntryId, bool)> {
    let number = |range: std::ops::Range<usize>| Some(u64::from_be_bytes(bytes.get(range)?.try_into().ok()?));
    let id = EntryId {
        generation: number(0..8)?,
        partition: u16::from_be_bytes(bytes.get(8..10)?.try_into().ok()?),
        millis: number(10..18)?,
        sequence: number(18..26)?,
    };
    Some((id, bytes.get(26) == Some(&LATE_PART)))
}

/// A number of the store. None is above `i64::MAX`, since all are below 2^53.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number of the database that is not negative.
pub(crate) fn from_signed(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

impl EntryRow {
    /// A row of an entry that changes nothing.
    pub(crate) const fn new(id: RowId, account: i64, time: i64, kind: EntryKind) -> Self {
        Self {
            id,
            account,
            time,
            kind,
            period: 0,
            amount: 0,
            hard_limit: 0,
            held: None,
            owner: None,
            expires_at: None,
            forgiven: None,
            author: None,
            reason: None,
        }
    }

    /// The rows of an outbox entry of this account: one, or two if it consumed in the period before as well.
    pub(crate) fn from_entry(entry: &OutboxEntry, account: i64) -> impl Iterator<Item = Self> {
        let main = Self {
            id: fingerprinted(entry, MAIN_PART),
            account,
            time: signed(entry.at.as_micros()),
            kind: entry.kind,
            period: signed(entry.period),
            amount: entry.amount,
            hard_limit: signed(entry.hard_limit),
            held: (entry.held > 0).then(|| signed(entry.held)),
            owner: (entry.owner > 0).then(|| entry.owner.cast_signed()),
            expires_at: (entry.expires_at.as_micros() > 0).then(|| signed(entry.expires_at.as_micros())),
            forgiven: None,
            author: None,
            reason: None,
        };
        let late = (entry.late_amount != 0).then(|| Self {
            id: fingerprinted(entry, LATE_PART),
            period: signed(entry.period.saturating_sub(1)),
            amount: entry.late_amount,
            held: None,
            expires_at: None,
            ..main.clone()
        });
        let main = (entry.amount != 0 || late.is_none()).then_some(main);
        late.into_iter().chain(main)
    }

    /// What it adds to the sums of its period.
    pub(crate) fn change(&self) -> BalanceChange {
        BalanceChange { amount: self.amount, forgiven: self.forgiven.unwrap_or_default(), hard_limit: self.hard_limit }
    }
}
