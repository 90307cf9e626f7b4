//! `Correction`: what an administrator posts, with an author and a reason.

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
    /// The index of the period. `None` for the last one with entries. A reset is of the current period, and never of one before the last with entries.
    pub period: Option<u64>,
    /// Units to add; negative to give back. `None` is a reset: nothing is consumed after it, and the debt is forgiven.
    pub amount: Option<i64>,
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

impl Correction {
    /// A correction of the last period with entries by so many units.
    pub fn new(key: AccountKey, amount: i64, author: &str, reason: &str, at: Timestamp) -> Self {
        Self { amount: Some(amount), ..Self::reset(key, author, reason, at) }
    }

    /// A reset: brings the consumption of the last period with entries to 0, and forgives the debt that was carried into it.
    pub fn reset(key: AccountKey, author: &str, reason: &str, at: Timestamp) -> Self {
        let (author, reason) = (author.to_owned(), reason.to_owned());
        Self { key, period: None, amount: None, author, reason, idempotency_key: None, at, hard_limit: None }
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
        match self.amount {
            Some(0) => {
                Err(LedgerError::invalid("a correction by 0 changes nothing; give the units to add or to take away"))
            }
            // Sums of larger ones might saturate, and then differ from the sum of the entries.
            Some(amount) if amount.unsigned_abs() > MAX_AMOUNT => Err(LedgerError::invalid(format!(
                "a correction by {amount} is larger than {MAX_AMOUNT}, the largest amount of a quota"
            ))),
            _ => Ok(()),
        }
    }

    /// The id of its entry: the same for the same account and idempotency key, otherwise random.
    pub(super) fn entry_id(&self) -> EntryId {
        let numbers = match &self.idempotency_key {
            Some(text) => {
                let mut hash = Sha256::new();
                hash.update((self.key.stem.len() as u64).to_be_bytes());
                hash.update(self.key.stem.as_bytes());
                hash.update(self.key.subject.hash().to_be_bytes());
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
