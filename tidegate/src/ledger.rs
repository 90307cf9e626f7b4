//! The ledger: what a store tells it about limits that touch money, and what it is told back.
//!
//! ```text
//! store ──▶ outbox of its partition ──▶ flusher ──▶ ledger
//!   one atomic step with the decision     batches     durable, each entry once
//! ```
//!
//! A store that decides on a quota with a [`LedgerMode`] appends an [`OutboxEntry`] to the outbox of the partition, in the same atomic step.
//! A flusher moves entries from outboxes into the ledger, and removes them there once they are durable. The ledger is a crate of its own;
//! this module has the words that the store, the limiter and the ledger share.

mod entry_id;
mod gate_state;
mod outbox;
mod recorded_change;
mod stage;

pub use entry_id::{EntryId, EntryIdError, MAX_GENERATION};
pub use gate_state::{GateHold, GateHoldStatus, GateState};
pub use outbox::{Outbox, OutboxBatch, OutboxPosition};
pub(crate) use recorded_change::entry_for_change;
pub use stage::{BoxFuture, Journal, LedgerStage, UnconfirmedEntry};

use crate::Timestamp;
use crate::algorithm::quota::QuotaState;
use crate::key::{Key, KeyStem};
use crate::limits::Period;
use crate::spi::Subject;

/// How the consumption of a quota reaches the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LedgerMode {
    /// It is durable in the ledger before the request is allowed.
    Sync,
    /// It is durable soon after the request was allowed.
    Async,
}

impl LedgerMode {
    /// The name in rule files and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
        }
    }
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// Units were consumed by a request or a charge.
    Consume,
    /// A reservation holds units. It consumes nothing yet.
    Reserve,
    /// A reservation ended, and its actual cost was consumed.
    Commit,
    /// A reservation ended and consumed nothing, or consumed units were given back: then the amount is negative.
    Release,
    /// A reservation ran out.
    Expire,
    /// An administrator corrected what was consumed.
    Correct,
    /// An administrator set what was consumed to 0.
    Reset,
}

impl EntryKind {
    /// Every kind, in the order of their [numbers](Self::number).
    pub const ALL: [Self; 7] =
        [Self::Consume, Self::Reserve, Self::Commit, Self::Release, Self::Expire, Self::Correct, Self::Reset];

    /// The number in outboxes and in the ledger.
    pub const fn number(self) -> u8 {
        match self {
            Self::Consume => 1,
            Self::Reserve => 2,
            Self::Commit => 3,
            Self::Release => 4,
            Self::Expire => 5,
            Self::Correct => 6,
            Self::Reset => 7,
        }
    }

    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The name in exports and responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Reserve => "reserve",
            Self::Commit => "commit",
            Self::Release => "release",
            Self::Expire => "expire",
            Self::Correct => "correct",
            Self::Reset => "reset",
        }
    }
}

/// One change of the state of a quota, as a store records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Unique among all entries of all instances and restarts.
    pub id: EntryId,
    /// What happened.
    pub kind: EntryKind,
    /// When, by the clock of the store.
    pub at: Timestamp,
    /// The limit: the [text](crate::spi::KeyStem::text) of its key stem, which contains the rule and the shape of the limit.
    pub stem: String,
    /// Whose quota it is.
    pub subject: Subject,
    /// The index of the period.
    pub period: u64,
    /// Units consumed in the period; negative if given back.
    pub amount: i64,
    /// Units consumed in the period before, by a late charge; negative if given back.
    pub late_amount: i64,
    /// Units that a reservation holds. 0 if it is none.
    pub held: u64,
    /// The owner of the reservation, which is a hash of its idempotency key if it has one. 0 if it is none.
    pub owner: u64,
    /// When the reservation runs out. At its end: when it ended, if the store remembers that so that it counts once, else the epoch. The epoch if
    /// it is none.
    pub expires_at: Timestamp,
    /// The amount of the quota with grace.
    pub hard_limit: u64,
}

/// A quota of a subject, by which stores and the ledger find it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountKey {
    /// The partition of the key.
    pub partition: u16,
    /// The [text](crate::spi::KeyStem::text) of its key stem.
    pub stem: String,
    /// Whose quota it is.
    pub subject: Subject,
}

impl AccountKey {
    /// The account of the subject of a key.
    pub fn from_key(key: &Key<'_>) -> Self {
        Self { partition: key.partition(), stem: key.stem().text().to_owned(), subject: key.subject() }
    }

    /// The rule, or `$` and the budget, that it belongs to; the period of its quota; and the name of the limit. `None` if it is not that of a
    /// quota.
    pub fn parse(&self) -> Option<(String, Period, String)> {
        KeyStem::parse_quota(&self.stem)
    }
}

impl OutboxEntry {
    /// Whose quota it is.
    pub fn account(&self) -> AccountKey {
        AccountKey { partition: self.id.partition, stem: self.stem.clone(), subject: self.subject }
    }
}

/// How a change of the state of a quota counts in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    /// The index of the period.
    pub period: u64,
    /// Units consumed in the period, without debt that was carried into it; negative if given back.
    pub amount: i64,
    /// The same in the period before.
    pub late_amount: i64,
}

impl QuotaChange {
    /// The change from one state to another in the same period.
    pub(crate) fn between(before: QuotaState, after: QuotaState) -> Self {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let total = |state: QuotaState| signed(state.used) + signed(state.debt) - signed(state.carried);
        let earlier = |state: QuotaState| signed(state.previous) + signed(state.carried);
        Self {
            period: after.index,
            amount: total(after) - total(before),
            late_amount: earlier(after) - earlier(before),
        }
    }
}
