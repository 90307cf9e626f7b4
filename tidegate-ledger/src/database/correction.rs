//! `Correction` and `Reset`: what an administrator posts, with an author and a reason.

use sha2::{Digest, Sha256};
use tidegate::Timestamp;
use tidegate::spi::{AccountKey, EntryId, MAX_AMOUNT};

use crate::LedgerError;

/// The longest author, reason and idempotency key.
const MAX_TEXT_BYTES: usize = 1_000;

/// Generations of entries that the ledger makes itself. Those of stores are far below.
const OWN_GENERATIONS: u64 = 1 << 63;

/// Changes what an account has consumed in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// The account.
    pub key: AccountKey,
    /// The index of the period. `None` for the last one with entries.
    pub period: Option<u64>,
    /// Units to add; negative to give back.
    pub amount: i64,
    /// Who corrects it.
    pub author: String,
    /// Why.
    pub reason: String,
    /// A key by which a repeated correction of the account counts once.
    pub idempotency_key: Option<String>,
    /// When.
    pub at: Timestamp,
    /// The amount of the quota with grace, for an account without entries. Otherwise that of its entries counts.
    pub hard_limit: Option<u64>,
}

/// Sets what an account has consumed in its current period to 0, and forgives its debt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The account.
    pub key: AccountKey,
    /// The index of the current period. `None`, or one before the last with entries, is the last one with entries.
    pub period: Option<u64>,
    /// Who resets it.
    pub author: String,
    /// Why.
    pub reason: String,
    /// A key by which a repeated reset of the account counts once.
    pub idempotency_key: Option<String>,
    /// When.
    pub at: Timestamp,
}

impl Correction {
    /// A correction of the last period with entries.
    pub fn new(key: AccountKey, amount: i64, author: &str, reason: &str, at: Timestamp) -> Self {
        let (author, reason) = (author.to_owned(), reason.to_owned());
        Self { key, period: None, amount, author, reason, idempotency_key: None, at, hard_limit: None }
    }

    /// The same in the period with this index.
    pub const fn with_period(mut self, index: u64) -> Self {
        self.period = Some(index);
        self
    }

    /// The same, counted once for each key.
    pub fn with_idempotency_key(mut self, key: &str) -> Self {
        self.idempotency_key = Some(key.to_owned());
        self
    }

    /// The same, of an account that may have no entries.
    pub const fn with_hard_limit(mut self, hard_limit: u64) -> Self {
        self.hard_limit = Some(hard_limit);
        self
    }

    pub(super) fn validate(&self) -> Result<(), LedgerError> {
        validate_texts(&self.author, &self.reason, self.idempotency_key.as_deref())?;
        if self.amount == 0 {
            return Err(LedgerError::invalid(
                "a correction by 0 changes nothing; give the units to add or to take away",
            ));
        }
        // Sums of larger ones might saturate, and then differ from the sum of the entries.
        if self.amount.unsigned_abs() > MAX_AMOUNT {
            return Err(LedgerError::invalid(format!(
                "a correction by {} is larger than {MAX_AMOUNT}, the largest amount of a quota",
                self.amount
            )));
        }
        Ok(())
    }
}

impl Reset {
    /// A reset of the last period with entries.
    pub fn new(key: AccountKey, author: &str, reason: &str, at: Timestamp) -> Self {
        let (author, reason) = (author.to_owned(), reason.to_owned());
        Self { key, period: None, author, reason, idempotency_key: None, at }
    }

    /// The same in the period with this index.
    pub const fn with_period(mut self, index: u64) -> Self {
        self.period = Some(index);
        self
    }

    /// The same, counted once for each key.
    pub fn with_idempotency_key(mut self, key: &str) -> Self {
        self.idempotency_key = Some(key.to_owned());
        self
    }

    pub(super) fn validate(&self) -> Result<(), LedgerError> {
        validate_texts(&self.author, &self.reason, self.idempotency_key.as_deref())
    }
}

fn validate_texts(author: &str, reason: &str, key: Option<&str>) -> Result<(), LedgerError> {
    for (name, text) in [("author", Some(author)), ("reason", Some(reason)), ("idempotency key", key)] {
        let Some(text) = text else { continue };
        if text.trim().is_empty() {
            return Err(LedgerError::invalid(format!(
                "the {name} is empty; every correction and reset says who made it and why"
            )));
        }
        if text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
            return Err(LedgerError::invalid(format!(
                "the {name} is longer than {MAX_TEXT_BYTES} bytes or contains a control character"
            )));
        }
    }
    Ok(())
}

/// The id of the entry of a correction or reset: the same for the same account and idempotency key, otherwise random.
pub(super) fn own_entry_id(key: &AccountKey, idempotency_key: Option<&str>) -> EntryId {
    let numbers = match idempotency_key {
        Some(text) => {
            let mut hash = Sha256::new();
            hash.update((key.stem.len() as u64).to_be_bytes());
            hash.update(key.stem.as_bytes());
            hash.update(key.subject.hash().to_be_bytes());
            hash.update(text.as_bytes());
            let digest = hash.finalize();
            let number =
                |place: usize| digest[8 * place..][..8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            [number(0), number(1), number(2)]
        }
        None => [fastrand::u64(..), fastrand::u64(..), fastrand::u64(..)],
    };
    // The partition is not part of the identity: that of an account may change.
    EntryId { generation: OWN_GENERATIONS | numbers[0], partition: 0, millis: numbers[1], sequence: numbers[2] }
}
