//! `Ledger::verify_secret`: accounts are found by hashes of their subjects, so all instances must hash with the same secret, for ever.

use tidegate::Secret;

use super::transaction::Argument;
use super::{Ledger, in_time};
use crate::{LedgerError, LedgerErrorKind};

impl Ledger {
    /// Checks that subjects are hashed with the secret that the ledger was first used with, which the first call decides. With another one,
    /// every tenant would begin again with an empty account.
    pub async fn verify_secret(&self, secret: &Secret) -> Result<(), LedgerError> {
        let fingerprint = fingerprint(secret);
        let stored = in_time(async {
            let mut transaction = self.begin(true).await?;
            let insert = "INSERT INTO secret_fingerprint (only_row, fingerprint) VALUES (1, $1) ON CONFLICT DO NOTHING";
            transaction.execute(insert, vec![Argument::Int(fingerprint)]).await?;
            let rows = transaction.fetch("SELECT fingerprint FROM secret_fingerprint", Vec::new()).await?;
            transaction.commit().await?;
            rows.first().map(|row| row.int(0)).transpose()
        });
        if stored.await? == Some(fingerprint) {
            return Ok(());
        }
        let message = "the ledger was written with another secret, and under this one every tenant would begin again at nothing; use the \
                       secret from before. If that was a mistake and no account is needed, empty the table secret_fingerprint";
        Err(LedgerError::new(LedgerErrorKind::Invalid, message))
    }
}

/// Half of a hash: enough to tell secrets apart, and nothing that finds one.
fn fingerprint(secret: &Secret) -> i64 {
    let hash = secret.hasher(["fingerprint"]).subject([Some("ledger")].into_iter()).hash();
    ((hash >> 64) as u64).cast_signed()
}
